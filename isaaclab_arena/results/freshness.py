"""Whether the tables of a run hold everything that its ranks have written."""

from itertools import chain
from pathlib import Path

from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN

TABLE = "results.json"
"""The table that is written last."""


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since.

    Args:
        output_directory: The run's folder.
    """
    table = output_directory / TABLE
    if not table.is_file():
        return False
    written_at = table.stat().st_mtime_ns
    sources = chain(output_directory.glob(f"*/{COMMIT_FILE_PATTERN}"), output_directory.glob(f"*/{JOB_REPORT_PATTERN}"))
    return all(source.stat().st_mtime_ns < written_at for source in sources)
