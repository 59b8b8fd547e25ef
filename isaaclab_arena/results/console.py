"""The merged results in a terminal: the table, groups of jobs, and the end of a run."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from isaaclab_arena.results import rows as evidence
from isaaclab_arena.results.columns import GROUPS, JOBS, PREFIX, SUITES, Column, Show, table_of, text_table
from isaaclab_arena.results.merge import MissingEpisodes, Tables, records, scored_in
from isaaclab_arena.results.statistics import together
from isaaclab_arena.results.stopping import in_words, what_does_not_count
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.ledger import JobResultStatus, PlanEntry

MAX_JOBS_SHOWN = 200
"""More lines than a person reads; their layout would take longer than all the other tables."""

_NAMES, _LAST = ("name", "environment", "policy"), ("errors", "missing", "env_steps_per_s", "rank", "status")
_DIFFERING = ("object", "embodiment", "checkpoint")  # shown beside the names of jobs of one environment that differ
_ALWAYS_SHOWN = {"name", "episodes", "success_rate", "errors", "missing", "status"}
_LEFT_OUT = ("rank", "env_steps_per_s", "queries_per_s", "measured_latency_p50_ms", "stale_action_share",
             "mean_return", "environment", "mean_length", *_DIFFERING, PREFIX, "policy")  # fmt: skip
_STATUS_STYLES = {
    JobResultStatus.COMPLETED: "green",
    JobResultStatus.FAILED: "bold red",
    JobResultStatus.INTERRUPTED: "yellow",
    JobResultStatus.MISSING: "bold red",
    JobResultStatus.SKIPPED: "dim",
}


def console_table(merged: Tables, width: int = 160) -> Table:
    """Return one line per job, up to `MAX_JOBS_SHOWN`: the task, success with its 95 % interval, and errors."""
    # Names come first, then the keys that differ: those that a job sweeps, and what it evaluates.
    rows = merged.rows[:MAX_JOBS_SHOWN]
    columns = [each for each in JOBS if Show.CONSOLE in each.show and each.name in merged.jobs]
    of_jobs = {each.name: (each.heading, [_cell(each, row) for row in rows]) for each in columns}
    shown = {name: of_jobs[name] for name in _NAMES}
    # A job that does not sweep a key has a value of its own there.
    of_job = {job.name: {**job_settings(job), **job.config.swept} for job in merged.plan.jobs}
    keys = dict.fromkeys(key for job in merged.plan.jobs for key in job.config.swept)
    keys = {key: key.rpartition(".")[2] for key in keys if key not in {"policy_type", "arena_env_args.environment"}}
    names = [*keys.values()]
    keys |= {key: key for key in _DIFFERING if key not in names}
    for key, leaf in keys.items():
        values = (of_job[row["name"]].get(key, row[leaf] if leaf in _DIFFERING else None) for row in rows)
        texts = (value if isinstance(value, str) else "-" if value is None else json.dumps(value) for value in values)
        cells = [plain(shortened(text, 60)) for text in texts]
        # The environment already tells jobs of different ones apart.
        groups = defaultdict[str | None, set[str]](set)
        for row, cell in zip(rows, cells, strict=True):
            groups[row["environment"] if key in _DIFFERING else None].add(cell)
        if any(len(group) > 1 for group in groups.values()):
            heading = plain(leaf if names.count(leaf) < 2 else key)
            shown[key if key in _DIFFERING else PREFIX + key] = heading, [*map(Text, cells)]
    shown |= {name: cells for name, cells in of_jobs.items() if name not in (*_NAMES, *_LAST)}
    shown |= {name: of_jobs[name] for name in _LAST}

    # If a line does not fit the width [characters], the least important columns are left out. Without any success rate,
    # returns are the only values to compare.
    measured = [row["success_rate"] is not None for row in rows if row["episodes"]]
    stays = _ALWAYS_SHOWN | (set() if all(measured) else {"mean_return"})
    if measured and not any(measured):
        stays -= {"success_rate"}

    order = {name: at for at, name in enumerate(_LEFT_OUT)}
    optional = (name for name in shown if name not in stays)
    widths = {
        name: max(len(heading), *(cell.cell_len for cell in cells), 0) for name, (heading, cells) in shown.items()
    }
    for name in sorted(optional, key=lambda name: order.get(PREFIX if name.startswith(PREFIX) else name, -1)):
        if sum(widths[each] + 1 for each in shown) - 1 <= width:
            break
        del shown[name]

    return _by_columns(shown)


def chosen_table(merged: Tables, names: Sequence[str]) -> Table:
    """Return one line per job with its name and these columns, which may be metrics. ConfigError for an unknown one."""
    metrics = {(row["metric"], row["job"]): evidence.metric_in_words(row) for row in records(merged.metrics)}
    known = {*map(str, merged.jobs.columns), *(metric for metric, _ in metrics)}
    problems = [
        Problem(f"there is no column or metric '{name}'{did_you_mean(name, known)}", key="--columns")
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    columns = {each.name: each for each in JOBS}
    shown: dict[str, tuple[str, list[Text]]] = {}
    for name in dict.fromkeys(("name", *names)):
        column = columns.get(name, Column(name, "string", str))
        if name in merged.jobs:
            cells = [_cell(column, row) for row in merged.rows[:MAX_JOBS_SHOWN]]
        else:
            cells = [Text(plain(metrics.get((name, row["name"]), "-"))) for row in merged.rows[:MAX_JOBS_SHOWN]]
        shown[name] = column.heading, cells
    return _by_columns(shown)


def _by_columns(shown: Mapping[str, tuple[str, Sequence[Text]]], *, names: Collection[str] = _NAMES) -> Table:
    """Return a table of headings and cells by column, of which those of `names` fold."""
    rows = zip(*(cells for _, cells in shown.values()), strict=True)
    table = pd.DataFrame([*rows], columns=[heading for heading, _ in shown.values()])
    return drawn(table, names=[heading for name, (heading, _) in shown.items() if name in names])


def drawn(table: pd.DataFrame, *, names: Collection[str] | None = None) -> Table:
    """Return a table of text for a terminal. Only columns of `names` fold; None folds all and puts the first left."""
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for at, heading in enumerate(table.columns):
        is_left = at == 0 if names is None else heading in (*names, "status")
        justify, is_whole = "left" if is_left else "right", names is not None and heading not in names
        shown.add_column(Text(plain(heading)), justify=justify, overflow="fold", no_wrap=is_whole)
    for cells in table.to_numpy().tolist():
        shown.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in cells))
    return shown


def _cell(column: Column[Any], row: Mapping[str, Any]) -> Text:
    """Return a cell of the table of jobs or suites in its style."""
    value, text = row[column.name], column.text(row)
    match column.name:
        case "name":
            return Text(text, style="bold")
        case "success_rate" | "mean_rate" | "pooled_rate":
            # A star marks a rate that leaves out episodes which started or were planned. Those of a suite have it if
            # there is a mean.
            is_known = None not in (value, row.get("mean_rate", value))
            return Text(text + ("*" if is_known and (row["errors"] or row["missing"] or row["cut"]) else ""))
        case "errors" | "missing":
            # Red if it is positive or unknown.
            return Text("?" if value is None else text, style="" if value == 0 else "bold red")
        case "status":
            return Text(text, style=_STATUS_STYLES[JobResultStatus(value)])
    return Text(text)


# Results by a key of the jobs: success over its values, pooled over all jobs with the same value.

GROUPS_FILE = "results_by.csv"


def group_by(merged: Tables, keys: Sequence[str]) -> pd.DataFrame:
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

    # Sort rows by value: empty ones first, then numbers, then texts.
    order = [
        [(0, 0, "") if each is None else (2, 0, each) if isinstance(each, str) else (1, each, "") for each in values]
        for values in members
    ]
    groups = [group for _, group in sorted(zip(order, members.items(), strict=True), key=lambda item: item[0])]
    pooled = []
    for _, names in groups:
        episodes = pd.concat([merged.episodes_of[name] for name in names])
        lengths, is_error = episodes["length"].tolist(), (episodes["outcome"] == Outcome.ERROR).fillna(value=False)
        shares = (
            episodes["saturated_action_share"].to_numpy(object, na_value=None)
            if "saturated_action_share" in episodes
            else ()
        )
        pooled.append(
            evidence.PooledJobs(
                jobs=len(names),
                episodes=len(episodes),
                errors=is_error.tolist().count(True),
                lengths=[length for length, left_out in zip(lengths, is_error, strict=True) if not left_out],
                scored=together([scored_in(merged.episodes_of[name]) for name in names]),
                saturated=evidence.mean_over_steps(zip(shares, lengths, strict=False)),
            )
        )
    columns = {key: pd.Series([values[at] for values, _ in groups], dtype=object) for at, key in enumerate(keys)}
    return pd.concat([pd.DataFrame(columns), table_of(GROUPS, pooled)], axis="columns")


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


def groups_table(groups: pd.DataFrame, keys: Sequence[str]) -> Table:
    """Return the groups for a terminal, one line each, with the number of conditions if some repeat."""
    order = ("jobs", "episodes", "distinct_conditions", "successes", "success_rate", "mean_length", "errors")
    columns = [Column[Any](key, "object", str) for key in keys]
    columns += [each for name in order for each in GROUPS if each.name == name and name in groups]
    return drawn(text_table(columns, records(groups)), names=keys)


_MAX_INDICES_SHOWN = 8
_MAX_OTHERS_SHOWN = 5

MANY_SATURATED = 0.15
"""Share of action entries at or beyond their bounds; a job with failures and more than this has a caveat.

