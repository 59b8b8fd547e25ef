"""The merged results in a terminal: the table, groups of jobs, and the end of a run."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isaaclab_arena.config.loading import limit_in_words
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, shortened
from isaaclab_arena.interfaces.episode import SOLVED_AT_START, Outcome
from isaaclab_arena.logs import plain_text as plain
from isaaclab_arena.nested import leaves
from isaaclab_arena.results.columns import ACTION_COLUMNS, DISTINCT_COLUMNS
from isaaclab_arena.results.merge import MergedResults, MissingEpisodes, csv_text, records, scored_by_job
from isaaclab_arena.results.rows import mean_over_steps, repeats_in_words, short_policy_name, simulation_in_words
from isaaclab_arena.results.statistics import ScoredEpisodes, standard_deviation, together
from isaaclab_arena.results.stopping import in_words, what_does_not_count
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.commits import JobResultStatus
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run_plan import PlanEntry

# The merged results as a table for a terminal.

MAX_JOBS_SHOWN = 200
"""More lines than a person reads; their layout would take longer than all the other tables."""

SPREAD = "±sd"
"""Heading of the standard deviation over episodes, beside a mean."""

_LENGTH, _RETURN, _SUCCESS = f"length {SPREAD}", f"return {SPREAD}", "success % [95 %]"
_ASKED, _TOOK = "queries/s", "measured ms"
_LEAVE_OUT_FIRST = ("rank", "steps/s", _ASKED, _TOOK, "stale %", _RETURN, "environment", _LENGTH)
_STATUS_STYLES = {
    JobResultStatus.COMPLETED: "green",
    JobResultStatus.FAILED: "bold red",
    JobResultStatus.INTERRUPTED: "yellow",
    JobResultStatus.MISSING: "bold red",
    JobResultStatus.SKIPPED: "dim",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table."""

    heading: str
    cells: tuple[Text, ...]  # one per job
    is_name: bool = False  # cells are names, which may be folded; numbers may not
    leave_out: int | None = None  # rank of removal if a line does not fit, lowest first; None for never

    @property
    def width(self) -> int:
        """Width in the terminal [characters]."""
        return max(len(self.heading), *(cell.cell_len for cell in self.cells), 0)


