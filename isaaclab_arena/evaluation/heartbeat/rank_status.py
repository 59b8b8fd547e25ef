"""The status of a rank: one small file that the rank rewrites every second and the other ranks read."""

import dataclasses
import json
import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.distributed.process import machine_identity, process_start_ticks
from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import read_whole

_LOG = logging.getLogger(__name__)
_SPEED_WINDOW = 10


class RankState(StrEnum):
    """What a rank is doing. The last three are final."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether the rank's jobs are over."""
        return self in (RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED)


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """What a rank last said about itself.

    Attributes:
        rank: Its number among all ranks.
        run_id: Which start of the program it belongs to; an earlier start leaves its files behind.
        host: Name of its machine, for people.
        machine: Identity of its machine, for comparing process numbers.
        pid: Its process number.
        start_ticks: Start time of the process, None where the system does not tell.
        state: What it is doing.
        exited: Whether this is its last word: the process is about to end.
        current_job: The job it runs, None between jobs.
        preparing: What that job does before its first control step, in words; None once it has made one.
        job_episodes_done: Episodes of that job that have ended here.
        job_episodes_total: Episodes of that job that this rank was given, 0 where ranks share it or nobody knows.
        job_stepping_s: How long that job has been past its preparations [s].
        jobs_done: Jobs that have ended, however they ended.
        jobs_failed: Those of them that failed.
        jobs_total: Jobs it was given.
        episodes_done: Episodes that have ended.
        episodes_total: Episodes it was given, as far as known beforehand.
        successes: Episodes that succeeded.
        scored: Episodes for which success was measured.
        errors: Episodes that ended in an error.
        env_steps: Control steps summed over running env slots.
        steps_per_s: The same per second, over the last beats [1/s].
        long_work: What it does instead of steps or beside them, in a word such as ``consolidating``; None while it does
            nothing long.
        long_work_job: The finished job for which it does that, None where it is for the current one.
        long_work_done: How many episodes it has done that with.
        long_work_total: How many there are.
        beat: Counts how often the file was written.
        updated_at: When, by the clock of its machine; for people.
    """

    rank: int
    run_id: str
    host: str
    machine: str
    pid: int
    start_ticks: int | None
    state: RankState = RankState.STARTING
    exited: bool = False
    current_job: str | None = None
    preparing: str | None = None
    job_episodes_done: int = 0
    job_episodes_total: int = 0
    job_stepping_s: float = 0.0
    jobs_done: int = 0
    jobs_failed: int = 0
    jobs_total: int = 0
    episodes_done: int = 0
    episodes_total: int = 0
    successes: int = 0
    scored: int = 0
    errors: int = 0
    env_steps: int = 0
    steps_per_s: float = 0.0
    long_work: str | None = None
    long_work_job: str | None = None
    long_work_done: int = 0
    long_work_total: int = 0
    beat: int = 0
    updated_at: str = ""

    @property
    def makes_steps(self) -> bool:
        """Whether it is free to make steps: it does nothing long, or does it beside a job."""
        return self.long_work is None or (self.long_work_job is not None and self.current_job is not None)

    @classmethod
    def of_this_process(cls, *, rank: int, run_id: str, jobs_total: int = 0, episodes_total: int = 0) -> Self:
        """Return the status with which this process starts."""
        return cls(
            rank=rank,
            run_id=run_id,
            host=socket.gethostname(),
            machine=machine_identity(),
            pid=os.getpid(),
            start_ticks=process_start_ticks(os.getpid()),
            jobs_total=jobs_total,
            episodes_total=episodes_total,
        )


def status_path(output_directory: Path, rank: int) -> Path:
    """Return where a rank's status lies."""
    return output_directory / "logs" / f"rank{rank}.status.json"


def write_rank_status(output_directory: Path, status: RankStatus) -> None:
    """Replace the rank's status file; a reader sees the old one or the new one, never a part."""
    path = status_path(output_directory, status.rank)
    temporary = path.with_name(f".{path.name}.{status.pid}.tmp")
    try:
        temporary.write_text(json.dumps(dataclasses.asdict(status)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_rank_status(output_directory: Path, rank: int, *, run_id: str | None = None) -> RankStatus | None:
    """Return what a rank last said, None if it has said nothing that can be read.

    Args:
        output_directory: The run's directory.
        rank: Which rank.
        run_id: Ignore what belongs to another start of the program; None accepts any.
    """
    try:
        text = read_whole(status_path(output_directory, rank)).decode()
    except (StorageError, ValueError):
        return None
    return parse_rank_status(text, run_id=run_id)


def parse_rank_status(text: str, *, run_id: str | None = None) -> RankStatus | None:
    """Return the status that the text of a status file holds, None if it holds none; see `read_rank_status`."""
    try:
        fields: dict[str, Any] = json.loads(text)
        status = RankStatus(**{**fields, "state": RankState(fields["state"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return status if run_id is None or status.run_id == run_id else None
