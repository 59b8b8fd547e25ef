"""The one row of a whole suite: the mean of its tasks' rates, each weighing the same, and all episodes together.

What decides the numbers of benchmarks beside the policy is told for suites and for single jobs alike.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.results.clusters import ScoredEpisodes, mean_of_tasks, together
from isaaclab_arena.results.columns import (
    ACTION_COLUMNS,
    BENCHMARK_COLUMNS,
    DISTINCT_COLUMNS,
    SIMULATION_COLUMNS,
    SUITE_COLUMNS,
)
from isaaclab_arena.results.rows import JobEvidence, job_row, saturated_share
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.job_reports import Reproducible
from isaaclab_arena.storage.run.job_standing import JobResultStatus


def suite_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return column to type of the table that rows of suites make."""
    simulation: dict[str, str] = {}
    if any("environment_sha256" in row for row in rows):
        simulation = BENCHMARK_COLUMNS
    elif any(row["protocol"] is not None or row["engine"] is not None for row in rows):
        simulation = SIMULATION_COLUMNS
    repeats = any(row["distinct_conditions"] < row["scored"] for row in rows)
    actions = ACTION_COLUMNS if any(row["saturated_action_share"] is not None for row in rows) else {}
    return SUITE_COLUMNS | simulation | (DISTINCT_COLUMNS if repeats else {}) | actions


def suite_rows(evidence: Sequence[JobEvidence]) -> list[dict[str, Any]]:
    """Return one row per suite of the plan, in its order.

    Args:
        evidence: What the disk says of every job of the plan; those that are in no suite are left out.

    Returns:
        The columns `SUITE_COLUMNS`, `SIMULATION_COLUMNS` or `BENCHMARK_COLUMNS`, `DISTINCT_COLUMNS` and
        `ACTION_COLUMNS`.
    """
    members: dict[str, list[JobEvidence]] = {}
    for each in evidence:
        if each.job.config.suite is not None:
            members.setdefault(each.job.config.suite.name, []).append(each)
    return [_row(name, jobs) for name, jobs in members.items()]


def benchmark_cells(jobs: Sequence[JobEvidence]) -> dict[str, str | None]:
    """Return what decides the numbers of jobs beside their policy; nothing for environments of this package.

    Args:
        jobs: One job, or the tasks of a suite. Where they, or ranks and attempts of one, say different things, all of
            these are told.

    Returns:
        The columns `BENCHMARK_COLUMNS`.
    """
    if not any(map(_is_of_another_package, _told(jobs))):
        return {}
    hashes = [UNKNOWN if job.contents is None else job.contents.environment_sha256 for job in jobs]
    return {**_simulation(jobs), "environment_sha256": _together({each for each in hashes if each is not None})}


def simulation_in_words(row: Mapping[str, Any]) -> str:
    """Return by which protocol and on which engine a suite was played, nothing where its row says neither."""
    protocol, engine = row.get("protocol"), row.get("engine")
    words = [f"by protocol {protocol}"] if protocol else []
    return " ".join([*words, *([f"on {engine}"] if engine else [])])


def _row(name: str, jobs: Sequence[JobEvidence]) -> dict[str, Any]:
    rows = [job_row(job) for job in jobs]
    first = jobs[0].job.config
    return {
        "name": name,
        "suite": None if first.suite is None else first.suite.suite,
        "policy": first.policy_type,
        "checkpoint": _common(rows, "checkpoint", otherwise=None),
        "policy_sha256": _common(rows, "policy_sha256", otherwise=UNKNOWN),
        "seed": first.seed,
        "status": str(_status({JobResultStatus(row["status"]) for row in rows})),
        "tasks": len(rows),
        **{key: _sum(rows, key) for key in ("planned", "episodes", "errors", "missing", "cut")},
        **_rates([job.scored for job in jobs]),
        **_bounds(rows),
        "reproducible": _weakest_promise(rows),
        **(benchmark_cells(jobs) or _simulation(jobs)),
        "saturated_action_share": saturated_share(
            (line.saturated_action_share, line.episode_length) for job in jobs for line in job.lines
        ),
    }


def _rates(tasks: Sequence[ScoredEpisodes]) -> dict[str, Any]:
    """Return both rates. There is no mean of the tasks before each of them has one: it would be that of others."""
    everything, interval = together(tasks), mean_of_tasks(tasks)
    pooled = everything.wilson()
    known = [task.rate for task in tasks if task.rate is not None]
    return {
        "scored": len(everything),
        "successes": everything.successes if len(everything) else None,
        "mean_rate": sum(known) / len(known) if len(known) == len(tasks) else None,
        "mean_low": interval.low if interval else None,
        "mean_high": interval.high if interval else None,
        "pooled_rate": everything.rate,
        "pooled_low": pooled.low if pooled else None,
        "pooled_high": pooled.high if pooled else None,
        "distinct_conditions": everything.num_distinct,
    }


def _bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean of the tasks if every error and missing episode had failed, and if each had succeeded."""
    bounds: dict[str, float | None] = {}
    for side in ("lower", "upper"):
        total = _sum(rows, f"success_rate_{side}_bound")
        bounds[f"mean_{side}_bound"] = None if total is None else total / len(rows)
    return bounds


def _simulation(jobs: Sequence[JobEvidence]) -> dict[str, str | None]:
    """Return what decides the numbers beside the policy: `SIMULATION_COLUMNS`."""
    told = _told(jobs)
    names = sorted({name for each in told for name in each} - {"environment"})
    found = {name: sorted({each.get(name) for each in told}, key=str) for name in names}
    named = {
        name: " | ".join(each or "nothing" for each in found[name]) if name in found else None
        for name in ("protocol", "engine")
    }
    if not any(map(_is_of_another_package, told)) and named == {"protocol": None, "engine": None}:
        return {**named, "simulated_by": None}
    rest = {name: values[0] if len(values) == 1 else values for name, values in found.items() if name not in named}
    return {**named, "simulated_by": json_line(rest)}


def _together(hashes: set[str]) -> str | None:
    """Return one hash for those of all tasks, which is that of a job where there is one."""
    if len(hashes) < 2 or UNKNOWN in hashes:
        return UNKNOWN if UNKNOWN in hashes else next(iter(hashes), None)
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()


def _told(jobs: Sequence[JobEvidence]) -> list[Mapping[str, str]]:
    return [report.simulated_by for job in jobs for report in job.reports if report.simulated_by is not None]


def _is_of_another_package(told: Mapping[str, str]) -> bool:
    # Environments of this package run on its own versions, which the plan has; others name their interpreter's.
    return "python" in told


def _status(statuses: set[JobResultStatus]) -> JobResultStatus:
    if len(statuses) == 1:
        return next(iter(statuses))
    return JobResultStatus.FAILED if JobResultStatus.FAILED in statuses else JobResultStatus.INTERRUPTED


def _weakest_promise(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the weakest of what is promised of the tasks, None while one of them has promised nothing."""
    promises = {row.get("reproducible") for row in rows}
    if None in promises:
        return None
    return str(Reproducible.PLAN if Reproducible.PLAN in promises else Reproducible.BITWISE)


def _common(rows: Sequence[Mapping[str, Any]], key: str, *, otherwise: str | None) -> Any:
    values = {row[key] for row in rows}
    return values.pop() if len(values) == 1 else otherwise


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Return a sum over the tasks, None where one of them is not known."""
    known = [row[key] for row in rows if row.get(key) is not None]
    return sum(known) if len(known) == len(rows) else None
