"""Brings home what a rank writes on its node: finished episodes, then everything else, by a thread of its own."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from isaaclab_arena.distributed.process import machine_identity
from isaaclab_arena.evaluation.cluster.messages import (
    Delivery,
    DeliveryAnswer,
    FinishedPiece,
    Life,
    Pace,
    SentEpisode,
    SentFile,
)
from isaaclab_arena.evaluation.heartbeat.rank_status import status_path
from isaaclab_arena.storage.layout import (
    COMMIT_FILE_PATTERN,
    CONTACT_SHEET_FILE,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    SETTLED_FILE,
    VIDEOS_DIRECTORY,
    job_directory,
)

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 16_000_000
_MAX_EPISODES = 2_000
_WHOLE_FILES = (
    SETTLED_FILE,
    JOB_BEGUN_PATTERN,
    f"{VIDEOS_DIRECTORY}/*",
    CONTACT_SHEET_FILE,
    "traceback_*.txt",
    JOB_REPORT_PATTERN,
)
"""What a rank writes about a job besides commits; the report comes last, as it says that the rest is there."""


@dataclass(kw_only=True)
class _Parcel:
    """A delivery as it is put together.

    Attributes:
        episodes: Its episodes.
        files: Its other files.
        contents: Their bytes, episodes first.
        size: Length of these [bytes].
        read_to: How far each growing file has been read with it [bytes].
        sent: Files to remove once it has arrived.
        kept: Files that it holds whole, and which stay.
    """

    episodes: list[SentEpisode] = field(default_factory=list)
    files: list[SentFile] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    size: int = 0
    read_to: dict[Path, int] = field(default_factory=dict)
    sent: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.size >= _MAX_BYTES or len(self.episodes) >= _MAX_EPISODES

    def add(self, content: bytes) -> int:
        self.contents.append(content)
        self.size += len(content)
        return len(content)


class ResultSender:
    """Delivers to the keeper of the run what a rank has done, as soon as there is something. A context manager.

    The rank writes files as ever, and never waits. A file that has arrived is removed here. Each delivery is a
    heartbeat too, and where there is nothing to deliver there is a heartbeat once in a while; the keeper says how
    often. On leaving, everything is delivered that was written until then.

    Args:
        life: This rank.
        directory: Where it writes.
        deliver: Delivers to the keeper.
        stop: Is told the signal that asks this rank to stop.
        sends_files: Whether the rank writes elsewhere than in the run's directory.
        look_s: Time between two looks for something to deliver [s].
        clock: Monotonic time [s].

    Attributes:
        is_gone: Whether this rank was taken for dead, and has to end.
        jobs_over: Names of the jobs of which no further episode is needed.
        failure: What ended the deliveries, None if nothing did.
    """

    def __init__(
        self,
        life: Life,
        directory: Path,
        deliver: Callable[[Delivery, bytes], DeliveryAnswer],
        *,
        stop: Callable[[int], None] = lambda _: None,
        sends_files: bool = True,
        look_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_gone = False
        self.jobs_over: frozenset[str] = frozenset()
        self.failure: Exception | None = None
        self._life = life
        self._machine = machine_identity()
        self._directory = directory
        self._deliver = deliver
        self._stop = stop
        self._sends_files = sends_files
        self._look_s = look_s
        self._clock = clock
        self._pace = Pace()
        self._sent_at: float | None = None
        self._jobs: list[str] = []
        self._finished: list[FinishedPiece] = []
        self._failed: list[int] = []
        self._read_to: dict[Path, int] = {}
        self._kept: set[Path] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_until_closed, name="result-sender", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        if self.failure is not None and exception[0] is None:
            raise self.failure
        self.send()

    def follow(self, job: str) -> None:
        """From now on deliver what the rank writes about a job."""
        if job not in self._jobs:
            self._jobs.append(job)

    def finish_piece(self, piece: FinishedPiece) -> None:
        """Say that a piece is finished, after the episodes that are committed until now."""
        self._finished.append(piece)

    def give_up(self, job_index: int) -> None:
        """Say that a job has failed."""
        self._failed.append(job_index)

    def leave(self) -> None:
        """Take note that this rank was taken for dead: nothing more is delivered."""
        self.is_gone = True

    def send(self) -> None:
        """Deliver all that was written until now."""
        while not self.is_gone and self._send_once():
            pass

    def is_due(self) -> bool:
        """Whether to deliver now: there is something, or nothing was said for long."""
        if self._sent_at is None:
            return True
        since_s = self._clock() - self._sent_at
        return since_s >= self._pace.beat_s or (since_s >= self._pace.delivery_s and self._has_something())

    def _has_something(self) -> bool:
        if self._finished or self._failed:
            return True
        return self._sends_files and any(
            path.stat().st_size > self._read_to.get(path, 0) for job in tuple(self._jobs) for path in self._commits(job)
        )

    def _commits(self, job: str) -> list[Path]:
        return sorted(job_directory(self._directory, job).glob(COMMIT_FILE_PATTERN))

    def _send_until_closed(self) -> None:
        try:
            while not (self.is_gone or self._closing.wait(self._look_s)):
                if self.is_due():
                    self.send()
        except Exception as error:  # noqa: BLE001  whatever it is, the rank has to end, and says why
            self.failure = error
            self.leave()

    def _send_once(self) -> bool:
        """Make one delivery; return whether there is more."""
        # Taken first: the episodes of a piece that is finished now are on the disk already.
        finished, failed = tuple(self._finished), tuple(self._failed)
        parcel = _Parcel()
        if self._sends_files:
            self._put_in(parcel)
        if parcel.is_full:
            finished = failed = ()
        delivery = Delivery(
            life=self._life,
            machine=self._machine,
            status=self._status() if self._sends_files else None,
            episodes=tuple(parcel.episodes),
            files=tuple(parcel.files),
            finished=finished,
            failed=failed,
        )
        self._sent_at = self._clock()
        answer = self._deliver(delivery, b"".join(parcel.contents))
        if answer.is_gone:
            self.leave()
            return False
        del self._finished[: len(finished)], self._failed[: len(failed)]
        self._read_to |= parcel.read_to
        self._kept.update(parcel.kept)
        for path in parcel.sent:
            path.unlink(missing_ok=True)
        self._pace = answer.pace
        self.jobs_over = frozenset(answer.jobs_over)
        if answer.stop_signal is not None:
            self._stop(answer.stop_signal)
        return parcel.is_full

    def _status(self) -> str | None:
        try:
            return status_path(self._directory, self._life.rank).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _put_in(self, parcel: _Parcel) -> None:
        jobs = tuple(self._jobs)
        for job in jobs:
            for path in self._commits(job):
                self._put_in_episodes(parcel, job, path)
        if parcel.is_full:
            return
        for job in jobs:
            self._put_in_whole_files(parcel, job_directory(self._directory, job))
        self._put_in_growth(parcel, self._directory / "logs" / f"rank{self._life.rank}.log")

    def _put_in_episodes(self, parcel: _Parcel, job: str, path: Path) -> None:
        for line, end in _whole_lines(path, self._read_to.get(path, 0)):
            if parcel.is_full:
                return
            name, size = json.loads(line).get("episode_file"), 0
            if name is not None:
                file = path.parent / name
                size = parcel.add(file.read_bytes())
                parcel.sent.append(file)
            parcel.episodes.append(SentEpisode(job=job, line=line, size=size))
            parcel.read_to[path] = end

    def _put_in_whole_files(self, parcel: _Parcel, directory: Path) -> None:
        for pattern in _WHOLE_FILES:
            for path in sorted(directory.glob(pattern)):
                if parcel.is_full:
                    return
                if path in self._kept or path.name.startswith("."):
                    continue
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    # The report has just taken the place of what the rank wrote when it began.
                    continue
                size = parcel.add(content)
                parcel.files.append(SentFile(path=str(path.relative_to(self._directory)), size=size))
                (parcel.sent if path.parent.name == VIDEOS_DIRECTORY else parcel.kept).append(path)

    def _put_in_growth(self, parcel: _Parcel, path: Path) -> None:
        offset = self._read_to.get(path, 0)
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                content = stream.read(_MAX_BYTES)
        except FileNotFoundError:
            return
        if content:
            size = parcel.add(content)
            parcel.files.append(SentFile(path=str(path.relative_to(self._directory)), size=size, offset=offset))
            parcel.read_to[path] = offset + size


def _whole_lines(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """Yield the lines of a file from an offset on, without their newlines, each with the offset of its end."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line[:-1].decode("utf-8"), offset