def console_table(merged: MergedResults, width: int = 160) -> Table:
    """Return one line per job, up to `MAX_JOBS_SHOWN`: the task, success with its 95 % interval, and errors."""
    rows = records(merged.jobs.head(MAX_JOBS_SHOWN))
    measured = [row["success_rate"] is not None for row in rows if row["episodes"]]
    order = {heading: position for position, heading in enumerate(_LEAVE_OUT_FIRST)}
    if not all(measured):
        # Without any success rate, returns are the only values to compare.
        del order[_RETURN]
    if measured and not any(measured):
        order[_SUCCESS] = -1
    names = {
        "job": tuple(Text(plain(row["name"]), style="bold") for row in rows),
        "environment": tuple(Text(plain(row["environment"])) for row in rows),
        "policy": tuple(Text(plain(short_policy_name(str(row["policy"])))) for row in rows),
    }
    order["policy"] = len(_LEAVE_OUT_FIRST) + 1
    columns = [
        Column(heading=heading, cells=cells, is_name=True, leave_out=order.get(heading))
        for heading, cells in names.items()
    ]

    # A swept key is a column if its values differ and no other column shows them.
    swept = {job.name: job.config.swept for job in merged.plan.jobs}
    shown_anyway = {"policy_type", "arena_env_args.environment"}
    keys = [key for key in dict.fromkeys(key for own in swept.values() for key in own) if key not in shown_anyway]
    leaves_of_keys = [key.rpartition(".")[2] for key in keys]
    for key, leaf in zip(keys, leaves_of_keys, strict=True):
        values = (swept[row["name"]].get(key, "-") for row in rows)
        texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
        cells = tuple(Text(plain(shortened(text, 60))) for text in texts)
        if len({cell.plain for cell in cells}) > 1:
            heading = plain(leaf if leaves_of_keys.count(leaf) == 1 else key)
            columns.append(Column(heading=heading, cells=cells, leave_out=len(_LEAVE_OUT_FIRST)))
    columns += [
        Column(heading=heading, cells=cells, leave_out=order.get(heading)) for heading, cells in _numbers(rows).items()
    ]

    # If a line does not fit the width [characters], the least important columns are left out.
    optional = (each for each in columns if each.leave_out is not None)
    for column in sorted(optional, key=lambda each: each.leave_out or 0):
        if sum(each.width + 1 for each in columns) - 1 <= width:
            break
        columns.remove(column)

    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        justify = "left" if column.is_name or column.heading == "status" else "right"
        table.add_column(column.heading, justify=justify, overflow="fold", no_wrap=not column.is_name)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def suites_table(merged: MergedResults) -> Table:
    """Return one line per suite: the mean of its tasks, the rate over all episodes, and errors."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("suite", "of", "tasks", "episodes", "mean of tasks % [95 %]", "all episodes % [95 %]", "errors",
                    "missing", "status"):  # fmt: skip
        is_name = heading in {"suite", "of"}
        justify = "left" if is_name or heading == "status" else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_name)
    for row in records(merged.suites):
        rates = (_percent(*(row[f"{kind}_{part}"] for part in ("rate", "low", "high"))) for kind in ("mean", "pooled"))
        star = "*" if row["mean_rate"] is not None and (row["errors"] or row["missing"] or row["cut"]) else ""
        mean, pooled = (Text(f"{rate}{star}" if rate != "-" else rate) for rate in rates)
        table.add_row(
            Text(plain(row["name"]), style="bold"), Text(plain(row["suite"])), Text(str(row["tasks"])),
            Text(_of_planned(row)), mean, pooled, _count(row["errors"]), _count(row["missing"]), _status(row["status"]),
        )  # fmt: skip
    return table


def mean_and_spread(mean: float | None, spread: float | None, pattern: str) -> str:
    """Format a mean with its standard deviation, ``38.1 ±4.2``; without one for a single episode."""
    if mean is None:
        return "-"
    return f"{mean:{pattern}}" if spread is None else f"{mean:{pattern}} ±{spread:{pattern}}"


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Text, ...]]:
    """Return the cells of the numeric columns, by heading."""
    # A star marks a rate that leaves out episodes which started or were planned.
    rates = []
    for row in rows:
        star = "*" if row["success_rate"] is not None and (row["errors"] or row["missing"] or row["cut"]) else ""
        rates.append(_percent(row["success_rate"], row["success_low"], row["success_high"]) + star)

    # The latency itself is in the column of the job's sweep, or in the job file. Measured times are the median and the
    # 95 % quantile.
    late: dict[str, tuple[Text, ...]] = {}
    if any(row.get("meanwhile") for row in rows):
        stale = [row.get("stale_action_share") for row in rows]
        asked = [row.get("queries_per_s") for row in rows]
        took = [[row.get(f"measured_latency_p{part}_ms") for part in (50, 95)] for row in rows]
        late = {
            "stale %": tuple(Text("-" if each is None else f"{100 * each:.0f}") for each in stale),
            _ASKED: tuple(Text("-" if each is None else f"{each:.2f}") for each in asked),
            _TOOK: tuple(Text("-" if None in each else "{:.0f}, {:.0f}".format(*each)) for each in took),
        }

    def compact(value: float | None) -> str:
        """Format a rate in at most five characters: ``950``, ``41.2k``, ``1.3M``."""
        if value is None:
            return "-"
        if value < 9_999.5:
            return f"{value:.0f}"
        return f"{value / 1e3:.1f}k" if value < 999_950 else f"{value / 1e6:.1f}M"

    return {
        "episodes": tuple(Text(_of_planned(row)) for row in rows),
        _SUCCESS: tuple(map(Text, rates)),
        _LENGTH: tuple(Text(mean_and_spread(row["mean_length"], row["std_length"], ".1f")) for row in rows),
        _RETURN: tuple(Text(mean_and_spread(row["mean_return"], row["std_return"], ".2f")) for row in rows),
        **late,
        "errors": tuple(_count(row["errors"]) for row in rows),
        "missing": tuple(_count(row["missing"]) for row in rows),
        "steps/s": tuple(Text(compact(row["env_steps_per_s"])) for row in rows),
        "rank": tuple(Text(row["rank"] or "-") for row in rows),
        "status": tuple(_status(row["status"]) for row in rows),
    }


def _of_planned(row: Mapping[str, Any]) -> str:
    planned = row["planned"]
    return (
        f"{row['episodes']}/{planned}" if planned is not None and planned != row["episodes"] else f"{row['episodes']}"
    )


def _percent(rate: float | None, low: float, high: float) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _status(status: str) -> Text:
    return Text(status, style=_STATUS_STYLES[JobResultStatus(status)])


def _count(value: int | None) -> Text:
    """Format a count, red if it is positive or unknown."""
    if value is None:
        return Text("?", style="bold red")
    return Text(str(value), style="bold red" if value else "")


# Results by a key of the jobs: success over its values, pooled over all jobs with the same value.

GROUPS_FILE = "results_by.csv"
GROUP_COLUMNS: dict[str, str] = {
    "jobs": "Int64",
    "episodes": "Int64",
    "scored": "Int64",
    "successes": "Int64",
    "success_rate": "Float64",
    "success_low": "Float64",
    "success_high": "Float64",
    "mean_length": "Float64",
    "std_length": "Float64",
    "errors": "Int64",
}
"""Column to type, after one column per key; rates and intervals as in the table of jobs."""


def group_by(merged: MergedResults, keys: Sequence[str]) -> pd.DataFrame:
    """Return one row per combination of the keys' values, over pooled episodes. ConfigError for an unknown key."""
    # Keys such as ``environment``, ``seed``, ``arena_env_args.object``, ``policy_config_dict.speed``,
    # ``variations.cube.mass.sampler_cfg.high``. A job without a key has an empty value.
    settings = {job.name: job_settings(job) for job in merged.plan.jobs if job.is_to_run}
    known = {key for own in settings.values() for key in own}
    problems = [
        Problem(f"no job of this run has '{key}'{did_you_mean(key, known)}", key="--by")
        for key in keys
        if key not in known
    ]
    if problems:
        raise ConfigError(problems)
    members: dict[tuple[Any, ...], list[str]] = {}
    for name, own in settings.items():
        given = (own.get(key) for key in keys)
        values = (each if each is None or isinstance(each, str | int | float) else json.dumps(each) for each in given)
        members.setdefault(tuple(values), []).append(name)
    episodes: dict[str, list[Mapping[Any, Any]]] = {}
    for row in records(merged.episodes):
        episodes.setdefault(str(row["job"]), []).append(row)

    # Sort rows by value: empty ones first, then numbers, then texts.
    def order(value: Any) -> tuple[int, float, str]:
        if isinstance(value, int | float):
            return 1, float(value), ""
        return (0, 0.0, "") if value is None else (2, 0.0, str(value))

    scored = scored_by_job(merged)
    rows = [
        dict(zip(keys, values, strict=True))
        | _counted([row for name in names for row in episodes.get(name, ())], [scored[name] for name in names])
        for values, names in sorted(members.items(), key=lambda item: [order(value) for value in item[0]])
    ]
    repeats = any(row["distinct_conditions"] < row["scored"] for row in rows)
    actions = ACTION_COLUMNS if any(row["saturated_action_share"] is not None for row in rows) else {}
    kinds = GROUP_COLUMNS | (DISTINCT_COLUMNS if repeats else {}) | actions
    columns = {key: pd.Series([row[key] for row in rows], dtype=object) for key in keys}
    counts = {name: pd.array([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()}
    return pd.DataFrame({**columns, **counts})


def job_settings(job: PlanEntry) -> dict[str, Any]:
    """Return the settings of a job under the keys of the job file."""
    settings = {
        "name": job.name,
        "environment": job.config.environment,
        "embodiment": job.embodiment,
        "object": job.object,
        "policy_type": job.config.policy_type,
        "seed": job.config.seed,
        "arena_env_args.environment": job.config.environment,
        "arena_env_args.num_envs": job.config.num_envs,
    }
    nested = {
        "arena_env_args": job.config.environment_args,
        "policy_config_dict": job.policy_config,
        "variations": job.variations,
        "labels": job.config.labels,
    }
    for prefix, mapping in nested.items():
        settings |= {".".join((prefix, *map(str, path))): value for path, value in leaves(mapping)}
    return settings


def write_groups(output_directory: Path, groups: pd.DataFrame) -> Path:
    """Write the table as ``results_by.csv``, over an earlier one, and return its path."""
    path = output_directory / GROUPS_FILE
    write_text(path, csv_text(groups), overwrite=True)
    return path


def groups_table(groups: pd.DataFrame, keys: Sequence[str]) -> Table:
    """Return the groups for a terminal, one line each, with the number of conditions if some repeat."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for key in keys:
        table.add_column(plain(key), overflow="fold")
    different = ["conditions"] if "distinct_conditions" in groups else []
    for heading in ("jobs", "episodes", *different, "successes", "success % [95 %]", f"length {SPREAD}", "errors"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in records(groups):
        values = [Text("-" if row[key] is None else plain(row[key])) for key in keys]
        successes = "-" if row["successes"] is None else str(row["successes"])
        rate = _percent(row["success_rate"], row["success_low"], row["success_high"])
        length = mean_and_spread(row["mean_length"], row["std_length"], ".1f")
        numbers = [str(row["jobs"]), str(row["episodes"]), *([str(row["distinct_conditions"])] if different else [])]
        table.add_row(*values, *numbers, successes, rate, length, str(row["errors"]))
    return table


def _counted(episodes: Sequence[Mapping[Any, Any]], jobs: Sequence[ScoredEpisodes]) -> dict[str, Any]:
    """Return the cells of a group from its episodes, and from the scored ones of each job."""
    kept = [row for row in episodes if row["outcome"] != Outcome.ERROR]
    lengths, scored = [row["length"] for row in kept], together(jobs)
    interval = scored.wilson()
    return {
        "jobs": len(jobs),
        "episodes": len(episodes),
        "scored": len(scored),
        "successes": scored.successes if len(scored) else None,
        "success_rate": scored.rate,
        "success_low": interval.low if interval else None,
        "success_high": interval.high if interval else None,
        "mean_length": sum(lengths) / len(lengths) if lengths else None,
        "std_length": standard_deviation(lengths),
        "errors": len(episodes) - len(kept),
        "distinct_conditions": scored.num_distinct,
        "saturated_action_share": mean_over_steps(
            (row.get("saturated_action_share"), row["length"]) for row in episodes
        ),
    }


# Print the end of a run: the table, failures, missing episodes, and the paths of the files.

_MAX_INDICES_SHOWN = 8
_MAX_OTHERS_SHOWN = 5

MANY_SATURATED = 0.05
"""Share of a job's action entries that lie at or beyond their bounds above which it is said."""

MANY_EARLY_ENDS = 0.2
"""Share of a job's episodes that end in their first step from which on it is said."""


def print_summary(
    merged: MergedResults, output_directory: Path, console: Console, *, report: Path | None = None, last_line: str = ""
) -> None:
    """Print the results of a run. `report` is its page, None without one; `last_line` is the next step for the user."""
    console.print(console_table(merged, console.width))
    hidden = len(merged.jobs) - MAX_JOBS_SHOWN
    if hidden > 0:
        console.print(Text(f"... and {hidden:,} jobs more, all of which are in results.csv"), soft_wrap=True)
    if len(merged.suites):
        console.print(suites_table(merged))
    limit = merged.plan.settings.get("limit")
    if isinstance(limit, int):
        console.print(Text(f"{limit_in_words(limit)}: not the job file's numbers", style="yellow"), soft_wrap=True)
    context = [
        f"suite '{plain(row['name'])}': played {words}"
        for row in records(merged.suites)
        if (words := simulation_in_words(row))
    ]
    answers = [*map(in_words, merged.answers)]
    if answers:
        jobs = ", ".join(dict.fromkeys(job for answer in merged.answers for job in answer.question.jobs))
        answers += [f"intervals of {jobs}: anytime-valid, that is right although the run looked after every episode"]
        if beyond := sum(row["episodes_beyond"] for row in records(merged.jobs)):
            ahead = "episodes had begun before the decision was known; they are kept and do not count"
            answers += [f"{beyond} {ahead}"]
    # Order of the lines: context first, then answers, caveats, failures and defects of the files.
    styled = (
        ("", context),
        ("bold", answers),
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
    """Return the caveats for a reader of the rates, one line each."""
    # Caveats: uncounted episodes with bounds, repeated conditions, saturated actions, episodes that end before the
    # policy can act, and remarks of the ranks.
    lines = [f"* {line}" for answer in merged.answers if (line := what_does_not_count(answer)) is not None]
    lines += [f"* {line}" for line in (*merged.remarks, *_early_ends(merged), *_successes_of_nothing(merged))]
    lines += _caveats_of_suites(merged)
    # Jobs with many action entries at or beyond their bounds, the largest share first.
    jobs = records(merged.jobs)
    shares = [(row.get("saturated_action_share") or 0.0, plain(row["name"])) for row in jobs]
    many = sorted((each for each in shares if each[0] > MANY_SATURATED), key=lambda each: -each[0])
    if many:
        told = ", ".join(f"{100 * share:.0f} % in job '{name}'" for share, name in many[:_MAX_INDICES_SHOWN])
        more = f" and much in {len(many) - _MAX_INDICES_SHOWN} others" if len(many) > _MAX_INDICES_SHOWN else ""
        lines.append(f"* action entries at or beyond their bounds: {told}{more}")
    for known in jobs:
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
            times = "once" if known["rerun"] == 1 else f"{known['rerun']} times"
            lines.append(
                f"* job '{plain(known['name'])}': its episodes ran anew with something else than before (--rerun), "
                f"{times}; those of before do not count and are in set_aside/"
            )
        if told := repeats_in_words(known):
            lines.append(f"* job '{plain(known['name'])}': {told}")
        if known["success_rate"] is None:
            continue
        name, low, high = plain(known["name"]), known["success_rate_lower_bound"], known["success_rate_upper_bound"]
        if known["cut"] and known["planned"] is None:
            lines.append(
                f"* job '{name}': {known['cut']} episodes were under way at its last step and do not count; "
                "those that finished are the short ones, so the rate may be biased"
            )
        if (known["errors"] or known["missing"]) and low is not None and high is not None:
            lines.append(f"* job '{name}': {_with_bounds(known, 'the rate', low, high)}")
    return lines


def _with_bounds(row: Mapping[str, Any], rate: str, low: float, high: float) -> str:
    """Return the number of uncounted episodes in words, with the bounds of the rate."""
    left_out = f"{row['errors']} errors and {row['missing'] or 0} missing episodes"
    bounds = f"{100 * low:.1f} % if they are counted as failures, {100 * high:.1f} % as successes"
    return f"{left_out} do not count; {rate} is {bounds}"


def _early_ends(merged: MergedResults) -> Iterator[str]:
    """Yield the jobs with many episodes that end before or at the first action of their policy."""
    ended, solved, first = Counter[str](), Counter[str](), Counter[str]()
    episodes = merged.episodes
    # An episode without measured success has no outcome.
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
    """Yield the environments in which a policy without actions succeeds, if one was run."""
    rows, alike = {row["name"]: row for row in records(merged.jobs)}, defaultdict[str, list[JobConfig]](list)
    # Jobs are grouped by environment and arguments, to name the jobs whose rates this puts into perspective.
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


def _caveats_of_suites(merged: MergedResults) -> Iterator[str]:
    """Yield the suites with uncounted episodes or repeated conditions, and those without a mean."""
    for row in records(merged.suites):
        name = plain(row["name"])
        if row["mean_rate"] is None and row["scored"]:
            yield f"* suite '{name}': not every task has an episode that says whether it succeeded, so there is no mean"
        elif row["mean_rate"] is not None and (row["errors"] or row["missing"]) and row["mean_lower_bound"] is not None:
            low, high = row["mean_lower_bound"], row["mean_upper_bound"]
            yield f"* suite '{name}': {_with_bounds(row, 'the mean of its tasks', low, high)}"
        if told := repeats_in_words(row):
            yield f"* suite '{name}': {told}"


def failures(merged: MergedResults) -> list[str]:
    """Return one line per failed job: its error, its rank, and the file with the traceback."""
    lines = []
    for row in records(merged.jobs):
        if JobResultStatus(row["status"]) is not JobResultStatus.FAILED:
            continue
        cause = "no report" if row["error"] is None else plain(row["error"])
        if row["traceback_file"] is not None:
            cause += f" (traceback in {plain(row['traceback_file'])})"
        elif row["errors"]:
            cause += " (--resume --retry_errors plays them again)"
        lines.append(f"failed: job '{plain(row['name'])}' on rank {row['rank']}: {cause}")
    return lines


def describe_missing(missing: MissingEpisodes) -> str:
    """Return one line on the missing episodes of a job, with its rank."""
    rank = "" if missing.rank is None else f" on rank {missing.rank}"
    where = f"job '{plain(missing.job)}'{rank}"
    if not missing.episode_indices:
        return f"incomplete: {where} is {missing.status}"
    count = len(missing.episode_indices)
    shown = ", ".join(map(str, missing.episode_indices[:_MAX_INDICES_SHOWN]))
    more = ", …" if count > _MAX_INDICES_SHOWN else ""
    return f"missing: {where} lacks {count} episode{'s' if count > 1 else ''} ({shown}{more}); it is {missing.status}"
