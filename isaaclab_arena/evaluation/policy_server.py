"""The program of a policy server: the networks of a run's policies, which several ranks share, behind one socket.

It reads its orders from stdin, and ends when stdin does.
"""

import hmac
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError, first_line
from isaaclab_arena.evaluation import batching, policy_client
from isaaclab_arena.evaluation.policy_client import NetworkOrder, ServerOrders, SoFar
from isaaclab_arena.evaluation.process import Settings, put_back
from isaaclab_arena.interfaces.policy_traits import Entries, Network
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.storage.atomic import adapter, json_line
from isaaclab_arena.storage.ledger import ServerUsage
from isaaclab_arena.workers.program import FrameError

# Gather the queries of several clients to a network into calls of one fixed size, and share out the answers.
#
# A call is cut from a queue of entries, and filled up with copies of one. So no answer depends on other clients.


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer to a query."""

    answers: dict[str, np.ndarray]  # by name; first dimension: entries
    usage: ServerUsage  # of this query
    so_far: SoFar  # of the server since its start


@dataclass(eq=False)
class Calls:
    """The calls of all networks of a server, one at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)  # held by the network that calculates
    so_far: SoFar = field(default_factory=lambda: SoFar(at_s=time.perf_counter()))  # sums at the end of the last call


_Asked: TypeAlias = tuple[Entries, int]
"""The entries of a query, and their number in each call."""


