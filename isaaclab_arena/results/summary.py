"""Print the end of a run: the table, what failed, what is missing, and where the files are."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from isaaclab_arena.config.loading import limit_in_words
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.episode import SOLVED_AT_START, Outcome
from isaaclab_arena.results.merge import MergedResults, MissingEpisodes, records
from isaaclab_arena.results.rows import repeats_in_words
from isaaclab_arena.results.stopping.wording import in_words, what_does_not_count
from isaaclab_arena.results.suites import simulation_in_words
from isaaclab_arena.results.table import MAX_JOBS_SHOWN, console_table, is_partial, plain, suites_table
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.job_standing import JobResultStatus

_MAX_INDICES_SHOWN = 8
_MAX_OTHERS_SHOWN = 5

MANY_SATURATED = 0.05
"""Share of a job's action entries that lie at or beyond their bounds above which it is said."""

MANY_EARLY_ENDS = 0.2
"""Share of a job's episodes that end in their first step from which on it is said."""


def print_summary(
    merged: MergedResults, output_directory: Path, console: Console, *, report: Path | None = None, last_line: str = ""
) -> None:
    """Show the results of a run.

    Args:
        merged: The results.
        output_directory: Where the run has written.
        console: Where to show them.
        report: The page of the run, None where none was written.
        last_line: What a person shall do next, nothing where empty.
    """
    console.print(console_table(merged, console.width))
    hidden = len(merged.jobs) - MAX_JOBS_SHOWN
    if hidden > 0:
        console.print(Text(f"... and {hidden:,} jobs more, all of which are in results.csv"), soft_wrap=True)
    if len(merged.suites):
        console.print(suites_table(merged))
    limit = merged.plan.settings.get("limit")
    if isinstance(limit, int):
        console.print(Text(f"{limit_in_words(limit)}: not the job file's numbers", style="yellow"), soft_wrap=True)
    styled = (
        ("", _simulations(merged)),
        ("bold", answers_in_words(merged)),
        ("yellow", caveats(merged)),
        ("red", [*failures(merged), *map(describe_missing, merged.missing)]),
        ("yellow", merged.problems),
    )
    for style, lines in styled:
        for line in lines:
            console.print(Text(plain(line), style=style), soft_wrap=True)
    console.print(Text(plain(f"results in {output_directory}")), soft_wrap=True)
    if report is not None:
        console.print(Text(plain(f"report in {report}")), soft_wrap=True)
    if last_line:
        console.print(Text(plain(last_line), style="bold"), soft_wrap=True)


def caveats(merged: MergedResults) -> list[str]:
    """Return what is to be known of rates before they are read, in a line each.

    They are what jobs leave out of their rates, with bounds; conditions that repeat; actions at their bounds; what
    episodes show that end before a policy can do much; and what ranks have noticed.
    """
    lines = [f"* {line}" for answer in merged.answers if (line := what_does_not_count(answer)) is not None]
    lines += [f"* {line}" for line in (*merged.remarks, *_early_ends(merged), *_successes_of_nothing(merged))]
    lines += [*_caveats_of_suites(merged), *_saturated(merged)]
    for known in records(merged.jobs):
        if JobResultStatus(known["status"]) is JobResultStatus.COMPLETED and not known["episodes"] and known["cut"]:
            lines.append(
                f"* job '{plain(known['name'])}': no episode ended within its control steps, so nothing is rated; "
                f"{known['cut']} were under way: give more steps, or num_episodes"
            )
        if known["retried"]:
            lines.append(
                f"* job '{plain(known['name'])}': {known['retried']} episodes count that had ended in an error before "
                "and were run again (--retry_errors); what fails by chance gets more chances that way"
            )
        if known["rerun"]:
            lines.append(
                f"* job '{plain(known['name'])}': its episodes ran anew with something else than before (--rerun), "
                f"{_times(known['rerun'])}; those of before do not count and are in set_aside/"
            )
        if told := repeats_in_words(known):
            lines.append(f"* job '{plain(known['name'])}': {told}")
        if not is_partial(known):
            continue
        name, low, high = plain(known["name"]), known["success_rate_lower_bound"], known["success_rate_upper_bound"]
        if known["cut"] and known["planned"] is None:
            lines.append(
                f"* job '{name}': {known['cut']} episodes were under way at its last step and do not count; "
                "those that finished are the short ones, so the rate may be biased"
            )
        if (known["errors"] or known["missing"]) and low is not None and high is not None:
            left_out = f"{known['errors']} errors and {known['missing'] or 0} missing episodes"
            lines.append(
                f"* job '{name}': {left_out} do not count; the rate is {100 * low:.1f} % "
                f"if they are counted as failures, {100 * high:.1f} % as successes"
            )
    return lines


def _saturated(merged: MergedResults) -> Iterator[str]:
    """Yield in which jobs many action entries lie at or beyond their bounds, the most first."""
    shares = [(row.get("saturated_action_share") or 0.0, plain(row["name"])) for row in records(merged.jobs)]
    many = sorted((each for each in shares if each[0] > MANY_SATURATED), key=lambda each: -each[0])
    if many:
        told = ", ".join(f"{100 * share:.0f} % in job '{name}'" for share, name in many[:_MAX_INDICES_SHOWN])
        more = f" and much in {len(many) - _MAX_INDICES_SHOWN} others" if len(many) > _MAX_INDICES_SHOWN else ""
        yield f"* action entries at or beyond their bounds: {told}{more}"


