"""Puts what other machines' ranks send into rank 0's folder, where tables are made of it as of anything else."""

import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from isaaclab_arena.distributed.mailbox import Mailbox, MailboxLostError
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.nodes.file_parts import FilePart, files_to_send
from isaaclab_arena.storage.atomic import write_at
from isaaclab_arena.storage.layout import commit_file_name, job_directory, received_file_name

_LOG = logging.getLogger(__name__)


class Collector:
    """Takes letters out of the mailbox. As a context manager it does so all the time, from a thread of its own.

    Of all ranks that share rank 0's folder only one collects: rank 0, or whoever merges in its place.

    Args:
        mailbox: Where the letters are.
        senders: The ranks that write in other folders.
        jobs: Names of the jobs of the run.
        output_directory: Where what they say goes.
        interval_s: Time between two looks [s].
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        senders: Sequence[int],
        jobs: Collection[str],
        output_directory: Path,
        interval_s: float = 0.5,
    ) -> None:
        self._mailbox = mailbox
        self._senders = senders
        self._jobs = frozenset(jobs)
        self._output_directory = output_directory
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._collect_until_closed, name="collector", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()

    def collect(self) -> None:
        """Keep everything that was sent until now.

        Raises:
            StorageError: If it cannot be written; it stays in the mailbox.
        """
        with self._lock:
            try:
                for rank in self._senders:
                    for letter in self._mailbox.letters(rank):
                        self._keep(rank, letter)
            except MailboxLostError as error:
                _LOG.warning("nothing more can be received from other machines: %s", error)

    def _collect_until_closed(self) -> None:
        while not (self._mailbox.is_lost or self._closing.wait(self._interval_s)):
            try:
                self.collect()
            except StorageError as error:
                _LOG.warning("what other machines send cannot be kept yet: %s", error)

    def _keep(self, rank: int, letter: str) -> None:
        try:
            part = FilePart.of_letter(letter)
        except ValueError as error:
            _LOG.warning("a letter of rank %d is left out: %s", rank, error)
            return
        # The names become a path, and whoever can reach the store can write letters.
        if part.job not in self._jobs or part.file not in files_to_send(rank):
            _LOG.warning("a letter of rank %d is left out: it names a file that rank does not write", rank)
            return
        name = received_file_name(part.file) if part.file == commit_file_name(rank) else part.file
        write_at(job_directory(self._output_directory, part.job) / name, part.offset, part.content)
