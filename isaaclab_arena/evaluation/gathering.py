"""Queries of several askers, gathered into calls on one thread."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from isaaclab_arena.errors import PolicyError, first_line

AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")


@dataclass(kw_only=True, eq=False)
class Query(Generic[AskedT, AnswerT]):
    """A query that waits for its call."""

    asked: AskedT
    number: int  # its share of a batch
    kind: Hashable  # only queries of one kind share a call
    arrived_s: float = field(default_factory=time.perf_counter)
    answer: "Future[AnswerT]" = field(default_factory=Future)


class Batcher(ABC, Generic[AskedT, AnswerT]):
    """Answers the queries of several askers by common calls, in a thread of its own."""

    name: ClassVar[str]
    ended: ClassVar[str]
    """The message of a query without an answer at the end."""

    def __init__(self, *, max_batch: int, max_wait_s: float) -> None:
        # A call waits until a batch is full, every asker has asked, or a query has waited `max_wait_s` [s].
        self.num_askers = 0  # each asks one query at a time
        self.is_closed = False  # whether it answers no more queries
        self.failure: str | None = None  # the error that ended the thread
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._changed = threading.Condition()
        self._waiting: list[Query[AskedT, AnswerT]] = []
        self._steps: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def count(self, change: int) -> None:
        """Add an asker, or remove one."""
        with self._changed:
            self.num_askers += change
            self._changed.notify_all()

    def submit(self, asked: AskedT, *, number: int = 1, kind: Hashable = None) -> "Future[AnswerT]":
        """Queue a query, and return its answer to come; PolicyError once the thread has ended or `close` was called."""
        query: Query[AskedT, AnswerT] = Query(asked=asked, number=number, kind=kind)
        with self._changed:
            if self.is_closed:
                raise PolicyError(self.ended)
            self._waiting.append(query)
            self._changed.notify_all()
        return query.answer

    def soon(self, step: Callable[[], None]) -> None:
        """Have the thread take a step before its next call; steps keep their order."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()

    def close(self) -> None:
        """Fail the queries that wait, and end the thread. May be called more than once."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._thread.join()

    @abstractmethod
    def _answers(self, queries: Sequence[Query[AskedT, AnswerT]]) -> Iterable[AnswerT | Exception]:
        """Return the answers to queries of one kind, or their errors, in order."""

    def _release(self) -> None:
        """Free what the calls need, on the thread, at its end."""

    def _run(self) -> None:
        taken: list[Query[AskedT, AnswerT]] = []
        try:
            while True:
                with self._changed:
                    # Wait for a query or a step, then for other queries to join the call.
                    self._changed.wait_for(lambda: self.is_closed or self._waiting or self._steps)
                    if self._waiting and not self.is_closed:
                        left_s = self._waiting[0].arrived_s + self._max_wait_s - time.perf_counter()
                        self._changed.wait_for(
                            lambda: (
                                self.is_closed
                                or len(self._waiting) >= self.num_askers
                                or sum(each.number for each in self._waiting) >= self._max_batch
                            ),
                            timeout=max(0.0, left_s),
                        )
                    if self.is_closed:
                        return

                    # Take the first query, and those behind it that can be answered with it.
                    steps, self._steps, taken, number = self._steps, deque(), [], 0
                    for each in self._waiting:
                        if not taken or (each.kind == taken[0].kind and number + each.number <= self._max_batch):
                            taken.append(each)
                            number += each.number
                    self._waiting = [each for each in self._waiting if each not in taken]
                # Steps come first: a query may begin what follows one.
                for step in steps:
                    step()
                # An asker gets its answer as soon as it is there; answers may take several calls.
                for query, answer in zip(taken, self._answers(taken) if taken else (), strict=True):
                    if isinstance(answer, Exception):
                        query.answer.set_exception(answer)
                    else:
                        query.answer.set_result(answer)
        except Exception as error:
            self.failure = first_line(error)
            raise
        finally:
            with self._changed:
                self.is_closed = True
                # No asker may wait for ever, so all queries without an answer fail.
                left = [query for query in (*taken, *self._waiting) if not query.answer.done()]
            for query in left:
                query.answer.set_exception(PolicyError(self.ended))
            self._release()
