"""Sends what a rank has written to rank 0, over the network: its status, its commit lines and its reports."""

import logging
import threading
from pathlib import Path
from typing import Self

from isaaclab_arena.evaluation.heartbeat.rank_status import status_path
from isaaclab_arena.evaluation.nodes.file_parts import MAX_PART_BYTES, FilePart, files_to_send
from isaaclab_arena.evaluation.nodes.message_store import MessageStore, StoreLostError
from isaaclab_arena.storage.layout import job_directory, job_report_file_name

_LOG = logging.getLogger(__name__)


class ResultSender:
    """Sends, from a thread of its own, what this rank adds to its files. A context manager.

    The rank's main thread never waits for the network: files are written as ever, and read again here. On leaving,
    everything is sent that was written until then.

    Args:
        store: Where messages to rank 0 are left.
        rank: This rank.
        output_directory: Where it writes.
        sends_files: Whether rank 0 cannot see that directory; if it can, only the status is sent.
        interval_s: Time between two looks [s].
    """

    def __init__(
        self, store: MessageStore, *, rank: int, output_directory: Path, sends_files: bool, interval_s: float = 0.5
    ) -> None:
        self._store = store
        self._rank = rank
        self._output_directory = output_directory
        self._sends_files = sends_files
        self._interval_s = interval_s
        self._followed: list[str] = []
        self._sent: dict[tuple[str, str], int] = {}
        self._num_messages = 0
        self._has_complained = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_until_closed, name="result-sender", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        self._send()

    def follow(self, job: str) -> None:
        """From now on send what this rank writes about a job, until it has reported on it."""
        if self._sends_files:
            self._followed.append(job)

    def _send_until_closed(self) -> None:
        while not self._store.is_lost:
            self._send()
            if self._closing.wait(self._interval_s):
                return

    def _send(self) -> None:
        try:
            # Read first and said last: who hears that a rank has finished must find everything that it has written.
            status = self._status()
            for job in tuple(self._followed):
                self._send_job(job)
            if status is not None:
                self._store.publish_status(self._rank, status)
        except StoreLostError as error:
            if self._followed and not self._has_complained:
                self._has_complained = True
                _LOG.warning(
                    "rank 0 cannot be reached any more (%s): what this rank finishes now is in %s only; put the "
                    "directories of all nodes into one, then: isaaclab-arena merge",
                    error,
                    self._output_directory,
                )
        except OSError as error:
            _LOG.warning("cannot read what this rank has written, to send it to rank 0: %s", error)

    def _status(self) -> str | None:
        try:
            return status_path(self._output_directory, self._rank).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _send_job(self, job: str) -> None:
        # The report is the last thing that a rank writes about a job, so after it nothing more can come.
        has_ended = (job_directory(self._output_directory, job) / job_report_file_name(self._rank)).exists()
        for file in files_to_send(self._rank):
            self._send_growth(job, file)
        if has_ended:
            self._followed.remove(job)

    def _send_growth(self, job: str, file: str) -> None:
        try:
            stream = (job_directory(self._output_directory, job) / file).open("rb")
        except FileNotFoundError:
            return
        with stream:
            offset = self._sent.get((job, file), 0)
            stream.seek(offset)
            while content := stream.read(MAX_PART_BYTES):
                part = FilePart(job=job, file=file, offset=offset, content=content)
                self._store.send(self._rank, self._num_messages, part.as_message())
                self._num_messages += 1
                offset += len(content)
                self._sent[job, file] = offset
