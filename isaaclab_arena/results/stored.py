"""Read the results of a run from its own tables, which takes a third of the time of merging them again."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from isaaclab_arena.errors import DamagedFileError, StorageError, first_line
from isaaclab_arena.interfaces.episode import Outcome
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
from isaaclab_arena.results.merge import MergedResults, MissingEpisodes, records, typed_table
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.storage.atomic import check_plain, storage_errors
from isaaclab_arena.storage.json_values import plain, read_json
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


def table_of(plan: RunPlan, output_directory: Path) -> Mapping[str, Any]:
    """Return the content of ``results.json``.

    Raises:
        DamagedFileError: If it is of another run.
        StorageError: If it is absent or cannot be read.
    """
    document = read_json(output_directory / TABLE)
    if document["run_id"] != plan.run_id:
        raise DamagedFileError(f"{output_directory / TABLE} is of another run")
    return document


def check_episodes(jobs: Sequence[Mapping[str, Any]], episodes: pd.DataFrame, output_directory: Path) -> None:
    """Return if a table of episodes is of the run that it lies in, as far as ``results.json`` says it.

    Args:
        jobs: What that file holds of each job.
        episodes: The table.
        output_directory: The run's directory.

    Raises:
        DamagedFileError: If a job has another number of episodes, another seed, or episodes of another mean length or
            return.
    """
    if "beyond_decision" in episodes:
        episodes = pd.DataFrame(episodes[~episodes["beyond_decision"].astype(bool)])
    by_job = {str(job): own for job, own in episodes.groupby("job")}
    for job in jobs:
        own = by_job.pop(job["name"], episodes.iloc[:0])
        kept = own[(own["outcome"] != Outcome.ERROR).fillna(value=True)]
        same_seed = bool((own["seed"] == job["seed"]).all())
        said = [job["episodes"], job["mean_length"], job["mean_return"]]
        found = [len(own), kept["length"].mean(), kept["return"].mean()]
        numbers = (pd.array(each, "Float64").to_numpy(float, na_value=np.nan) for each in (said, found))
        if not (same_seed and np.allclose(*numbers, equal_nan=True)):
            raise DamagedFileError(
                f"the table of episodes in {output_directory} does not hold those of '{job['name']}'"
            )
    if by_job:
        raise DamagedFileError(f"the table of episodes in {output_directory} holds job '{min(by_job)}'")


def _read(output_directory: Path, plan: RunPlan) -> MergedResults:
    document = table_of(plan, output_directory)
    results, timing, episodes, episode_timing = (
        read_table(output_directory / f"{name}.parquet") for name in ("results", "timing", "episodes", "episode_timing")
    )
    jobs = _jobs(results, timing)
    if plain(records(jobs)) != document["jobs"]:
        raise DamagedFileError(f"the tables of jobs do not hold what {TABLE} does")
    check_episodes(document["jobs"], episodes, output_directory)
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
