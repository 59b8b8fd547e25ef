"""Whether the tables of a run hold everything that its ranks have written."""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN

TABLE = "results.json"
"""The table that is written last."""


def sizes_of_sources(output_directory: Path) -> dict[str, int]:
    """Return what the ranks of a run have written: each commit file and report, and how long it is [bytes].

    Those files only grow, so equal sizes are equal files. Times of files are never compared: clocks are set back.

    Args:
        output_directory: The run's folder.
    """
    sources = chain(output_directory.glob(f"*/{COMMIT_FILE_PATTERN}"), output_directory.glob(f"*/{JOB_REPORT_PATTERN}"))
    return {str(source.relative_to(output_directory)): source.stat().st_size for source in sorted(sources)}


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since.

    Args:
        output_directory: The run's folder.
    """
    return _sizes_in_table(output_directory / TABLE) == sizes_of_sources(output_directory)


def _sizes_in_table(table: Path) -> Mapping[str, int] | None:
    try:
        document = json.loads(table.read_bytes())
    except (OSError, ValueError):
        return None
    return document.get("sources") if isinstance(document, dict) else None
