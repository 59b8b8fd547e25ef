"""Read the results of a run from its own tables, which takes a third of the time of merging them again."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from isaaclab_arena.errors import DamagedFileError, StorageError, first_line
from isaaclab_arena.results.columns import (
    ACTION_COLUMNS,
    BENCHMARK_COLUMNS,
    DISTINCT_COLUMNS,
    EPISODE_COLUMNS,
    EPISODE_TIMING_COLUMNS,
    EVENT_EPISODE_COLUMNS,
    EVENT_JOB_COLUMNS,
    JOB_COLUMNS,
    JOB_TIMING_COLUMNS,
    LATENCY_JOB_COLUMNS,
    LATENCY_JOB_TIMING_COLUMNS,
    SERVER_JOB_TIMING_COLUMNS,
    START_COLUMNS,
    SUITE_COLUMNS,
)
from isaaclab_arena.results.freshness import TABLE, tables_are_current
from isaaclab_arena.results.merge import MergedResults, MissingEpisodes, typed_table
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.storage.atomic import check_plain, storage_errors
from isaaclab_arena.storage.json_values import read_json
from isaaclab_arena.storage.run.job_standing import JobResultStatus
from isaaclab_arena.storage.run.run_plan import RunPlan, read_run_plan


def stored_results(output_directory: Path) -> MergedResults | None:
    """Return what `merge_results` gives, from tables that are up to date.

    Args:
        output_directory: The directory that holds ``run.json``.

    Returns:
        The results; None where only a merge gives them: the tables are missing, old, damaged or of another version of
        this program, or questions were asked of the jobs.

    Raises:
        ConfigError: If the directory is no output of a run.
    """
    plan = read_run_plan(output_directory)
    if plan.questions or not tables_are_current(output_directory):
        return None
    try:
        return _read(output_directory, plan)
    except (StorageError, ValueError, KeyError, TypeError):
        # Tables can be rebuilt, so a damaged one is no reason to give up.
        return None


def read_table(path: Path, columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()) -> pd.DataFrame:
    """Return a table of a run from its Parquet file.

    Args:
        path: The file.
        columns: The columns to read; None for all.
        optional: Columns to read beside them if there are some of that name.

    Raises:
        DamagedFileError: If it is no such table, or lacks a column.
        StorageError: If it is absent or cannot be read.
    """
    check_plain(path)
    with storage_errors("read", path):
        try:
            there = set(read_schema(path).names) if optional else set()
            wanted = None if columns is None else [*columns, *(name for name in optional if name in there)]
            return pd.read_parquet(path, columns=wanted)
        except (ArrowException, ValueError, KeyError) as error:
            raise DamagedFileError(f"cannot read {path}: {first_line(error)}") from error


def _read(output_directory: Path, plan: RunPlan) -> MergedResults:
    document: Mapping[str, Any] = read_json(output_directory / TABLE)
    results, timing, episodes, episode_timing = (
        read_table(output_directory / f"{name}.parquet") for name in ("results", "timing", "episodes", "episode_timing")
    )
    jobs = _jobs(results, timing)
    # A run without suites has no table of them; one that lies there is from another time.
    has_suites = "suites" in document
    suites = read_table(output_directory / "suites.parquet") if has_suites else typed_table((), SUITE_COLUMNS)
    return MergedResults(
        plan=plan,
        jobs=jobs,
        suites=pd.concat(
            [
                suites[[*SUITE_COLUMNS]],
                *(_there(suites, columns) for columns in (BENCHMARK_COLUMNS, DISTINCT_COLUMNS, ACTION_COLUMNS)),
            ],
            axis="columns",
        ),
        episodes=pd.concat(
            [
                episodes[[*EPISODE_COLUMNS]],
                episode_timing[[*EPISODE_TIMING_COLUMNS]],
                _there(episodes, EVENT_EPISODE_COLUMNS),
                _there(episodes, START_COLUMNS),
                _there(episodes, ACTION_COLUMNS),
            ],
            axis="columns",
        ),
        missing=tuple(
            MissingEpisodes(
                job=each["job"],
                rank=each["rank"],
                status=JobResultStatus(each["status"]),
                episode_indices=tuple(each["episode_indices"]),
            )
            for each in document["missing"]
        ),
        problems=tuple(document["problems"]),
        complete=document["complete"],
        sources=document["sources"],
    )


def _jobs(results: pd.DataFrame, timing: pd.DataFrame) -> pd.DataFrame:
    """Return the table of jobs in the order in which it is made, from the two that it is written as."""
    parts = [
        results[[*JOB_COLUMNS]],
        timing[[*JOB_TIMING_COLUMNS]],
        results[[name for name in results.columns if name.startswith(PREFIX)]],
        _there(results, BENCHMARK_COLUMNS),
        _there(results, LATENCY_JOB_COLUMNS),
        _there(timing, SERVER_JOB_TIMING_COLUMNS),
        _there(timing, LATENCY_JOB_TIMING_COLUMNS),
        _there(results, EVENT_JOB_COLUMNS),
        _there(results, DISTINCT_COLUMNS),
        _there(results, ACTION_COLUMNS),
    ]
    return pd.concat(parts, axis="columns")


def _there(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Return those of some columns that a table has, which it has where there was something to say."""
    return pd.DataFrame(table[[name for name in columns if name in table]])