A gripper that is open or shut is always at its bound, which is one entry of seven or eight."""

MANY_EARLY_ENDS = 0.2
"""Share of a job's episodes that end in their first step; from it on there is a caveat."""


def print_summary(
    merged: Tables,
    output_directory: Path,
    console: Console,
    *,
    report: Path | None = None,  # the page of the run, None without one
    last_line: str = "",  # the next step for the user
    columns: Sequence[str] = (),  # see `chosen_table`; the usual ones if empty
) -> None:
    """Print the results of a run."""
    console.print(chosen_table(merged, columns) if columns else console_table(merged, console.width))
    hidden = len(merged.jobs) - MAX_JOBS_SHOWN
    if hidden > 0:
        console.print(Text(f"... and {hidden:,} more jobs, all in results.csv"), soft_wrap=True)
    if len(merged.suites):
        # One line per suite: the mean of its tasks, the rate over all episodes, and errors.
        of_suites = [each for each in SUITES if Show.CONSOLE in each.show]
        of_suites.sort(key=lambda each: _LAST.index(each.name) if each.name in _LAST else -1)
        rows = records(merged.suites)
        cells = {each.name: (each.heading, [_cell(each, row) for row in rows]) for each in of_suites}
        console.print(_by_columns(cells, names=("name", "suite")))
    limit = merged.plan.settings.get("limit")
    context = [
        f"suite '{plain(row['name'])}': played {words}"
        for row in records(merged.suites)
        if (words := evidence.simulation_in_words(row))
    ]
    answers = [*map(in_words, merged.answers)]
    if answers:
        jobs = ", ".join(dict.fromkeys(arm for answer in merged.answers for arm in answer.question.sides))
        answers += [f"intervals of {jobs} are anytime-valid: they hold although the run looked after every episode"]
        if beyond := sum(row["episodes_beyond"] for row in merged.rows):
            ahead = "episodes had begun before the decision was known; they are kept and do not count"
            answers += [f"{beyond} {ahead}"]
    failures = [
        f"failed: job '{plain(row['name'])}' on rank {row['rank']}: "
        + ("no report" if row["error"] is None else plain(row["error"]))
        + (
            f" (traceback in {plain(row['traceback_file'])})"
            if row["traceback_file"] is not None
            else " (resume with --retry_errors runs them again)"
            if row["errors"]
            else ""
        )
        for row in merged.rows
        if JobResultStatus(row["status"]) is JobResultStatus.FAILED
    ]
    # Order of the lines: context first, then answers, caveats, failures, defects of the files, and places.
    styled = (
        ("yellow", [f"{limit_in_words(limit)}, not as many as the job file has"] if isinstance(limit, int) else []),
        ("", context),
        ("bold", answers),
        ("yellow", caveats(merged)),
        ("red", [*failures, *map(describe_missing, merged.missing)]),
        ("yellow", merged.problems),
        ("", [f"results in {output_directory}", *([] if report is None else [f"report in {report}"])]),
        ("bold", [last_line] if last_line else []),
    )
    for style, lines in styled:
        for line in lines:
            console.print(Text(plain(line), style=style), soft_wrap=True)


