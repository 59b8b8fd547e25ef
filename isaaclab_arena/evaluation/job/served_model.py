"""Keep a policy server's description of its model beside a job's episodes, and compare it later."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.policy import PolicyBase, stated_model
from isaaclab_arena.storage.atomic import FileThereError, write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import SERVED_MODEL_FILE

SCHEMA_VERSION = 1

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What a policy server said of its model.

    Attributes:
        stated: The server's own words; `UNKNOWN` where it states nothing.
        schema_version: Version of this layout.
    """

    stated: str
    schema_version: int = SCHEMA_VERSION


def settle_served_model(job_directory: Path, job: str, policies: Sequence[PolicyBase]) -> str | None:
    """Return what the servers of a job's policies state, and refuse to go on with another model than the job had.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        policies: The policies that act in it, all of the same options.

    Returns:
        None for policies that ask no server.

    Raises:
        ConfigError: If episodes of the job were made with another model, as far as the servers say.
        StorageError: If the file cannot be written or read.
    """
    stated = {said for policy in policies if (said := stated_model(policy)) is not None}
    if not stated:
        return None
    if len(stated) > 1:
        raise ConfigError(f"the policy servers of job '{job}' serve different models: {', '.join(sorted(stated))}")
    (now,) = stated
    path = job_directory / SERVED_MODEL_FILE
    try:
        write_text(path, json_text(ServedModel(stated=now)))
    except FileThereError:
        before = read_versioned(path, ServedModel, SCHEMA_VERSION).stated
        _compare(job, before, now)
    return now


def _compare(job: str, before: str, now: str) -> None:
    if before == now:
        return
    if UNKNOWN in {before, now}:
        _LOG.warning(
            "the policy server of job '%s' stated %s before and states %s now; whether it is the same model cannot be "
            "checked",
            job,
            before,
            now,
        )
        return
    raise ConfigError(
        f"the policy server serves another model than when the job's episodes ran: it stated {before}, and states "
        f"{now} now; serve that one again, start a new run in another directory, or run the job's episodes anew: "
        f"--resume --rerun {job}"
    )
