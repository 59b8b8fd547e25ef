"""Puts the files that ranks of other nodes send into rank 0's directory, from which the tables are made."""

import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.nodes.file_parts import FilePart, files_to_send
from isaaclab_arena.evaluation.nodes.message_store import MessageStore, StoreLostError
from isaaclab_arena.storage.atomic import write_at
from isaaclab_arena.storage.layout import commit_file_name, job_directory, received_file_name

_LOG = logging.getLogger(__name__)


class ResultReceiver:
    """Receives parts of files from the message store, as a context manager all the time, from a thread of its own.

    Of all ranks that share rank 0's directory only one receives: rank 0, or the rank that merges instead.

    Args:
        store: Where the messages are.
        senders: The ranks that write in other directories.
        jobs: Names of the jobs of the run.
        output_directory: Where the files go.
        interval_s: Time between two looks [s].
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        senders: Sequence[int],
        jobs: Collection[str],
        output_directory: Path,
        interval_s: float = 0.5,
    ) -> None:
        self._store = store
        self._senders = senders
        self._jobs = frozenset(jobs)
        self._output_directory = output_directory
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._receive_until_closed, name="result-receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()

    def receive(self) -> None:
        """Keep everything that was sent until now.

        Raises:
            StorageError: If it cannot be written; it stays in the store.
        """
        with self._lock:
            try:
                for rank in self._senders:
                    for message in self._store.received(rank):
                        self._keep(rank, message)
            except StoreLostError as error:
                _LOG.warning("nothing more can be received from other nodes: %s", error)

    def _receive_until_closed(self) -> None:
        while not (self._store.is_lost or self._closing.wait(self._interval_s)):
            try:
                self.receive()
            except StorageError as error:
                _LOG.warning("what other nodes send cannot be kept yet: %s", error)

    def _keep(self, rank: int, message: str) -> None:
        try:
            part = FilePart.of_message(message)
        except ValueError as error:
            _LOG.warning("a message of rank %d is left out: %s", rank, error)
            return
        # The names become a path, and whoever can reach the store can send messages.
        if part.job not in self._jobs or part.file not in files_to_send(rank):
            _LOG.warning("a message of rank %d is left out: it names a file that rank does not write", rank)
            return
        name = received_file_name(part.file) if part.file == commit_file_name(rank) else part.file
        write_at(job_directory(self._output_directory, part.job) / name, part.offset, part.content)