def caveats(merged: Tables) -> list[str]:
    """Return the caveats for a reader of the rates, one line each."""
    # Caveats: uncounted episodes with bounds, repeated conditions, saturated actions, episodes that end before the
    # policy can act, and remarks of the ranks.
    lines = [f"* {line}" for answer in merged.answers if (line := what_does_not_count(answer)) is not None]
    lines += [f"* {line}" for line in (*merged.remarks, *_early_ends(merged))]
    # Environments in which a policy without actions succeeds. Jobs are grouped by environment and arguments, to name
    # those whose rates this puts into perspective.
    rows, alike = {row["name"]: row for row in merged.rows}, defaultdict[str, list[JobConfig]](list)
    for config in (entry.config for entry in merged.plan.jobs):
        alike[json_line((config.environment, config.environment_args))].append(config)
    for configs in alike.values():
        does_nothing = {each.name: each.policy_type.endswith(("zero_action", "ZeroActionPolicy")) for each in configs}
        others = [plain(name) for name, is_idle in does_nothing.items() if not is_idle]
        more = f" and {len(others) - _MAX_OTHERS_SHOWN} others" if len(others) > _MAX_OTHERS_SHOWN else ""
        beside = f"; compare the rates of {', '.join(others[:_MAX_OTHERS_SHOWN])}{more} with that" if others else ""
        lines += [
            f"* job '{plain(name)}': a policy that does nothing succeeds in {rows[name]['successes']} of "
            f"{rows[name]['episodes']} episodes of its environment{beside}"
            for name, is_idle in does_nothing.items()
            if is_idle and rows[name]["successes"]
        ]
    lines += _caveats_of_suites(merged)
    # Jobs with failures and many action entries at or beyond their bounds, the largest share first.
    failing = (row for row in merged.rows if row["success_rate"] != 1.0)
    shares = [(row.get("saturated_action_share") or 0.0, plain(row["name"])) for row in failing]
    many = sorted((each for each in shares if each[0] > MANY_SATURATED), key=lambda each: -each[0])
    if many:
        told = ", ".join(f"{100 * share:.0f} % in job '{name}'" for share, name in many[:_MAX_INDICES_SHOWN])
        more = f" and many in {len(many) - _MAX_INDICES_SHOWN} others" if len(many) > _MAX_INDICES_SHOWN else ""
        lines.append(f"* actions at or beyond their bounds, often a sign of wrong units: {told}{more}")
    for known in merged.rows:
        if JobResultStatus(known["status"]) is JobResultStatus.COMPLETED and not known["episodes"] and known["cut"]:
            lines.append(
                f"* job '{plain(known['name'])}': no episode ended within its control steps, so there is no success "
                f"rate; {known['cut']} were running: give more steps, or num_episodes"
            )
        if known["retried"]:
            lines.append(
                f"* job '{plain(known['name'])}': {known['retried']} episodes count that ended in an error at first "
                "and ran again (--retry_errors); a random failure gets another chance that way"
            )
        if known["rerun"]:
            times = "once" if known["rerun"] == 1 else f"{known['rerun']} times"
            lines.append(
                f"* job '{plain(known['name'])}': its episodes ran again after a change (--rerun), {times}; the "
                "earlier ones are in set_aside/ and do not count"
            )
        if told := evidence.repeats_in_words(known):
            lines.append(f"* job '{plain(known['name'])}': {told}")
        if known["success_rate"] is None:
            continue
        name, low, high = plain(known["name"]), known["success_rate_lower_bound"], known["success_rate_upper_bound"]
        if known["cut"] and known["planned"] is None:
            lines.append(
                f"* job '{name}': {known['cut']} episodes were running at its last step and do not count; the "
                "finished ones are the shorter ones, so the rate may be biased"
            )
        if (known["errors"] or known["missing"]) and low is not None and high is not None:
            lines.append(f"* job '{name}': {_with_bounds(known, 'the rate', low, high)}")
    return lines


