"""Messages between a policy server and the ranks that ask it, and the calls that share a batch."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError, first_line
from isaaclab_arena.interfaces.policy_traits import Entries, Network
from isaaclab_arena.storage.reports import ServerUsage
from isaaclab_arena.workers.program import frames

# The orders that a policy server starts with: its socket and its networks.


@dataclass(frozen=True, kw_only=True)
class NetworkOrder:
    """A policy whose network the server provides."""

    policy_type: str  # registered name or dotted path
    options: Mapping[str, Any] = field(default_factory=dict)  # of the policy's `from_dict`


@dataclass(frozen=True, kw_only=True)
class ServerOrders:
    """The networks of a server, and its socket and limits."""

    networks: Mapping[str, NetworkOrder]  # by key; loaded when first asked for
    max_batch: int  # most entries answered together
    max_wait_ms: float  # wait of a query for others [ms]
    listening: int = -1  # file descriptor of the listening socket
    token: str = ""  # secret of the clients
    # As many as ranks have: the last digits of an answer may depend on the number.
    torch_threads: int = 1
    deterministic: bool = False


# Messages between a policy server and the ranks that ask it: frames over a Unix socket, or TCP with a token.

VERSION = 1
"""Of these messages. Server and ranks are of one program, so another one is a mistake."""

ERRORS: Mapping[str, type[ArenaError]] = {"config": ConfigError, "lost": PolicyLostError, "policy": PolicyError}
"""The error that a client raises, by the kind in the server's answer."""

MAX_FIRST_BYTES = 1 << 16
"""Size limit of the first message [bytes]; its sender is not authenticated yet."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a policy server."""

    token: str  # secret of the clients
    path: str | None = None  # Unix socket, None for TCP
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def connected(self, timeout_s: float) -> socket.socket:
        """Return a connection; `OSError` if no server listens there."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send a message; `OSError` if the other side is gone."""
    connection.sendall(frames.encode(message, arrays or {}))


