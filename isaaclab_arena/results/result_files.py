"""The merged results as files: CSV for people, Parquet for programs, JSON for both. All can be rebuilt.

What came out is kept apart from when, where and how fast: the first is the same, byte for byte, however often a run was
interrupted and on however many ranks it ran, so two runs can be compared with ``cmp``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
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
    PICTURE_COLUMNS,
    QUESTION_EPISODE_COLUMNS,
    QUESTION_JOB_COLUMNS,
    QUESTION_JOB_TIMING_COLUMNS,
    SERVER_JOB_TIMING_COLUMNS,
    START_COLUMNS,
)
from isaaclab_arena.results.freshness import TABLE as RESULTS_FILE
from isaaclab_arena.results.merge import MergedResults, records
from isaaclab_arena.results.stopping.answers import Answer
from isaaclab_arena.results.stopping.wording import in_words
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.storage.atomic import read_whole, write_bytes
from isaaclab_arena.storage.json_values import json_text

SCHEMA_VERSION = 1
_OF_EARLIER_VERSIONS = b'  "elsewhere": [],\n'
"""A line of ``results.json`` in which earlier versions named datasets on other nodes; it was empty on shared disks."""
TABLES = ("results", "suites", "episodes", "timing", "episode_timing")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def write_tables(output_directory: Path, merged: MergedResults) -> tuple[Path, ...]:
    """Write the tables over earlier ones: ``results``, ``episodes``, ``timing``, ``episode_timing`` and any ``suites``.

    Each is written as CSV and Parquet; ``results.json``, which is written last, holds the jobs once more. A file is
    complete or is the earlier one. Rows are in order of the plan, then of the episode.

    Returns:
        The files.

    Raises:
        StorageError: If one cannot be written.
    """
    paths = []
    for name, content in _contents(merged):
        paths.append(output_directory / name)
        write_bytes(paths[-1], content, overwrite=True)
    return tuple(paths)


def stale_tables(output_directory: Path, merged: MergedResults) -> list[Path]:
    """Return the tables that are missing or hold anything else than a merge gives now, or gave in an earlier version.

    Raises:
        StorageError: If one cannot be read.
    """
    stale = _unlike(output_directory, merged)
    if stale and bool(merged.jobs[[*PICTURE_COLUMNS]].isna().to_numpy().all()):
        earlier = replace(merged, jobs=merged.jobs.drop(columns=[*PICTURE_COLUMNS]))
        return [path for path in _unlike(output_directory, earlier) if path in stale]
    return stale


def _unlike(output_directory: Path, merged: MergedResults) -> list[Path]:
    paths = ((output_directory / name, content) for name, content in _contents(merged))
    return [path for path, content in paths if not _holds(path, content)]


def results_document(merged: MergedResults) -> dict[str, Any]:
    """Return what ``results.json`` holds: the jobs, what is missing, and what was read."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": merged.plan.run_id,
        "config_hash": merged.plan.config_hash,
        "complete": merged.complete,
        "jobs": records(merged.jobs),
        **({"suites": records(merged.suites)} if len(merged.suites) else {}),
        "missing": merged.missing,
        "problems": merged.problems,
        **({"answers": [_answer(each) for each in merged.answers]} if merged.answers else {}),
        "sources": merged.sources,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    """Return what ``results.json`` says of a question."""
    return {
        **asdict(answer.question),
        "verdict": answer.verdict,
        "in_words": in_words(answer),
        "episodes": answer.episodes,
        "counts": asdict(answer.counts),
        "log_e_value": answer.log_e_value,
        "needed_log_e_value": answer.needed_log_e_value,
        "by_later_step": answer.is_late,
        "left_out": answer.left_out,
        **({"repeated": answer.repeated} if answer.repeated else {}),
        "unequal": answer.unequal,
    }


def _contents(merged: MergedResults) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a run's results, in the order in which they are written."""
    jobs, episodes = merged.jobs, merged.episodes
    swept = [name for name in jobs.columns if name.startswith(PREFIX)]
    timing = JOB_TIMING_COLUMNS | SERVER_JOB_TIMING_COLUMNS | LATENCY_JOB_TIMING_COLUMNS | QUESTION_JOB_TIMING_COLUMNS
    own = BENCHMARK_COLUMNS | LATENCY_JOB_COLUMNS | QUESTION_JOB_COLUMNS | DISTINCT_COLUMNS | ACTION_COLUMNS
    of_episodes = QUESTION_EPISODE_COLUMNS | START_COLUMNS | ACTION_COLUMNS
    tables = {
        "results": jobs[[*JOB_COLUMNS, *swept, *(name for name in own if name in jobs)]],
        "episodes": episodes[[*EPISODE_COLUMNS, *(name for name in of_episodes if name in episodes)]],
        "timing": jobs[["name", *(name for name in timing if name in jobs)]],
        "episode_timing": episodes[["job", "episode_index", *EPISODE_TIMING_COLUMNS]],
    }
    if len(merged.suites):
        tables["suites"] = merged.suites
    # Whoever compares the CSV of two runs with ``cmp`` may have one of a version that told no events.
    more = {"results": _present(EVENT_JOB_COLUMNS, jobs), "episodes": _present(EVENT_EPISODE_COLUMNS, episodes)}
    for name in (each for each in TABLES if each in tables):
        table = pd.DataFrame(tables[name])
        yield f"{name}.csv", csv_text(table).encode()
        yield f"{name}.parquet", table.assign(**more.get(name, {})).to_parquet(index=False)
    yield RESULTS_FILE, json_text(results_document(merged)).encode()


def _present(columns: Mapping[str, str], table: pd.DataFrame) -> dict[str, Any]:
    return {name: table[name] for name in columns if name in table}


def _holds(path: Path, content: bytes) -> bool:
    try:
        found = read_whole(path)
    except StorageError:
        return False
    if path.name == RESULTS_FILE:
        return found.replace(_OF_EARLIER_VERSIONS, b"", 1) == content
    # Another version of the library writes the same table in other bytes.
    return found == content or (path.suffix == ".parquet" and _same_table(found, content))


def _same_table(found: bytes, content: bytes) -> bool:
    try:
        return pd.read_parquet(BytesIO(found)).equals(pd.read_parquet(BytesIO(content)))
    except (OSError, ValueError):
        # pyarrow says so of what is no Parquet.
        return False


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV whose text neither runs in a spreadsheet nor steers a terminal.

    Text that would be a formula gets an apostrophe in front.
    """
    columns = [str(name) for name in table.select_dtypes(["string", "object"])]
    return table.assign(**{name: _harmless(table, name) for name in columns}).to_csv(index=False)


def _harmless(table: pd.DataFrame, column: str) -> pd.Series:
    values = pd.Series(table[column])
    texts = [text for text in values.unique() if isinstance(text, str)]
    # Almost no column has a text that acts, and a table of episodes has many rows.
    together = "".join(texts)
    if together.isascii() and together.isprintable() and not any(text.startswith(FORMULA_STARTS) for text in texts):
        return values
    changed = {text: harmless for text in texts if (harmless := harmless_text(text)) != text}
    return values.map(lambda value: changed.get(value, value), na_action="ignore") if changed else values


def harmless_text(text: str) -> str:
    """Return text that a spreadsheet takes for no formula, and that steers no terminal."""
    plain = plain_text(text, keep_lines=True)
    return f"'{plain}" if plain.startswith(FORMULA_STARTS) else plain
