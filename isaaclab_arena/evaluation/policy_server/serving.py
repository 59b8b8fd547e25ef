"""Serve networks over a listening socket: load what is asked for, and answer each asker in a thread of its own."""

import hmac
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from isaaclab_arena.errors import ArenaError, PolicyError, PolicyLostError, first_line
from isaaclab_arena.evaluation.policy_server import wire
from isaaclab_arena.evaluation.policy_server.wire import Batcher, Calls
from isaaclab_arena.interfaces.policy_traits import Network
from isaaclab_arena.workers.program.frames import FrameError

_LOG = logging.getLogger(__name__)
_FIRST_MESSAGE_S = 30.0


class LoadedNetworks:
    """The networks in memory: those with clients, and unused ones until another is loaded."""

    def __init__(self, loaders: Mapping[str, Callable[[], Network]], *, max_batch: int, max_wait_s: float) -> None:
        self.max_batch = max_batch
        self._loaders, self._max_wait_s = loaders, max_wait_s
        self._loading, self._calls = threading.Lock(), Calls()
        self._loaded: dict[str, tuple[Network, Batcher]] = {}

    def taken(self, key: str) -> tuple[Network, Batcher]:
        """Return a network, loaded if needed, and add a client to it; `PolicyError` if it is unknown."""
        with self._loading:
            if key not in self._loaded:
                if key not in self._loaders:
                    raise PolicyError("the run has no policy of that kind")
                # Unused networks are kept until another one needs memory: the next job may ask for the same.
                for unused in [name for name, (_, batcher) in self._loaded.items() if not batcher.num_askers]:
                    self._loaded.pop(unused)[1].close()
                network = self._loaders[key]()
                batcher = Batcher(network, max_batch=self.max_batch, max_wait_s=self._max_wait_s, calls=self._calls)
                self._loaded[key] = network, batcher
            found = self._loaded[key]
            found[1].come()
            return found

    def close(self) -> None:
        """Release all networks."""
        for _, batcher in self._loaded.values():
            batcher.close()
        self._loaded.clear()


class Serving:
    """Answers the clients that connect, until `close`."""

    def __init__(self, listening: socket.socket, networks: LoadedNetworks, *, token: str) -> None:
        # The listening socket stays open at the end: it also belongs to the rank that started this process.
        self._listening, self._networks, self._token = listening, networks, token
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="listening", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end all conversations."""
        self._is_closed = True
        self._thread.join()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._networks.close()

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
            _LOG.warning("an asker was left: %s", error)
        finally:
            self._connections.discard(connection)
            if batcher is not None:
                batcher.go()

    def _greeted(self, connection: socket.socket) -> Batcher | None:
        """Return the batcher of the client's network, None if the client is refused."""
        hello, _ = wire.received(connection, timeout_s=_FIRST_MESSAGE_S, max_bytes=wire.MAX_FIRST_BYTES)
        if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
            _LOG.warning("an asker with a wrong token was refused")
            wire.send(connection, {"error": "the token is wrong", "kind": "policy"})
            return None
        if hello.get("hello") != wire.VERSION:
            wire.send(connection, {"error": f"it speaks version {wire.VERSION}, no other", "kind": "policy"})
            return None
        try:
            network, batcher = self._networks.taken(str(hello.get("network")))
        except Exception as error:  # noqa: BLE001  loading is a user's code too; its error goes to the asking rank
            _LOG.warning("a network could not be loaded", exc_info=True)
            wire.send(connection, _error(error))
            return None
        try:
            # From here on the client is counted, and must be removed on an error.
            wire.send(connection, {"about": dict(network.about), "max_batch": self._networks.max_batch})
        except BaseException:
            batcher.go()
            raise
        return batcher

    def _answer_next(self, connection: socket.socket, batcher: Batcher) -> None:
        # A method of its own, so that the arrays of a query are freed before the wait for the next one.
        said, arrays = wire.received(connection)
        try:
            answered = batcher.ask({**arrays, **said["texts"]}, slots_per_call=said["slots_per_call"])
        except (PolicyError, PolicyLostError) as error:
            wire.send(connection, _error(error))
        else:
            told = {"number": said["number"], "usage": asdict(answered.usage), "so_far": asdict(answered.so_far)}
            wire.send(connection, told, answered.answers)


def _error(error: Exception) -> dict[str, Any]:
    told = str(error) if isinstance(error, ArenaError) else f"{type(error).__name__}: {first_line(error)}"
    kind = next((kind for kind, each in wire.ERRORS.items() if isinstance(error, each)), "policy")
    return {"error": told, "kind": kind}