def received(
    connection: socket.socket, *, timeout_s: float | None = None, max_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return message and arrays of the next frame. No limit of time [s] or size if the argument is None."""
    # `EOFError` if the other side is gone, `OSError` if the connection breaks or times out, `FrameError` if the frame
    # is damaged or too large.
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    left = max_bytes

    def read_exactly(size: int) -> bytearray:
        nonlocal left
        if left is not None:
            left -= size
            if left < 0:
                raise frames.FrameError(f"the message has more than {max_bytes} bytes")
        taken = bytearray(size)
        view, filled = memoryview(taken), 0
        while filled < size:
            connection.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))
            count = connection.recv_into(view[filled:])
            if count == 0:
                raise EOFError
            filled += count
        return taken

    try:
        return frames.decode(read_exactly)
    except (ValueError, KeyError, TypeError) as error:
        raise frames.FrameError(f"the message is damaged: {error}") from error


def split(entries: Entries) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Split entries into their texts and their arrays, which travel apart."""
    arrays = {name: values for name, values in entries.items() if isinstance(values, np.ndarray)}
    return {name: list(values) for name, values in entries.items() if name not in arrays}, arrays


# Gather the queries of several clients to a network into calls of one fixed size, and share out the answers.
#
# A call is cut from a queue of entries, and filled up with copies of one. So no answer depends on other clients.

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SoFar:
    """The sums of a server at the end of a call, over all clients."""

    at_s: float  # end of the call, on the server's clock [s]
    busy_s: float = 0.0  # time of all calls [s]
    entries: int = 0  # batch entries answered


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer to a query."""

    answers: dict[str, np.ndarray]  # by name; first dimension: entries
    usage: ServerUsage  # of this query
    so_far: SoFar  # of the server since its start


class Calls:
    """The calls of all networks of a server, one at a time."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s  # clock [s]
        self._lock = threading.Lock()
        self._so_far = SoFar(at_s=now_s())

    def made(self, call: Callable[[], T], *, entries: int) -> tuple[T, float, SoFar]:
        """Make a call that answers `entries` entries; return its result, its start [s] and the server's sums."""
        with self._lock:
            began_s = self.now_s()
            try:
                returned = call()
            finally:
                at_s, before = self.now_s(), self._so_far
                self._so_far = SoFar(at_s=at_s, busy_s=before.busy_s + at_s - began_s, entries=before.entries + entries)
            return returned, began_s, self._so_far


@dataclass(kw_only=True)
class _Query:
    entries: Entries
    number: int
    slots_per_call: int
    arrived_s: float
    answer: "Future[Answered]" = field(default_factory=Future)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for queries whose entries can be part of the same call."""
        forms = [
            (name, values.dtype.str, values.shape[1:]) if isinstance(values, np.ndarray) else (name, "text")
            for name, values in sorted(self.entries.items())
        ]
        return (self.slots_per_call, *forms)


class Batcher:
    """Answers the queries of several clients to one network, in a thread of its own."""

    def __init__(
        self,
        network: Network,
        *,
        max_batch: int,
        max_wait_s: float,
        calls: Calls | None = None,
    ) -> None:
        # It waits until a batch is full, every client has asked, or a query has waited `max_wait_s` [s]. A batch of
        # `max_batch` entries may take several calls. Networks that share `calls` never calculate at the same time.
        self._network, self._max_batch, self._max_wait_s = network, max_batch, max_wait_s
        self._calls = calls or Calls()
        self._changed = threading.Condition()
        self._waiting: list[_Query] = []
        self._num_askers = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="policy server", daemon=True)
        self._thread.start()

    @property
    def num_askers(self) -> int:
        """Number of connected clients."""
        return self._num_askers

    def come(self) -> None:
        """Add a client, which asks one query at a time."""
        with self._changed:
            self._num_askers += 1

    def go(self) -> None:
        """Remove a client."""
        with self._changed:
            self._num_askers -= 1
            self._changed.notify()

    def ask(self, entries: Entries, *, slots_per_call: int) -> Answered:
        """Return a query's answer, see `NetworkElsewhere.ask`; `PolicyError` if invalid, `PolicyLostError` if lost."""
        numbers = {name: len(values) for name, values in entries.items()}
        if len(set(numbers.values())) != 1 or min(numbers.values()) < 1:
            raise PolicyError(f"the parts of a query have to be about the same entries, they have {numbers}")
        number = next(iter(numbers.values()))
        if slots_per_call < 1:
            raise PolicyError(f"slots_per_call must be at least 1, got {slots_per_call}")
        query = _Query(entries=entries, number=number, slots_per_call=slots_per_call, arrived_s=self._calls.now_s())
        with self._changed:
            if self._is_closed:
                raise PolicyError("the policy server has ended")
            self._waiting.append(query)
            self._changed.notify()
        return query.answer.result()

    def close(self) -> None:
        """End the thread once the waiting queries are answered."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                left_s = self._waiting[0].arrived_s + self._max_wait_s - self._calls.now_s()
                self._changed.wait_for(self._is_ready, timeout=max(0.0, left_s))

                # Take the first query, and those behind it that can be answered with it.
                taken: list[_Query] = []
                number = 0
                for each in self._waiting:
                    if not taken or (each.kind == taken[0].kind and number + each.number <= self._max_batch):
                        taken.append(each)
                        number += each.number
                self._waiting = [each for each in self._waiting if not any(each is other for other in taken)]
            self._answer(taken)

    def _is_ready(self) -> bool:
        are_all = len(self._waiting) >= self._num_askers
        return are_all or self._is_closed or sum(each.number for each in self._waiting) >= self._max_batch

    def _answer(self, queries: Sequence[_Query]) -> None:
        try:
            answers, spent, so_far = self._called(queries)
        except Exception as error:  # noqa: BLE001  a network's error goes to its askers; other networks go on
            if len(queries) > 1:
                # One query may be invalid: ask again one by one, so that the others get their answers.
                for each in queries:
                    self._answer([each])
                return
            is_of_policy = isinstance(error, (PolicyError, PolicyLostError))
            raised = error if is_of_policy else PolicyError(f"{type(error).__name__}: {first_line(error)}")
            queries[0].answer.set_exception(raised)
            return
        first = 0
        for each, usage in zip(queries, spent, strict=True):
            part = {name: values[first : first + each.number] for name, values in answers.items()}
            each.answer.set_result(Answered(answers=part, usage=usage, so_far=so_far))
            first += each.number

    def _called(self, queries: Sequence[_Query]) -> tuple[dict[str, np.ndarray], list[ServerUsage], SoFar]:
        """Return the answers to all entries of the queries, the usage of each query, and the server's sums."""
        size, number = queries[0].slots_per_call, sum(each.number for each in queries)
        together: dict[str, np.ndarray | Sequence[str]] = {}
        for name in queries[0].entries:
            values = [each.entries[name] for each in queries]
            arrays = [each for each in values if isinstance(each, np.ndarray)]
            together[name] = np.concatenate(arrays) if arrays else [text for texts in values for text in texts]
        parts, began_s, so_far = self._calls.made(lambda: self._parts(together, number, size), entries=number)
        busy_s, calls = so_far.at_s - began_s, -(-number // size)
        answers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        wrong = [name for name, values in answers.items() if len(values) != number]
        if wrong:
            raise PolicyError(f"the network gave {len(answers[wrong[0]])} answers '{wrong[0]}' to {number} entries")
        # Each query bears a share of calls and time in proportion to its entries.
        usages = [
            ServerUsage(
                queries=1,
                entries=each.number,
                calls=calls * each.number / number,
                call_entries=calls * size * each.number / number,
                queue_s=began_s - each.arrived_s,
                busy_s=busy_s * each.number / number,
            )
            for each in queries
        ]
        return answers, usages, so_far

    def _parts(self, together: Entries, number: int, size: int) -> list[dict[str, np.ndarray]]:
        """Return the answers to the entries, one dict for each call."""
        parts: list[dict[str, np.ndarray]] = []
        for first in range(0, number, size):
            places = [*range(first, min(first + size, number))]
            # Every call has the same size, as the last digits of an answer may depend on it.
            filled = places + places[:1] * (size - len(places))
            # Always copy: an operation may round differently on another memory layout.
            taken: dict[str, np.ndarray | Sequence[str]] = {
                name: values[filled] if isinstance(values, np.ndarray) else [values[place] for place in filled]
                for name, values in together.items()
            }
            answered = self._network.answer(taken)
            parts.append({name: np.asarray(values)[: len(places)] for name, values in answered.items()})
        return parts
