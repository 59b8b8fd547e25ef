"""``isaaclab-arena compare``, ``leaderboard``, ``plan``: which policy is better, and what it takes."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro
from rich.text import Text

from isaaclab_arena.analysis import comparison_files
from isaaclab_arena.analysis.arms import named_arm, read_run
from isaaclab_arena.analysis.comparison import NotComparableError, Question, Verdict, check_shares, compare_directories
from isaaclab_arena.cli.main import kept, print_json, stdout_for_json
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.process import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results import statistics
from isaaclab_arena.results.console import MAX_JOBS_SHOWN, drawn
from isaaclab_arena.results.rows import percent_text, short_policy_name

# The question, files and exit code that the commands that compare share.

NOT_COMPARABLE = 3
"""Exit code where nothing can be compared."""


# The better of two policies.


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare two runs, or jobs of one run, over the episodes that started from the same conditions.

    The exit code is 0 if the candidate is better, or with --margin no worse; 1 if it is worse, 2 for a mistake in the
    request, 3 if nothing can be compared, or some job cannot and none is worse, 4 if it is undecided.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run of the baseline and that of the candidate, or one run with --baseline."""
    baseline: str | None = None
    """Job of the one run to compare its other jobs with; "best" for the best by half of the episodes."""
    map: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """OLD=NEW: compare the baseline's job OLD with the candidate's job NEW; may be given several times."""
    margin: float | None = None
    """Ask if the candidate is at most this much worse (0.05 for 5 points), instead of if it is better."""
    alpha: float = 0.05
    """Probability of finding a difference if there is none."""
    partial: bool = False
    """Also compare unfinished jobs, over the episodes before the first missing one."""
    output_dir: Path | None = None
    """Directory for comparison.json, .csv, .md and .tex; by default the candidate's run."""
    github_summary: bool = False
    """Also append the tables to the summary of a GitHub workflow."""
    json: bool = False
    """Print comparison.json instead of tables."""


def main(argv: Sequence[str]) -> int:
    """Compare, write the files and show the tables; ConfigError, or StorageError for a file."""
    options = read_words(CompareOptions, argv, program="isaaclab-arena compare")
    check_shares(prefix="--", alpha=options.alpha, margin=options.margin)
    question = Question(alpha=options.alpha, margin=options.margin)
    if not options.runs[1:] and options.baseline is None and not options.map:
        with stdout_for_json(wanted=options.json):
            return _ask_for_baseline(options.runs)
    names = {}
    for text in options.map:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise ConfigError(f"give OLD=NEW, two names of jobs, got '{text}'", key="--map")
        names[old] = new
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if options.github_summary and not summary:
        raise ConfigError("needs GITHUB_STEP_SUMMARY, which GitHub sets", key="--github_summary")
    try:
        report = compare_directories(
            options.runs, question, baseline=options.baseline, names=names, partial=options.partial
        )
    except NotComparableError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return NOT_COMPARABLE

    directory = options.output_dir or options.runs[-1]
    way_out = None if options.output_dir else "name a directory with --output_dir"
    written = kept(lambda: comparison_files.write_comparison(directory, report)[0], way_out=way_out)
    if options.github_summary and summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(comparison_files.markdown(report))
    if options.json:
        print_json(comparison_files.document(report))
    else:
        # The tables, their limits, and the place of the files.
        console = results_console()
        for table in comparison_files.tables(report):
            console.print(drawn(table))
        limits = f", over what could be compared; {len(report.refused)} could not" if report.refused else ""
        for sentence in comparison_files.sentences(report):
            console.print(Text(plain_text(sentence)))
        console.print(Text(f"verdict: {report.verdict}{limits}", style="bold"))
        if written is not None:
            console.print(Text(f"written to {written}"))

    # A candidate does not pass if a job that may be worse was left out.
    if report.refused and report.verdict is not Verdict.WORSE:
        return NOT_COMPARABLE
    return {Verdict.BETTER: 0, Verdict.NO_WORSE: 0, Verdict.WORSE: 1, Verdict.UNDECIDED: 4}[report.verdict]