class Batcher(batching.Batcher[_Asked, Answered]):
    """Answers the queries of several clients to one network."""

    name, ended = "policy server", "the policy server has ended"

    def __init__(self, network: Network, *, max_batch: int, max_wait_s: float, calls: Calls | None = None) -> None:
        # A batch of `max_batch` entries may take several calls. Networks that share `calls` never calculate at the same
        # time.
        self._network, self._calls = network, calls or Calls()
        super().__init__(max_batch=max_batch, max_wait_s=max_wait_s)

    def ask(self, entries: Entries, *, slots_per_call: int) -> Answered:
        """Return a query's answer, see `NetworkElsewhere.ask`; `PolicyError` if invalid, `PolicyLostError` if lost."""
        numbers = {name: len(values) for name, values in entries.items()}
        if len(set(numbers.values())) != 1 or min(numbers.values()) < 1:
            raise PolicyError(f"the arrays of a query must have the same number of entries, they have {numbers}")
        if slots_per_call < 1:
            raise PolicyError(f"slots_per_call must be at least 1, got {slots_per_call}")
        forms = [
            (name, values.dtype.str, values.shape[1:]) if isinstance(values, np.ndarray) else (name, "text")
            for name, values in sorted(entries.items())
        ]
        number, kind = next(iter(numbers.values())), (slots_per_call, *forms)
        return self.submit((entries, slots_per_call), number=number, kind=kind).result()

    def _answers(self, queries: Sequence[batching.Query[_Asked, Answered]]) -> Iterator[Answered | Exception]:
        try:
            answered = self._called(queries)
        except Exception as error:  # noqa: BLE001  a network's error goes to its askers; other networks go on
            if len(queries) > 1:
                # One query may be invalid: ask again one by one, so that the others get their answers.
                for each in queries:
                    yield from self._answers([each])
                return
            is_of_policy = isinstance(error, (PolicyError, PolicyLostError))
            yield error if is_of_policy else PolicyError(f"{type(error).__name__}: {first_line(error)}")
            return
        yield from answered

    def _called(self, queries: Sequence[batching.Query[_Asked, Answered]]) -> list[Answered]:
        """Return the answers to queries, each with its usage and the server's sums."""
        all_entries, size = [each.asked[0] for each in queries], queries[0].asked[1]
        number = sum(each.number for each in queries)
        together: dict[str, np.ndarray | Sequence[str]] = {}
        for name in all_entries[0]:
            values = [entries[name] for entries in all_entries]
            arrays = [each for each in values if isinstance(each, np.ndarray)]
            together[name] = np.concatenate(arrays) if arrays else [text for texts in values for text in texts]
        parts: list[Mapping[str, np.ndarray]] = []
        with self._calls.lock:
            began_s, before = time.perf_counter(), self._calls.so_far
            try:
                for first in range(0, number, size):
                    places = [*range(first, min(first + size, number))]
                    # Every call has the same size, as the last digits of an answer may depend on it.
                    filled = places + places[:1] * (size - len(places))
                    # Always copy: an operation may round differently on another memory layout.
                    taken: dict[str, np.ndarray | Sequence[str]] = {
                        name: values[filled] if isinstance(values, np.ndarray) else [values[place] for place in filled]
                        for name, values in together.items()
                    }
                    said = self._network.answer(taken)
                    parts.append({name: np.asarray(values)[: len(places)] for name, values in said.items()})
            finally:
                at_s, entries = time.perf_counter(), before.entries + number
                so_far = SoFar(at_s=at_s, busy_s=before.busy_s + at_s - began_s, entries=entries)
                self._calls.so_far = so_far
        answers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        wrong = [name for name, values in answers.items() if len(values) != number]
        if wrong:
            raise PolicyError(f"the network gave {len(answers[wrong[0]])} answers '{wrong[0]}' for {number} entries")

        # Each query gets its part, and bears a share of calls and time in proportion to its entries.
        busy_s, num_calls = so_far.at_s - began_s, -(-number // size)
        answered: list[Answered] = []
        first = 0
        for each in queries:
            usage = ServerUsage(
                queries=1,
                entries=each.number,
                calls=num_calls * each.number / number,
                call_entries=num_calls * size * each.number / number,
                queue_s=began_s - each.arrived_s,
                busy_s=busy_s * each.number / number,
            )
            part = {name: values[first : first + each.number] for name, values in answers.items()}
            answered.append(Answered(answers=part, usage=usage, so_far=so_far))
            first += each.number
        return answered


# Serve networks over a listening socket: load one for its first client, and answer each client in its own thread.

_LOG = logging.getLogger(__name__)
_FIRST_MESSAGE_S = 30.0


class Serving:
    """Answers the clients that connect, until `close`, with networks that are loaded when they are first asked for."""

    def __init__(
        self,
        listening: socket.socket,
        loaders: Mapping[str, Callable[[], Network]],
        *,
        max_batch: int,
        max_wait_s: float,
        token: str,
    ) -> None:
        # The listening socket stays open at the end: it also belongs to the rank that started this process.
        self._listening, self._token = listening, token
        self._loaders, self._max_batch, self._max_wait_s = loaders, max_batch, max_wait_s
        self._loading, self._calls = threading.Lock(), Calls()
        self._loaded: dict[str, tuple[Network, Batcher]] = {}
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="listening", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, end all conversations, and release all networks."""
        self._is_closed = True
        self._thread.join()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _, batcher in self._loaded.values():
            batcher.close()
        self._loaded.clear()

    def _accept(self) -> None:
        self._listening.settimeout(0.1)
        while not self._is_closed:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                # The socket is closed: no client can connect any more.
                return
            self._connections.add(connection)
            threading.Thread(target=self._converse, args=(connection,), name="asker", daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        batcher = None
        try:
            with connection:
                batcher = self._greeted(connection)
                while batcher is not None:
                    self._answer_next(connection, batcher)
        except (EOFError, OSError):
            # The client is gone, and waits for no answer.
            pass
        except FrameError as error:
            _LOG.warning("dropped a client: %s", error)
        finally:
            self._connections.discard(connection)
            if batcher is not None:
                batcher.count(-1)

    def _greeted(self, connection: socket.socket) -> Batcher | None:
        """Return the batcher of the client's network, None if the client is refused."""
        hello, _ = policy_client.received(
            connection, timeout_s=_FIRST_MESSAGE_S, max_bytes=policy_client.MAX_FIRST_BYTES
        )
        if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
            _LOG.warning("refused a client with a wrong token")
            policy_client.send(connection, {"error": "the token is wrong", "kind": "policy"})
            return None
        version = policy_client.VERSION
        if hello.get("hello") != version:
            policy_client.send(connection, {"error": f"it speaks only version {version}", "kind": "policy"})
            return None
        key = str(hello.get("network"))
        try:
            with self._loading:
                if key not in self._loaded:
                    if key not in self._loaders:
                        raise PolicyError("the run has no policy of that kind")  # noqa: TRY301  sent as any other
                    # Unused networks are kept until another one needs memory: the next job may ask for the same.
                    for unused in [name for name, (_, each) in self._loaded.items() if not each.num_askers]:
                        self._loaded.pop(unused)[1].close()
                    loaded = self._loaders[key]()
                    limits = {"max_batch": self._max_batch, "max_wait_s": self._max_wait_s}
                    self._loaded[key] = loaded, Batcher(loaded, **limits, calls=self._calls)
                network, batcher = self._loaded[key]
                batcher.count(1)
        except Exception as error:  # noqa: BLE001  loading is a user's code too; its error goes to the asking rank
            _LOG.warning("a network could not be loaded", exc_info=True)
            policy_client.send(connection, _error(error))
            return None
        try:
            # From here on the client is counted, and must be removed on an error.
            policy_client.send(connection, {"about": dict(network.about), "max_batch": self._max_batch})
        except BaseException:
            batcher.count(-1)
            raise
        return batcher

    def _answer_next(self, connection: socket.socket, batcher: Batcher) -> None:
        # A method of its own, so that the arrays of a query are freed before the wait for the next one.
        said, arrays = policy_client.received(connection)
        try:
            answered = batcher.ask({**arrays, **said["texts"]}, slots_per_call=said["slots_per_call"])
        except (PolicyError, PolicyLostError) as error:
            policy_client.send(connection, _error(error))
        else:
            told = {"number": said["number"], "usage": asdict(answered.usage), "so_far": asdict(answered.so_far)}
            policy_client.send(connection, told, answered.answers)


def _error(error: Exception) -> dict[str, Any]:
    told = str(error) if isinstance(error, ArenaError) else f"{type(error).__name__}: {first_line(error)}"
    kind = next((kind for kind, each in policy_client.ERRORS.items() if isinstance(error, each)), "policy")
    return {"error": told, "kind": kind}


_SET_BY_NETWORKS = Settings()


def main() -> None:
    """Serve until the rank that started this process closes its stdin, or dies."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    orders = adapter(ServerOrders).validate_json(sys.stdin.buffer.readline())
    set_up_torch(orders.torch_threads, deterministic=orders.deterministic)
    loaders: dict[str, Callable[[], Network]] = {key: partial(load, each) for key, each in orders.networks.items()}
    limits = {"max_batch": orders.max_batch, "max_wait_s": orders.max_wait_ms / 1000.0}
    Serving(socket.socket(fileno=orders.listening), loaders, token=orders.token, **limits)
    sys.stdin.buffer.read()
    # A network may be in the middle of a call, for which no client waits.
    os._exit(0)


def load(order: NetworkOrder) -> Network:
    """Load the network of a policy; `ConfigError` if the policy is unknown, its options are wrong, or it has none."""
    by, key = f"policy '{order.policy_type}'", json_line(order)
    with put_back(), _SET_BY_NETWORKS.of(by, key):
        policy: Any = resolve_policy_class(order.policy_type).from_dict(order.options)
        if "network" not in policy.offers:
            raise ConfigError(f"policy '{order.policy_type}' has no network that ranks can share")
        return AskedNetwork(policy.network(), by, key)


class AskedNetwork:
    """A network that is asked in any thread without recording gradients; see `Network`."""

    def __init__(self, network: Network, by: str, key: str) -> None:
        # `by` and `key` as in `Settings.of`: process-wide settings made while loading are applied again in each call.
        self._network, self._by, self._key = network, by, key
        self.about = network.about

    @torch.no_grad()
    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the answers; see `Network.answer`."""
        if not _SET_BY_NETWORKS.set_by.get(self._key):
            return self._network.answer(entries)
        with put_back(), _SET_BY_NETWORKS.of(self._by, self._key):
            return self._network.answer(entries)


if __name__ == "__main__":
    main()
