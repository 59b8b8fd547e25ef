"""Results by a key of the jobs: what success does as something grows, over all jobs that have the same value."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import plain_text as plain
from isaaclab_arena.nested import leaves
from isaaclab_arena.results.clusters import ScoredEpisodes, together
from isaaclab_arena.results.columns import ACTION_COLUMNS, DISTINCT_COLUMNS
from isaaclab_arena.results.merge import MergedResults, records, scored_by_job
from isaaclab_arena.results.result_files import csv_text
from isaaclab_arena.results.rows import saturated_share
from isaaclab_arena.results.statistics import standard_deviation
from isaaclab_arena.results.table import SPREAD, mean_and_spread
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.run.run_plan import PlanEntry

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
    """Return one row per combination of values, pooling the episodes of all jobs that have it.

    Args:
        merged: The results.
        keys: Keys of jobs: ``environment``, ``seed``, ``arena_env_args.object``, ``policy_config_dict.speed``,
            ``variations.cube.mass.sampler_cfg.high``. A job without one of them has an empty value there.

    Returns:
        The keys, then `GROUP_COLUMNS`, `DISTINCT_COLUMNS` where conditions repeat within a row, and `ACTION_COLUMNS`
        where actions have bounds; rows in the order of their values, numbers by size.

    Raises:
        ConfigError: If no job has a key.
    """
    settings = {job.name: job_settings(job) for job in merged.plan.jobs if job.is_to_run}
    _check(keys, settings)
    members: dict[tuple[Any, ...], list[str]] = {}
    for name, own in settings.items():
        members.setdefault(tuple(_scalar(own.get(key)) for key in keys), []).append(name)
    episodes: dict[str, list[Mapping[Any, Any]]] = {}
    for row in records(merged.episodes):
        episodes.setdefault(str(row["job"]), []).append(row)
    scored = scored_by_job(merged)
    rows = [
        dict(zip(keys, values, strict=True))
        | _counted([row for name in names for row in episodes.get(name, ())], [scored[name] for name in names])
        for values, names in sorted(members.items(), key=lambda item: [_order(value) for value in item[0]])
    ]
    repeats = any(row["distinct_conditions"] < row["scored"] for row in rows)
    actions = ACTION_COLUMNS if any(row["saturated_action_share"] is not None for row in rows) else {}
    kinds = GROUP_COLUMNS | (DISTINCT_COLUMNS if repeats else {}) | actions
    columns = {key: pd.Series([row[key] for row in rows], dtype=object) for key in keys}
    counts = {name: pd.array([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()}
    return pd.DataFrame({**columns, **counts})


def job_settings(job: PlanEntry) -> dict[str, Any]:
    """Return what a job was, under the keys of the job file."""
    return {
        "name": job.name,
        "environment": job.config.environment,
        "embodiment": job.embodiment,
        "object": job.object,
        "policy_type": job.config.policy_type,
        "seed": job.config.seed,
        "arena_env_args.environment": job.config.environment,
        "arena_env_args.num_envs": job.config.num_envs,
        **_flat("arena_env_args", job.config.environment_args),
        **_flat("policy_config_dict", job.policy_config),
        **_flat("variations", job.variations),
        **_flat("labels", job.config.labels),
    }


def write_groups(output_directory: Path, groups: pd.DataFrame) -> Path:
    """Write the table as ``results_by.csv``, over an earlier one, and return its path.

    Raises:
        StorageError: If it cannot be written.
    """
    path = output_directory / GROUPS_FILE
    write_text(path, csv_text(groups), overwrite=True)
    return path


def groups_table(groups: pd.DataFrame, keys: Sequence[str]) -> Table:
    """Return the groups for a terminal, one line each, with the number of conditions where some repeat."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for key in keys:
        table.add_column(plain(key), overflow="fold")
    different = ["conditions"] if "distinct_conditions" in groups else []
    for heading in ("jobs", "episodes", *different, "successes", "success % [95 %]", f"length {SPREAD}", "errors"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in records(groups):
        values = [Text("-" if row[key] is None else plain(row[key])) for key in keys]
        rate = "-"
        if row["success_rate"] is not None:
            share, low, high = (100 * row[name] for name in ("success_rate", "success_low", "success_high"))
            rate = f"{share:.1f} [{low:.1f}, {high:.1f}]"
        length = mean_and_spread(row["mean_length"], row["std_length"], ".1f")
        numbers = [str(row["jobs"]), str(row["episodes"]), *([str(row["distinct_conditions"])] if different else [])]
        table.add_row(*values, *numbers, _count_in_words(row["successes"]), rate, length, str(row["errors"]))
    return table


def _count_in_words(value: Any) -> str:
    return "-" if value is None else str(value)


def _flat(prefix: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {".".join((prefix, *map(str, path))): value for path, value in leaves(mapping)}


def _check(keys: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> None:
    known = {key for own in settings.values() for key in own}
    problems = [
        Problem(f"no job of this run has '{key}'{did_you_mean(key, known)}", key="--by")
        for key in keys
        if key not in known
    ]
    if problems:
        raise ConfigError(problems)


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


def _counted(episodes: Sequence[Mapping[Any, Any]], jobs: Sequence[ScoredEpisodes]) -> dict[str, Any]:
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
        "saturated_action_share": saturated_share(
            (row.get("saturated_action_share"), row["length"]) for row in episodes
        ),
    }