def _early_ends(merged: MergedResults) -> Iterator[str]:
    """Yield for which jobs many episodes are over before, or as soon as, their policy has acted."""
    ended, solved, first = Counter[str](), Counter[str](), Counter[str]()
    episodes = merged.episodes
    # An episode whose success is not measured has no outcome.
    columns = episodes["job"], episodes["termination"], episodes["outcome"].fillna(""), episodes["length"]
    for job, termination, outcome, length in zip(*columns, strict=True):
        ended[job] += 1
        solved[job] += termination == SOLVED_AT_START
        first[job] += outcome != Outcome.ERROR and length <= 1
    for job, number in ended.items():
        if solved[job]:
            yield (
                f"job '{plain(job)}': {solved[job]} of {number} episodes were solved where they started; "
                "these are errors of the task, and say nothing of the policy"
            )
        if first[job] >= MANY_EARLY_ENDS * number:
            yield f"job '{plain(job)}': {first[job]} of {number} episodes ended in their first step"


def _successes_of_nothing(merged: MergedResults) -> Iterator[str]:
    """Yield in which environments a policy that does nothing succeeds, where one was run."""
    rows, alike = {row["name"]: row for row in records(merged.jobs)}, defaultdict[str, list[JobConfig]](list)
    for config in (entry.config for entry in merged.plan.jobs):
        alike[json_line((config.environment, config.environment_args))].append(config)
    for configs in alike.values():
        does_nothing = {each.name: each.policy_type.endswith(("zero_action", "ZeroActionPolicy")) for each in configs}
        others = [plain(name) for name, is_idle in does_nothing.items() if not is_idle]
        more = f" and {len(others) - _MAX_OTHERS_SHOWN} others" if len(others) > _MAX_OTHERS_SHOWN else ""
        beside = f"; read the rates of {', '.join(others[:_MAX_OTHERS_SHOWN])}{more} beside that" if others else ""
        for name in (name for name, is_idle in does_nothing.items() if is_idle and rows[name]["successes"]):
            successes = f"{rows[name]['successes']} of {rows[name]['episodes']} episodes of its environment"
            yield f"job '{plain(name)}': a policy that does nothing succeeds in {successes}{beside}"


def _simulations(merged: MergedResults) -> Iterator[str]:
    """Yield by what each suite was played, where that is known."""
    for row in records(merged.suites):
        if words := simulation_in_words(row):
            yield f"suite '{plain(row['name'])}': played {words}"


def _caveats_of_suites(merged: MergedResults) -> Iterator[str]:
    for row in records(merged.suites):
        name = plain(row["name"])
        if row["mean_rate"] is None and row["scored"]:
            yield f"* suite '{name}': not every task has an episode that says whether it succeeded, so there is no mean"
        elif row["mean_rate"] is not None and (row["errors"] or row["missing"]) and row["mean_lower_bound"] is not None:
            low, high = 100 * row["mean_lower_bound"], 100 * row["mean_upper_bound"]
            left_out = f"{row['errors']} errors and {row['missing'] or 0} missing episodes"
            yield (
                f"* suite '{name}': {left_out} do not count; the mean of its tasks is {low:.1f} % "
                f"if they are counted as failures, {high:.1f} % as successes"
            )
        if told := repeats_in_words(row):
            yield f"* suite '{name}': {told}"


def answers_in_words(merged: MergedResults) -> list[str]:
    """Return one line per question of the run, and one that says what that means for the intervals."""
    if not merged.answers:
        return []
    jobs = ", ".join(dict.fromkeys(job for answer in merged.answers for job in answer.question.jobs))
    shown = f"intervals of {jobs}: anytime-valid, that is right although the run looked after every episode"
    beyond = sum(row["episodes_beyond"] for row in records(merged.jobs))
    ahead = [f"{beyond} episodes had begun before the decision was known; they are kept and do not count"]
    return [*map(in_words, merged.answers), shown, *(ahead if beyond else [])]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def failures(merged: MergedResults) -> list[str]:
    """Return one line per job that failed: what it raised, on which rank, and the file with the traceback."""
    return [
        f"failed: job '{plain(row['name'])}' on rank {row['rank']}: {_cause(row)}"
        for row in records(merged.jobs)
        if JobResultStatus(row["status"]) is JobResultStatus.FAILED
    ]


def describe_missing(missing: MissingEpisodes) -> str:
    """Return one line: which episodes of which job are missing, and on which rank."""
    rank = "" if missing.rank is None else f" on rank {missing.rank}"
    where = f"job '{plain(missing.job)}'{rank}"
    if not missing.episode_indices:
        return f"incomplete: {where} is {missing.status}"
    count = len(missing.episode_indices)
    shown = ", ".join(map(str, missing.episode_indices[:_MAX_INDICES_SHOWN]))
    more = ", …" if count > _MAX_INDICES_SHOWN else ""
    return f"missing: {where} lacks {count} episode{'s' if count > 1 else ''} ({shown}{more}); it is {missing.status}"


def _cause(row: dict[str, Any]) -> str:
    error = "no report" if row["error"] is None else plain(row["error"])
    if row["traceback_file"] is not None:
        return f"{error} (traceback in {plain(row['traceback_file'])})"
    return f"{error} (--resume --retry_errors plays them again)" if row["errors"] else error