def _ask_for_baseline(runs: Sequence[Path]) -> int:
    """Show the jobs of a run that is named alone, and the lines that compare them or it; return the exit code."""
    line = "isaaclab-arena compare"
    if not runs:
        message = f"name two runs, {line} BASELINE CANDIDATE, or one run and a job of it: {line} RUN --baseline JOB"
        raise ConfigError(message, key="RUNS")
    run, console = read_run(runs[0]), results_console()
    named = shlex.quote(str(runs[0]))
    rows = []
    for name, arm in run.arms.items():
        scored = arm.episodes.scored
        interval = scored.wilson()
        rate = "-" if interval is None else percent_text(float(np.mean(scored.success)), interval.low, interval.high)
        rows.append((name, arm.entry.config.environment, short_policy_name(arm.entry.config.policy_type), rate))
    table = pd.DataFrame(rows[:MAX_JOBS_SHOWN], columns=["job", "environment", "policy", "success % [95 %]"])
    console.print(drawn(table, names=("job", "environment", "policy")))
    lines = [f"with another run: {line} {named} CANDIDATE"]
    if len(rows) > 1:
        lines.insert(0, f"its jobs with one of them: {line} {named} --baseline {shlex.quote(rows[0][0])}")
    console.print(Text(plain_text(f"{runs[0]} alone is no comparison; to compare, type")), soft_wrap=True)
    for each in lines:
        console.print(Text(plain_text(f"  {each}"), style="bold"), soft_wrap=True)
    return 2


# The order of many policies, and those that cannot be told apart.


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    """Order runs by their success over the jobs that all of them have; of one run, its suites or its jobs.

    The exit code is 3 if they cannot be compared.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs, each of one policy; or one run with a suite or a job for each policy."""
    alpha: float = 0.05
    """Probability of telling apart any two equal policies, over all pairs together."""
    json: bool = False
    """Print JSON instead of a table."""


def leaderboard(argv: Sequence[str]) -> int:
    """Show the leaderboard; ConfigError if a directory is no output of a run, or the level is out of range."""
    options = read_words(LeaderboardOptions, argv, program="isaaclab-arena leaderboard")
    check_shares(prefix="--", alpha=options.alpha)
    question = Question(alpha=options.alpha)
    try:
        found = comparison_files.leaderboard([read_run(path) for path in dict.fromkeys(options.runs)], question)
    except NotComparableError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return NOT_COMPARABLE

    repeating = [place for place in found.places if place.distinct_conditions < place.episodes]
    if options.json:
        # Numbers of different conditions are for leaderboards in which some repeat.
        left_out = set() if repeating else {"distinct_conditions"}
        places = [{name: own for name, own in vars(place).items() if name not in left_out} for place in found.places]
        print_json(vars(found) | {"places": places})
        return 0
    # One line per policy, the best first. Numbers stand for names in the last column, which names would make too wide.
    numbers = {place.name: str(number) for number, place in enumerate(found.places, start=1)}
    rows = [
        (
            plain_text(place.name),
            numbers[place.name],
            str(place.rank),
            percent_text(place.mean_rate, place.mean_interval.low, place.mean_interval.high),
            f"{place.successes}/{place.episodes}",
            f"{100 * place.interval.low:.1f} to {100 * place.interval.high:.1f}",
            ", ".join(sorted((numbers[name] for name in place.like), key=int)) or "-",
        )
        for place in found.places
    ]
    means, alike = "mean of tasks % [95 %]", "not told apart from no."
    console = results_console()
    console.print(
        drawn(pd.DataFrame(rows, columns=["policy", "no.", "rank", means, "successes", "95 % of all", alike]))
    )
    test = "McNemar's mid-p over all pairs of episodes, adjusted by Holm's method"
    console.print(Text(f"not told apart: {test} for {found.num_comparisons} comparisons, above {options.alpha:g}"))
    for place in repeating:
        told = f"{place.episodes} episodes have {place.distinct_conditions} different conditions"
        console.print(Text(plain_text(f"{place.name}: {told} and count as a sample of these")))
    if found.winner is not None:
        console.print(Text(plain_text(found.winner.sentence)))
    return 0


# How many episodes it takes to tell two policies apart.

