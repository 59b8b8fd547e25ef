"""Connect to an openpi policy server, which first describes its model, then answers observations."""

import logging
from collections.abc import Mapping
from typing import Any

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError
from isaaclab_arena_gr00t.remote.identity import identity_line, same_server
from isaaclab_arena_gr00t.remote.websocket import ANSWER_LIMITS, LostError, Websocket, plain
from isaaclab_arena_gr00t.remote.wire.messages import WireError, WireLimits, in_words
from isaaclab_arena_gr00t.remote.wire.openpi_wire import pack, unpack

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_LAST_CHARACTERS = 4000


class OpenpiConnection:
    """Asks an openpi policy server, one observation at a time. It belongs to one thread.

    Args:
        address: The server; its ``api_token`` is sent as ``Authorization: Api-Key``.
        limits: How large its answers may be.
    """

    def __init__(self, address: ServerAddress, limits: WireLimits = ANSWER_LIMITS) -> None:
        self.address = address
        self.metadata: Mapping[str, Any] = {}
        self._stated: str | None = None
        self._websocket = Websocket(address, server="openpi policy server", limits=limits)

    @property
    def stated(self) -> str:
        """The server's first description of itself, in one line; `UNKNOWN` if there is none."""
        return UNKNOWN if self._stated is None else self._stated

    def wait_until_ready(self) -> None:
        """Wait until there is a connection, and the server has described its model.

        Raises:
            ServerUnreachableError: If there is none within ``wait_for_server_s``.
            ConfigError: If the address is invalid, or the server needs another key.
            PolicyError: If what answers is no such server.
        """
        self._websocket.open_in_time(self._meet)

    def infer(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's answer to an observation.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time, or takes too long.
            PolicyError: If it answers with an error, or with something that cannot be read.
        """
        try:
            request = pack(dict(observation))
        except WireError as error:
            raise PolicyError(f"the observation cannot be sent to the openpi policy server: {error}") from error
        try:
            return self._ask(request)
        except LostError as error:
            _LOG.warning("the openpi policy server at %s: %s; waiting for it", self._websocket.uri, plain(error))
        self.wait_until_ready()
        try:
            return self._ask(request)
        except LostError as error:
            raise ServerUnreachableError(
                f"the openpi policy server at {self._websocket.uri} takes connections, but answers nothing: "
                f"{plain(error)}, twice; its log may say why, and timeout_s has to leave its model enough time"
            ) from error

    def close(self) -> None:
        """Close the connection. May be called more than once; the next request opens another."""
        self._websocket.close()

    def _meet(self, timeout_s: float) -> None:
        where = self._websocket.uri
        metadata = self._received(timeout_s)
        if not isinstance(metadata, Mapping):
            self.close()
            raise PolicyError(f"{where} is no openpi policy server: it introduced itself with {in_words(metadata)}")
        try:
            self._stated = same_server(self._stated, identity_line(metadata), where=where)
        except PolicyError:
            self.close()
            raise
        self.metadata = metadata

    def _ask(self, request: bytes) -> Mapping[str, Any]:
        self._websocket.send(request)
        answer = self._received(self.address.timeout_s)
        if not isinstance(answer, Mapping):
            where = self._websocket.uri
            raise PolicyError(f"the openpi policy server at {where} answered {in_words(answer)}, a map is due")
        return answer

    def _received(self, timeout_s: float) -> Any:
        """Return the next message; after any error the connection is unusable."""
        try:
            return self._read(self._websocket.receive(timeout_s))
        except PolicyError:
            self.close()
            raise

    def _read(self, answer: str | bytes) -> Any:
        where = self._websocket.uri
        if isinstance(answer, str):
            # This is a traceback, after which the server closes the connection.
            raise PolicyError(f"the openpi policy server at {where} failed: {_last_line(answer)}")
        try:
            return unpack(answer, self._websocket.limits)
        except WireError as error:
            raise PolicyError(f"the openpi policy server at {where} sent something else: {plain(error)}") from error


def _last_line(text: str) -> str:
    lines = [line for line in text[-_LAST_CHARACTERS:].splitlines() if line.strip()]
    return plain(lines[-1].strip()) if lines else "it does not say why"
