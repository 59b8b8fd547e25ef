"""Draws and encodes films on threads beside the loop, so that control steps wait for none of it."""

from collections.abc import Callable
from contextlib import ExitStack
from queue import Queue
from threading import Thread

TASKS_WAITING = 64
"""Tasks of a thread that wait at most, which bounds their memory; then the loop waits."""


class FilmThread:
    """Does the tasks of the films that are given to it, in order; one that fails stops none behind it.

    Attributes:
        failure: What the first task that failed raised, until somebody takes it.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._tasks: Queue[Callable[[], None] | None] = Queue(TASKS_WAITING)
        # A program that ends without `close` must not wait for films.
        self._thread = Thread(target=self._work, name="film", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """How many tasks wait."""
        return self._tasks.qsize()

    def do(self, task: Callable[[], None]) -> None:
        """Do a task once those before it are done; wait while there are `TASKS_WAITING`."""
        self._tasks.put(task)

    def close(self) -> None:
        """Return once all tasks are done."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001  it is raised in the loop's thread, by `raise_failure`
                self.failure = self.failure or error


class FilmThreads:
    """The threads of a job's films.

    Args:
        number: How many there are at most; each starts with its first film.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._threads: list[FilmThread] = []

    def for_a_film(self) -> FilmThread:
        """Return the thread that has the least to do."""
        if len(self._threads) < self._number:
            self._threads.append(FilmThread())
            return self._threads[-1]
        return min(self._threads, key=lambda thread: thread.num_waiting)

    def raise_failure(self) -> None:
        """Raise what a task has raised that nobody was told of yet."""
        for thread in self._threads:
            failure, thread.failure = thread.failure, None
            if failure is not None:
                raise failure

    def close(self) -> None:
        """Return once all tasks are done; raise what one of them raised."""
        with ExitStack() as closing:
            closing.callback(self.raise_failure)
            for thread in self._threads:
                closing.callback(thread.close)