_MOST_PAIRS = 20_000


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Say how many episodes it takes to find a difference of success rates, by the tests that will decide."""

    difference: float
    """The difference to find: 0.1 for 10 points, negative for a worse policy."""
    baseline: float | None = None
    """Success rate of the baseline."""
    from_run: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Run to take that rate from: of its only job, or of --job."""
    job: str | None = None
    """The job of that run."""
    power: float = 0.8
    """Probability of finding the difference."""
    alpha: float = 0.05
    """Probability of finding a difference if there is none."""
    json: bool = False
    """Print JSON instead of a table."""


def plan(argv: Sequence[str]) -> int:
    """Show the number of episodes that a comparison needs; ConfigError if a number, run or job is wrong."""
    options = read_words(PlanOptions, argv, program="isaaclab-arena plan")
    if (options.baseline is None) == (options.from_run is None):
        raise ConfigError("give the baseline's rate with --baseline, or a run that has it with --from")
    if options.baseline is not None:
        baseline = options.baseline
        if not 0.0 <= baseline <= 1.0:
            raise ConfigError(f"must be 0 to 1, got {baseline:g}", key="--baseline")
    else:
        arms = read_run(options.from_run or Path()).arms
        if options.job is None and len(arms) != 1:
            raise ConfigError(f"say which of the run's jobs: {', '.join(arms)}", key="--job")
        arm = named_arm(arms, options.job or next(iter(arms)), option="--job")
        if not arm.measures_success:
            raise ConfigError(f"'{arm.entry.name}' does not measure success", key="--job")
        success = arm.episodes.success
        baseline = float((success > 0).sum() / (success >= 0).sum())
    check_shares(prefix="--", power=options.power, alpha=options.alpha)
    candidate = baseline + options.difference
    if options.difference == 0.0 or not 0.0 <= candidate <= 1.0:
        message = f"from a rate of {baseline:g} it must lead to another one between 0 and 1, got {options.difference:g}"
        raise ConfigError(message, key="--difference")

    planned = []
    for agreement in (0.0, 0.5, 1.0):
        chances = statistics.pair_chances(candidate, baseline, agreement=agreement)
        pairs = statistics.least_number(
            lambda number, chances=chances: statistics.paired_power(number, chances, alpha=options.alpha),
            power=options.power,
            at_most=_MOST_PAIRS,
        )
        until_stopped = statistics.simulated_stop(chances, alpha=options.alpha, at_most=_MOST_PAIRS)
        # ``agreement`` is the share of the conditions that decide alone, ``pairs`` the number for the test with a fixed
        # number, and ``until_stopped`` its mean if the test stops once it is decided; None for more than 20,000.
        planned.append({"agreement": agreement, "pairs": pairs, "until_stopped": until_stopped})
    # For comparison: the same difference without pairs usually needs more episodes.
    most_independent = 400
    independent = statistics.least_number(
        lambda number: statistics.independent_power(number, candidate, baseline, alpha=options.alpha),
        power=options.power,
        at_most=most_independent,
    )

    if options.json:
        rates = {"baseline": baseline, "candidate": candidate}
        print_json({**rates, "paired": planned, "independent": independent})
        return 0
    console = results_console()
    rates = f"{100 * baseline:.1f} % against {100 * candidate:.1f} %"
    console.print(Text(f"{rates}, to be found in {100 * options.power:g} % of tries:"))
    said = {0.0: "nothing to do with each other", 0.5: "half as alike as they can be", 1.0: "as alike as they can be"}
    too_many = f"more than {_MOST_PAIRS:,}"
    numbers = [[each["pairs"], each["until_stopped"]] for each in planned]
    told = [[too_many if number is None else f"{number:,.0f}" for number in row] for row in numbers]
    rows = [(said[each["agreement"]], *row) for each, row in zip(planned, told, strict=True)]
    headings = ["the same conditions; outcomes", "pairs (McNemar's mid-p)", "on average, stopped as soon as decided"]
    console.print(drawn(pd.DataFrame(rows, columns=headings)))
    number = f"more than {most_independent}" if independent is None else str(independent)
    console.print(Text(f"other conditions for each policy: {number} episodes of either (Boschloo's test)"))
    return 0
