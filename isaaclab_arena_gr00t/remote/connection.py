"""Connect to a GR00T policy server, with time-outs, and reconnect when the server comes back."""

import logging
import socket as sockets
import time
from typing import Any

from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena_gr00t.modality import StatedModality
from isaaclab_arena_gr00t.remote.address import KEY_FILE_OPTION, ServerAddress
from isaaclab_arena_gr00t.remote.identity import identity_line, same_server
from isaaclab_arena_gr00t.remote.request_socket import AnswerTooLargeError, RequestSocket
from isaaclab_arena_gr00t.remote.wire.arrays import ArrayFormat
from isaaclab_arena_gr00t.remote.wire.gr00t_wire import pack, received
from isaaclab_arena_gr00t.remote.wire.messages import DEFAULT_LIMITS, WireError, WireLimits

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_FIRST_ATTEMPT_S = 0.25
_LONGEST_ATTEMPT_S = 10.0
_LONGEST_WORDS = 500
_SHUTTING_DOWN = "the server is shutting down"
"""The included server's answer to waiting clients when it ends."""


class ServerUnreachableError(PolicyLostError):
    """A policy server does not answer; the user can mend this."""


class PolicyServerConnection:
    """Asks a policy server, one request at a time. It belongs to one thread.

    A request without an answer in time, or with a lost connection, is sent once more as soon as the server answers a
    ping again. Until then the server is pinged less and less often, for ``wait_for_server_s`` in all. Requests of this
    package may be repeated, because an answer depends only on the request.

    Arrays are sent in the format of the server's answers. To learn the format, ask for ``get_modality_config`` first.

    Args:
        address: The server.
        limits: How large its answers may be.
    """

    def __init__(self, address: ServerAddress, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self.address = address
        self._limits = limits
        self._socket: RequestSocket | None = None
        self._loss = ""
        self._stated: str | None = None
        self._arrays = ArrayFormat.NPY

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            ServerUnreachableError: If it does not within ``wait_for_server_s``.
            ConfigError: If it wants another token.
        """
        ping = self._request("ping", None)
        deadline = time.monotonic() + self.address.wait_for_server_s
        attempt_s = _FIRST_ATTEMPT_S
        while True:
            started = time.monotonic()
            answer = self._exchange(ping, "ping", attempt_s)
            if answer is not None and not self._is_leaving(answer):
                self._meet(self._message(answer, "ping"))
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ServerUnreachableError(self._why_unreachable())
            # An attempt that failed early, for example because another program listens there, must not be repeated at
            # once.
            time.sleep(max(0.0, min(started + attempt_s - time.monotonic(), left_s)))
            attempt_s = min(2 * attempt_s, _LONGEST_ATTEMPT_S, max(deadline - time.monotonic(), _FIRST_ATTEMPT_S))

    @property
    def stated(self) -> str:
        """The server's first description of its model, in one line; `UNKNOWN` if there is none."""
        return UNKNOWN if self._stated is None else self._stated

    def _meet(self, answer: Any) -> None:
        """Read the description of a server's model from its answer to a ping; NVIDIA's has none."""
        line = identity_line(answer.get("serves") if isinstance(answer, dict) else None)
        self._stated = same_server(self._stated, line, where=str(self.address))

    def call(self, endpoint: str, data: dict[str, Any] | None = None) -> Any:
        """Return the server's answer.

        Args:
            endpoint: The endpoint: ``get_action``, ``reset``, ``get_modality_config``.
            data: What goes with it.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time, or takes too long.
            PolicyError: If it answers with an error, or with something that cannot be read.
            ConfigError: If it wants another token.
        """
        request = self._request(endpoint, data)
        answer = self._exchange(request, endpoint, self.address.timeout_s)
        if answer is None or self._is_leaving(answer):
            reason = self._loss if answer is None else _SHUTTING_DOWN
            _LOG.warning("the policy server at %s: %s; waiting for it", self.address, reason)
            self.wait_until_ready()
            answer = self._exchange(request, endpoint, self.address.timeout_s)
        if answer is None:
            raise ServerUnreachableError(
                f"the policy server at {self.address} answers a ping, but not '{endpoint}': {self._loss}, twice; "
                f"its log may say why, and timeout_s has to leave its model enough time"
            )
        return self._message(answer, endpoint)

    def close(self) -> None:
        """Close the connection. May be called more than once; the next request opens another."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _request(self, endpoint: str, data: dict[str, Any] | None) -> bytes:
        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self.address.api_token:
            request["api_token"] = self.address.api_token
        try:
            return pack(request, self._arrays)
        except WireError as error:
            raise PolicyError(f"'{endpoint}' cannot be asked of the policy server: {error}") from error

    def _message(self, answer: bytes | bytearray, endpoint: str) -> Any:
        try:
            message, arrays = received(answer, self._limits, modality=StatedModality)
        except WireError as error:
            raise self._unreadable(endpoint, error) from error
        self._arrays = arrays or self._arrays
        if not isinstance(message, dict) or "error" not in message:
            return message
        says = plain_text(str(message["error"])[:_LONGEST_WORDS])
        if says.startswith("Unauthorized"):
            what = "another token than the one given here" if self.address.api_token else "a token"
            text = f"must name a file with the token of the policy server at {self.address}, which wants {what}"
            raise ConfigError(Problem(f"{text}; it says: {says}", key=KEY_FILE_OPTION))
        raise PolicyError(f"the policy server at {self.address} could not answer '{endpoint}': {says}")

    def _unreadable(self, endpoint: str, error: Exception) -> PolicyError:
        return PolicyError(
            f"the policy server at {self.address} answered '{endpoint}' with something else than a GR00T policy "
            f"server does: {plain_text(error)}; make sure that remote_host and remote_port name the right one"
        )

    def _is_leaving(self, answer: bytes | bytearray) -> bool:
        return answer == pack({"error": _SHUTTING_DOWN})

    def _exchange(self, request: bytes, endpoint: str, timeout_s: float) -> bytes | bytearray | None:
        """Return the answer to a request; None if there is none, with the reason in `_loss`."""
        deadline = time.monotonic() + timeout_s
        try:
            if self._socket is None:
                host, port = self.address.host, self.address.port
                self._socket = RequestSocket(host, port, timeout_s=timeout_s, max_bytes=self._limits.max_message_bytes)
            return self._socket.ask(request, deadline - time.monotonic())
        except TimeoutError:
            self._loss = f"it did not answer within {timeout_s:g} s"
        except OSError as error:
            self._loss = error.strerror or str(error)
        except UnicodeError as error:
            raise ConfigError(Problem(f"'{self.address.host}' is no machine: {error}", key="remote_host")) from error
        except AnswerTooLargeError as error:
            self.close()
            raise self._unreadable(endpoint, error) from error
        # What comes late would be taken for the answer to the next request.
        self.close()
        return None

    def _why_unreachable(self) -> str:
        address = self.address
        reason = self._loss
        try:
            sockets.getaddrinfo(address.host, address.port)
        except OSError as error:
            reason = f"the name '{address.host}' means nothing here ({error.strerror})"
        return (
            f"no policy server answers at {address}, after waiting {address.wait_for_server_s:g} s for it: {reason}; "
            f"start one with: gr00t-server --model_path CHECKPOINT --port {address.port}"
        )
