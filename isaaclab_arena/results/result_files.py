"""The merged results as files: CSV for people, Parquet for programs, JSON for both. All can be rebuilt.

What came out is kept apart from when, where and how fast: the first is the same, byte for byte, however often a run was
interrupted and on however many ranks it ran, so two runs can be compared with ``cmp``.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.freshness import TABLE as RESULTS_FILE
from isaaclab_arena.results.merge import MergedResults, records
from isaaclab_arena.results.rows import (
    EPISODE_COLUMNS,
    EPISODE_TIMING_COLUMNS,
    JOB_COLUMNS,
    JOB_TIMING_COLUMNS,
)
from isaaclab_arena.storage.atomic import write_bytes, write_text
from isaaclab_arena.storage.json_values import json_text

SCHEMA_VERSION = 1
TABLES = ("results", "episodes", "timing", "episode_timing")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def write_tables(output_directory: Path, merged: MergedResults) -> tuple[Path, ...]:
    """Write the tables over earlier ones: ``results``, ``episodes``, ``timing`` and ``episode_timing``.

    Each is written as CSV and Parquet; ``results.json``, which is written last, holds the jobs once more. A file is
    complete or is the earlier one. Rows are in order of the plan, then of the episode.

    Returns:
        The files.

    Raises:
        StorageError: If one cannot be written.
    """
    jobs, episodes = merged.jobs, merged.episodes
    tables = {
        "results": jobs[[*JOB_COLUMNS]],
        "episodes": episodes[[*EPISODE_COLUMNS]],
        "timing": jobs[["name", *JOB_TIMING_COLUMNS]],
        "episode_timing": episodes[["job", "episode_index", *EPISODE_TIMING_COLUMNS]],
    }
    for name in TABLES:
        table = pd.DataFrame(tables[name])
        write_text(output_directory / f"{name}.csv", csv_text(table), overwrite=True)
        write_bytes(output_directory / f"{name}.parquet", table.to_parquet(index=False), overwrite=True)
    json_file = output_directory / RESULTS_FILE
    write_text(json_file, json_text(results_document(merged)), overwrite=True)
    return (*_table_paths(output_directory), json_file)


def results_document(merged: MergedResults) -> dict[str, Any]:
    """Return what ``results.json`` holds: the jobs, what is missing, what could not be read, and what was read."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": merged.plan.run_id,
        "config_hash": merged.plan.config_hash,
        "complete": merged.complete,
        "jobs": records(merged.jobs),
        "missing": merged.missing,
        "problems": merged.problems,
        "sources": merged.sources,
    }


def is_written(output_directory: Path, merged: MergedResults) -> bool:
    """Whether the tables are all there, and ``results.json``, which is written last, says exactly this."""
    paths = [output_directory / RESULTS_FILE, *_table_paths(output_directory)]
    if not all(path.is_file() for path in paths):
        return False
    return paths[0].read_text(encoding="utf-8") == json_text(results_document(merged))


def _table_paths(output_directory: Path) -> list[Path]:
    return [output_directory / f"{name}.{kind}" for name in TABLES for kind in ("csv", "parquet")]


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV whose text neither runs in a spreadsheet nor steers a terminal.

    Text that would be a formula gets an apostrophe in front.
    """
    columns = [str(name) for name in table.select_dtypes(["string", "object"])]
    return table.assign(**{name: _harmless(table, name) for name in columns}).to_csv(index=False)


def _harmless(table: pd.DataFrame, column: str) -> pd.Series:
    values = pd.Series(table[column])
    texts = [text for text in values.unique() if isinstance(text, str)]
    changed = {text: harmless for text in texts if (harmless := _harmless_text(text)) != text}
    # Almost no column has such a text, and a table of episodes has many rows.
    return values.map(lambda value: changed.get(value, value), na_action="ignore") if changed else values


def _harmless_text(text: str) -> str:
    plain = plain_text(text, keep_lines=True)
    return f"'{plain}" if plain.startswith(FORMULA_STARTS) else plain
