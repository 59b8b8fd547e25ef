"""Draws and encodes films on threads beside the loop, so that control steps wait for none of it."""

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread
from typing import TypeAlias

TASKS_UNDONE = 64
"""Tasks for each thread that are not done yet, at most, which bounds their memory; then the loop waits."""

Task: TypeAlias = Callable[[], None]


class FilmThreads:
    """Does the tasks of a job's films: those of one film in order, one at a time; one that fails stops none behind it.

    A thread takes the next task of any film, so none is idle while tasks of several films wait. One core is the loop's:
    where there are several threads, one of them rests, unless the loop itself waits for films.

    Args:
        number: How many threads there are; they start with the first film.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._threads: list[Thread] = []
        # The tasks of each film that no thread is at; the first of them is next.
        self._waiting: deque[deque[Task]] = deque()
        self._num_undone = 0
        self._num_at_work = 0
        self._loop_waits = False
        self._is_closing = False
        self._changed = Condition()
        self._failure: BaseException | None = None

    def for_a_film(self) -> Callable[[Task], None]:
        """Return what has a task of a new film done once those before it are; it waits while too many are undone."""
        while len(self._threads) < self._number:
            # A program that ends without `close` must not wait for films.
            self._threads.append(Thread(target=self._work, name="film", daemon=True))
            self._threads[-1].start()
        return partial(self._do, deque())

    def raise_failure(self) -> None:
        """Raise what the first task that failed has raised, if nobody was told of it yet."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Return once all tasks are done; raise what one of them raised. May be called more than once."""
        with self._changed:
            self._is_closing = self._loop_waits = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.raise_failure()

    def _do(self, film: deque[Task], task: Task) -> None:
        with self._changed:
            while self._num_undone >= self._number * TASKS_UNDONE:
                self._wait_for_room()
            self._num_undone += 1
            film.append(task)
            # Whoever is at a task of the film finds the next one.
            if len(film) == 1:
                self._waiting.append(film)
                self._changed.notify_all()

    def _wait_for_room(self) -> None:
        self._loop_waits = True
        self._changed.notify_all()
        self._changed.wait()
        self._loop_waits = False

    def _work(self) -> None:
        while (film := self._next_film()) is not None:
            try:
                film[0]()
            except BaseException as error:  # noqa: BLE001  it is raised in the loop's thread, by `raise_failure`
                self._failure = self._failure or error
            with self._changed:
                film.popleft()
                self._num_undone -= 1
                self._num_at_work -= 1
                if film:
                    self._waiting.append(film)
                self._changed.notify_all()

    def _next_film(self) -> deque[Task] | None:
        """Return the tasks of a film that has some to do, None once there are no more and none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_take_one() or (self._is_closing and not self._num_undone))
            if not self._waiting:
                return None
            self._num_at_work += 1
            return self._waiting.popleft()

    def _may_take_one(self) -> bool:
        most = self._number if self._loop_waits else max(1, self._number - 1)
        return bool(self._waiting) and self._num_at_work < most
