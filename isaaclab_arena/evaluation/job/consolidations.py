"""Finishes jobs whose episodes are over, in a thread of its own, while the rank runs its next job."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from isaaclab_arena.logs import LongWork, heard_by


class Consolidations:
    """Finishes one job at a time beside the next one.

    Args:
        hear: Is told how far which job has come, and None for how far at its end; see `long_work.heard_by`.
    """

    def __init__(self, hear: Callable[[str, LongWork | None], None]) -> None:
        self._hear = hear
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="consolidation")
        self._job: str | None = None
        self._underway: Future[None] | None = None

    def begin(self, job: str, finish: Callable[[], object]) -> None:
        """Begin to finish a job, as soon as the job before it is finished.

        Args:
            job: Name of the job.
            finish: Finishes it. What it raises is raised by the next call of `begin`, `wait` or `close`.
        """
        self.wait()
        self._job, self._underway = job, self._pool.submit(self._finish, job, finish)

    def wait(self, job: str | None = None) -> None:
        """Return once no job is under way any more.

        Args:
            job: Wait for this job only; None for any.
        """
        if self._underway is None or job not in (None, self._job):
            return
        underway, self._underway = self._underway, None
        underway.result()

    def close(self) -> None:
        """Wait for the job under way, and end the thread. May be called more than once."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _finish(self, job: str, finish: Callable[[], object]) -> None:
        with heard_by(partial(self._hear, job)):
            finish()
