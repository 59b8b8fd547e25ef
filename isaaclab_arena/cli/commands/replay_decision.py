"""``isaaclab-arena replay-decision``: show how the evidence of a run grew, and how much its moment was luck."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.text import Text

from isaaclab_arena.analysis import picture as pictures
from isaaclab_arena.analysis.arms import Arm, ReadRun, differences_of_tasks, named_arm, read_run
from isaaclab_arena.analysis.decision_replay import DecisionReplay, replay_decision
from isaaclab_arena.cli.commands.asking import NOT_COMPARABLE, check_share, kept
from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.stopping import verdict_in_words
from isaaclab_arena.storage.atomic import write_bytes, write_text
from isaaclab_arena.storage.json_values import json_text

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True)
class ReplayDecisionOptions:
    """Take the decision of a run again, in the order of its episodes and in 1,000 other orders of them.

    Writes the e-value by episode as decision_NAME.svg and .png, and every figure as .json. The exit code is 3 if the
    jobs cannot be compared.
    """

    run: tyro.conf.Positional[Path]
    """The run's directory."""
    comparison: str | None = None
    """Comparison or bar of the job file; by default the only one."""
    jobs: str | None = None
    """NEW,OLD: two jobs of the run that its job file does not compare."""
    margin: float | None = None
    """With --jobs: ask if NEW is at most this much worse (0.05 for 5 points), instead of if it is better."""
    alpha: float | None = None
    """With --jobs: probability of a wrong decision, 0.05 by default."""
    output_dir: Path | None = None
    """Directory for the files; by default the run's."""
    json: bool = False
    """Print the JSON instead of a histogram."""


def main(argv: Sequence[str]) -> int:
    """Replay the decision, write the files and show the result; ConfigError or StorageError if that fails."""
    options = tyro.cli(ReplayDecisionOptions, args=argv, prog="isaaclab-arena replay-decision", use_underscores=True)
    run = read_run(options.run, beyond_decisions=True)
    question, num_questions = _question(run, options)
    arms = [named_arm(run.arms(), job, option="--jobs") for job in question.jobs]
    # Without comparable jobs there is no decision to replay, which has its own exit code.
    if reason := _reason_against(arms):
        print(plain_text(reason), file=sys.stderr)
        return NOT_COMPARABLE
    replay = replay_decision(question, arms, num_questions=num_questions, num_orders=1_000)
    if replay.left_out == replay.num_episodes:
        names = plain_text(" and ".join(question.jobs))
        print(f"{names}: every episode is an error, or started from other conditions", file=sys.stderr)
        return NOT_COMPARABLE
    way_out = None if options.output_dir else "name a directory with --output_dir"
    written = kept(lambda: _write(options.output_dir or options.run, replay), way_out=way_out)
    if options.json:
        print_json(document(replay))
    else:
        show(replay, results_console())
        if written is not None:
            results_console().print(Text(f"written to {written}"))
    return 0


def document(replay: DecisionReplay) -> dict[str, Any]:
    """Return all results of a replay as JSON values."""
    return {
        "question": replay.question,
        "needed_log_e_value": replay.needed_log_e_value,
        "log_e_values": replay.log_e_values.tolist(),
        "decision": replay.decision,
        "left_out": replay.left_out,
        "other_orders": {
            "number": replay.num_orders,
            "verdicts": {str(verdict): count for verdict, count in replay.verdicts.items()},
            "decided_after": sorted(decision.episodes for decision in replay.reordered),
            "quantiles": {str(share): replay.quantile(share) for share in _QUANTILES},
        },
    }


def show(replay: DecisionReplay, console: Console) -> None:
    """Print the decision, and the verdicts and numbers of episodes of the other orders."""
    question = replay.question
    lines = [f"{question.name}: {pictures.question_in_words(question)}"]
    lines.append(f"in the order of the run: {pictures.decision_in_words(replay)}")
    if replay.left_out:
        lines.append(f"{replay.left_out} episodes say nothing: errors, and conditions that are not equal or repeat")
    counts = {verdict_in_words(question, verdict): count for verdict, count in replay.verdicts.items()}
    counts["undecided"] = replay.num_orders - len(replay.reordered)
    shares = [f"{verdict} {100 * count / replay.num_orders:.1f} %" for verdict, count in counts.items()]
    lines.append(f"in {replay.num_orders:,} other orders: {', '.join(shares)}")
    quantiles = [(share, replay.quantile(share)) for share in _QUANTILES]
    told = [f"{100 * share:g} % by {'-' if stop is None else stop}" for share, stop in quantiles]
    lines.append(f"decided after so many episodes: {', '.join(told)}")

    # A histogram of the numbers of episodes, with a bar of at most 40 characters for each range.
    bars = [(f"{first} to {last}", count) for (first, last), count in pictures.histogram(replay, 20).items()]
    highest, width = max(1, *(count for _, count in bars)), max(len(episodes) for episodes, _ in bars)
    for episodes, count in bars:
        if count:
            lines.append(f"{episodes:>{width}} {count:>5} {'█' * round(40 * count / highest)}".rstrip())
    for line in lines:
        console.print(Text(plain_text(line)))


def _question(run: ReadRun, options: ReplayDecisionOptions) -> tuple[Question, int]:
    """Return the question, and the number of questions that share its level."""
    if options.jobs is not None:
        if options.comparison is not None:
            raise ConfigError("give --comparison or --jobs, not both")
        names = tuple(options.jobs.split(","))
        if len(set(names)) != 2 or len(names) != 2 or not all(names):
            raise ConfigError(f"give NEW,OLD, two names of jobs, got '{options.jobs}'", key="--jobs")
        alpha = 0.05 if options.alpha is None else options.alpha
        check_share("alpha", alpha)
        check_share("margin", options.margin)
        name = "-vs-".join(names)
        return Question(name=name, jobs=names, max_episodes=sys.maxsize, alpha=alpha, margin=options.margin), 1

    for key in ("margin", "alpha"):
        if getattr(options, key) is not None:
            raise ConfigError("goes with --jobs; a comparison of the job file has its own", key=f"--{key}")
    questions = {question.name: question for question in run.plan.questions}
    if not questions:
        raise ConfigError("the job file of this run compares nothing: name two jobs, NEW,OLD", key="--jobs")
    if options.comparison is None and len(questions) > 1:
        raise ConfigError(f"say which one: {', '.join(questions)}", key="--comparison")
    chosen = next(iter(questions)) if options.comparison is None else options.comparison
    if chosen not in questions:
        raise ConfigError(f"there is no '{chosen}'{did_you_mean(chosen, questions)}", key="--comparison")
    return questions[chosen], len(questions)


def _reason_against(arms: Sequence[Arm]) -> str | None:
    """Return the reason why no decision is possible, None if one is."""
    if differences := differences_of_tasks(arms[0], arms[-1]):
        return f"{arms[0].entry.name} and {arms[-1].entry.name} are not the same task: {', '.join(differences)}"
    for arm in arms:
        if not arm.measures_success:
            return f"{arm.label} does not measure success"
        if arm.episodes.index[0] != 0:
            return f"{arm.label}: its first episode is not finished, and episodes are looked at in their order"
    return None


def _write(directory: Path, replay: DecisionReplay) -> Path:
    stem, picture = f"decision_{replay.question.name}", pictures.decision_picture(replay)
    write_text(directory / f"{stem}.json", json_text(document(replay)), overwrite=True)
    write_bytes(directory / f"{stem}.png", pictures.png(picture), overwrite=True)
    write_text(directory / f"{stem}.svg", pictures.svg(picture), overwrite=True)
    return directory / f"{stem}.svg"