def _with_bounds(row: Mapping[str, Any], rate: str, low: float, high: float) -> str:
    """Return the number of uncounted episodes in words, with the bounds of the rate."""
    left_out = f"{row['errors']} errors and {row['missing'] or 0} missing episodes"
    return f"{left_out} do not count; with them, {rate} lies between {100 * low:.1f} % and {100 * high:.1f} %"


def _early_ends(merged: Tables) -> Iterator[str]:
    """Yield the jobs with many episodes that end before or at the first action of their policy."""
    episodes = merged.episodes
    # An episode without measured success has no outcome.
    is_first = (episodes["outcome"].fillna("") != Outcome.ERROR) & (episodes["length"] <= 1)
    ends = pd.DataFrame({"solved": episodes["termination"] == SOLVED_AT_START, "first": is_first, "all": True})
    by_job = pd.DataFrame(ends.groupby(episodes["job"], sort=False).sum())
    for job, solved, first, number in by_job.itertuples():
        if solved:
            yield (
                f"job '{plain(job)}': {solved} of {number} episodes were solved at their start; these are errors of "
                "the task, not of the policy"
            )
        if first >= MANY_EARLY_ENDS * number:
            yield f"job '{plain(job)}': {first} of {number} episodes ended in their first step"


def _caveats_of_suites(merged: Tables) -> Iterator[str]:
    """Yield the suites with uncounted episodes or repeated conditions, and those without a mean."""
    for row in records(merged.suites):
        name = plain(row["name"])
        if row["mean_rate"] is None and row["scored"]:
            yield f"* suite '{name}': some tasks have no episode with a known outcome, so there is no mean"
        elif row["mean_rate"] is not None and (row["errors"] or row["missing"]) and row["mean_lower_bound"] is not None:
            low, high = row["mean_lower_bound"], row["mean_upper_bound"]
            yield f"* suite '{name}': {_with_bounds(row, 'the mean of its tasks', low, high)}"
        if told := evidence.repeats_in_words(row):
            yield f"* suite '{name}': {told}"


def describe_missing(missing: MissingEpisodes) -> str:
    """Return one line on the missing episodes of a job, with its rank."""
    rank = "" if missing.rank is None else f" on rank {missing.rank}"
    job, state = f"job '{plain(missing.job)}'{rank}", missing.status.in_words
    if not missing.episode_indices:
        return f"incomplete: {job} {state}"
    number = len(missing.episode_indices)
    shown = ", ".join(map(str, missing.episode_indices[:_MAX_INDICES_SHOWN]))
    more = ", …" if number > _MAX_INDICES_SHOWN else ""
    return f"missing: {job} lacks {number} episode{'s' if number > 1 else ''} ({shown}{more}); it {state}"
