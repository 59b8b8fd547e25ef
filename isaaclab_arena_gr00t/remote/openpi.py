"""Connect to an openpi policy server: a websocket that first describes its model, then answers observations."""

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from isaaclab_arena.errors import ConfigError, PolicyError, Problem
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.logs import plain_text
from isaaclab_arena_gr00t.remote.address import KEY_FILE_OPTION, ServerAddress
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError
from isaaclab_arena_gr00t.remote.identity import identity_line, same_server
from isaaclab_arena_gr00t.remote.wire.messages import WireError, WireLimits, in_words
from isaaclab_arena_gr00t.remote.wire.openpi_wire import pack, unpack

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CLOSE_S = 1.0
_UNAUTHORISED = (401, 403)
_LONGEST_WORDS = 500
_ANSWER_LIMITS = WireLimits(max_message_bytes=32 * 1024 * 1024)
"""An answer is a chunk of actions; a text may use four times its bytes in memory."""


class _LostError(Exception):
    """The connection is of no use any more."""


class OpenpiConnection:
    """Asks an openpi policy server, one observation at a time. It belongs to one thread.

    Args:
        address: The server; its ``api_token`` is sent as ``Authorization: Api-Key``.
        limits: How large its answers may be.
    """

    def __init__(self, address: ServerAddress, limits: WireLimits = _ANSWER_LIMITS) -> None:
        self.address = address
        self.metadata: Mapping[str, Any] = {}
        self._stated: str | None = None
        self._limits = limits
        self._open = ExitStack()
        self._connection: ClientConnection | None = None

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
        deadline = time.monotonic() + self.address.wait_for_server_s
        pause_s = _FIRST_PAUSE_S
        while self._connection is None:
            left_s = max(_FIRST_PAUSE_S, deadline - time.monotonic())
            try:
                self._connect(min(left_s, self.address.timeout_s))
            except (OSError, _LostError) as error:
                if time.monotonic() + pause_s >= deadline:
                    raise ServerUnreachableError(
                        f"no openpi policy server answers at {self._uri}, after waiting "
                        f"{self.address.wait_for_server_s:g} s for it: {_plain(error)}"
                    ) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

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
        except _LostError as error:
            _LOG.warning("the openpi policy server at %s: %s; waiting for it", self._uri, _plain(error))
        self.wait_until_ready()
        try:
            return self._ask(request)
        except _LostError as error:
            raise ServerUnreachableError(
                f"the openpi policy server at {self._uri} takes connections, but answers nothing: "
                f"{_plain(error)}, twice; its log may say why, and timeout_s has to leave its model enough time"
            ) from error

    def close(self) -> None:
        """Close the connection. May be called more than once; the next request opens another."""
        self._connection = None
        self._open.close()

    @property
    def _uri(self) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"ws://{host}:{self.address.port}"

    def _connect(self, timeout_s: float) -> None:
        token = self.address.api_token
        try:
            dialled = connect(
                self._uri,
                compression=None,
                max_size=self._limits.max_message_bytes,
                additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
                open_timeout=timeout_s,
                close_timeout=_CLOSE_S,
                # The server's model blocks its event loop, so it answers no ping meanwhile.
                ping_interval=None,
                proxy=None,
            )
            self._connection = self._open.enter_context(dialled)
        except InvalidURI as error:
            raise ConfigError(Problem(f"'{self.address.host}' is no machine: {error}", key="remote_host")) from error
        except InvalidHandshake as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in _UNAUTHORISED:
                what = "another key than the one given here" if token else "a key"
                text = f"must name a file with the key of the openpi policy server at {self._uri}, which wants {what}"
                raise ConfigError(Problem(f"{text}; it says: {_plain(error)}", key=KEY_FILE_OPTION)) from error
            raise _LostError(f"it refuses the connection ({_plain(error)})") from error
        metadata = self._received(timeout_s)
        if not isinstance(metadata, Mapping):
            self.close()
            raise PolicyError(f"{self._uri} is no openpi policy server: it introduced itself with {in_words(metadata)}")
        self.metadata = metadata
        try:
            self._stated = same_server(self._stated, identity_line(metadata), where=self._uri)
        except PolicyError:
            self.close()
            raise

    def _ask(self, request: bytes) -> Mapping[str, Any]:
        if self._connection is None:
            raise _LostError("there is no connection")
        try:
            self._connection.send(request)
        except (ConnectionClosed, OSError) as error:
            self.close()
            raise _LostError(f"the connection is lost ({_plain(error)})") from error
        answer = self._received(self.address.timeout_s)
        if not isinstance(answer, Mapping):
            raise PolicyError(f"the openpi policy server at {self._uri} answered {in_words(answer)}, a map is due")
        return answer

    def _received(self, timeout_s: float) -> Any:
        """Return the next message; after any error the connection is unusable."""
        if self._connection is None:
            raise _LostError("there is no connection")
        try:
            return self._read(self._connection.recv(timeout=timeout_s))
        except TimeoutError as error:
            # What comes late would be taken for the answer to the next request.
            self.close()
            raise _LostError(f"it did not answer within {timeout_s:g} s") from error
        except (WebSocketException, OSError) as error:
            self.close()
            raise _LostError(f"the connection is lost ({_plain(error)})") from error
        except PolicyError:
            self.close()
            raise

    def _read(self, answer: str | bytes) -> Any:
        if isinstance(answer, str):
            # This is a traceback, after which the server closes the connection.
            raise PolicyError(f"the openpi policy server at {self._uri} failed: {_last_line(answer)}")
        try:
            return unpack(answer, self._limits)
        except WireError as error:
            raise PolicyError(
                f"the openpi policy server at {self._uri} sent something else: {_plain(error)}"
            ) from error


def _last_line(text: str) -> str:
    lines = [line for line in text[-8 * _LONGEST_WORDS :].splitlines() if line.strip()]
    return _plain(lines[-1].strip()) if lines else "it does not say why"


def _plain(words: object) -> str:
    """Return text of a server, or of an error that may repeat it, shortened and without control characters."""
    return plain_text(str(words)[:_LONGEST_WORDS])
