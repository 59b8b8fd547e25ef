"""``settled.json``: on how many env slots a job's policy is asked, settled by the rank that builds the job first."""

import os
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.storage.atomic import storage_error, temporary_path, write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import SETTLED_FILE

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class SettledBatch:
    """What every rank and every later start of the program keeps to, so that a job's bits are the same.

    Attributes:
        policy_batch: Env slots that the policy is asked on together.
        schema_version: Version of this layout.
    """

    policy_batch: int
    schema_version: int = SCHEMA_VERSION


def read_settled(job_directory: Path) -> SettledBatch | None:
    """Return what was settled, None if nothing was.

    Raises:
        ConfigError: If the file is damaged.
        StorageError: If it cannot be read.
    """
    path = job_directory / SETTLED_FILE
    return read_versioned(path, SettledBatch, SCHEMA_VERSION) if path.exists() else None


def settle(job_directory: Path, settled: SettledBatch) -> SettledBatch:
    """Settle a job's batch, unless that was done already; return what counts.

    Args:
        job_directory: Directory of the job; it is made if need be.
        settled: What this rank would have.

    Raises:
        ConfigError: If what was settled cannot be read.
        StorageError: If it cannot be written.
    """
    path = job_directory / SETTLED_FILE
    temporary = temporary_path(path)
    write_text(temporary, json_text(settled), overwrite=True)
    try:
        # A link is made whole or not at all, and fails where there is a file: only one rank settles.
        os.link(temporary, path)
    except FileExistsError:
        return read_settled(job_directory) or settled
    except OSError as error:
        _write_exclusively(path, json_text(settled), error)
    finally:
        temporary.unlink(missing_ok=True)
    return read_settled(job_directory) or settled


def _write_exclusively(path: Path, text: str, no_links: OSError) -> None:
    """Write the file where the file system has no links; ranks that come at the same moment may both write the same."""
    try:
        write_text(path, text)
    except ArenaError as error:
        if not path.exists():
            raise storage_error("write", path, no_links) from error
