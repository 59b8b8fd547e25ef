"""Check whether the tables of a run are up to date with its ranks' files."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.json_values import read_json
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, JOB_BEGUN_PATTERN, JOB_REPORT_PATTERN

RESULTS_FILE = "results.json"
"""The table that is written last."""

_SOURCES = (COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN, JOB_BEGUN_PATTERN)


def sizes_of_sources(output_directory: Path) -> dict[str, int]:
    """Return the size of each commit file and report of a run [bytes]."""
    # These files only grow, so equal sizes mean equal files. Modification times are not compared: clocks are set back.
    sizes = {}
    for directory in _entries(output_directory):
        try:
            is_directory = directory.is_dir()
        except OSError:
            # A link in a loop.
            is_directory = False
        for file in _entries(directory) if is_directory else ():
            if any(fnmatchcase(file.name, pattern) for pattern in _SOURCES):
                sizes[f"{directory.name}/{file.name}"] = file.stat(follow_symlinks=False).st_size
    return dict(sorted(sizes.items()))


def _entries(directory: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    # A run has as many directories as jobs, and waiting ranks scan them: `Path` would be too slow.
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since."""
    try:
        document = read_json(output_directory / RESULTS_FILE)
    except StorageError:
        return False
    return isinstance(document, dict) and document.get("sources") == sizes_of_sources(output_directory)
