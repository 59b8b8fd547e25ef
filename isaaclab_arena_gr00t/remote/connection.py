"""A connection to a GR00T policy server that keeps to its time-outs, and finds a server that comes back."""

import logging
import socket as sockets
import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena_gr00t.remote.address import KEY_FILE_OPTION, ServerAddress
from isaaclab_arena_gr00t.remote.gr00t_wire import pack, unpack
from isaaclab_arena_gr00t.remote.messages import DEFAULT_LIMITS, MessageError, MessageLimits

# Below the program's own logger, so that it is in the log of the rank.
_LOG = logging.getLogger("isaaclab_arena.gr00t")

_FIRST_ATTEMPT_S = 0.25
_LONGEST_ATTEMPT_S = 10.0
_FIRST_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 2000
_LOSSES: dict[int, str] = {
    zmq.EVENT_DISCONNECTED: "it closed the connection",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "what listens there does not speak ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there does not speak ZeroMQ",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it refused the connection",
}
_SHUTTING_DOWN = "the server is shutting down"
"""What the server that comes along answers to those who wait when it ends."""


class ServerUnreachableError(PolicyLostError):
    """A policy server that does not answer, or no longer. Who runs the program can mend it."""


class PolicyServerConnection:
    """Asks a policy server, one request at a time. It belongs to one thread.

    A request that gets no answer in time, or loses its connection, is sent once more as soon as the server answers a
    ping again. Until then it is pinged, at first often and then less and less, for ``wait_for_server_s`` in all. The
    requests of this package may be repeated: an answer follows from the request alone.

    Args:
        address: The server.
        limits: How large its answers may be.
    """

    def __init__(self, address: ServerAddress, limits: MessageLimits = DEFAULT_LIMITS) -> None:
        self.address = address
        self._limits = limits
        # Shared by all: a context of its own would hang when it is collected before its socket.
        self._context = zmq.Context.instance()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._loss = ""

    def wait_until_ready(self) -> None:
        """Return when the server answers.

        Raises:
            ServerUnreachableError: If it does not within ``wait_for_server_s``.
            ConfigError: If it wants another token.
        """
        ping = self._request("ping", None)
        deadline = time.monotonic() + self.address.wait_for_server_s
        attempt_s = _FIRST_ATTEMPT_S
        while True:
            started = time.monotonic()
            answer = self._exchange(ping, attempt_s)
            if answer is not None and not self._is_leaving(answer):
                self._message(answer, "ping")
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ServerUnreachableError(self._why_unreachable())
            # An attempt that ended early, say because something else listens there, must not be repeated at once.
            time.sleep(max(0.0, min(started + attempt_s - time.monotonic(), left_s)))
            attempt_s = min(2 * attempt_s, _LONGEST_ATTEMPT_S, max(deadline - time.monotonic(), _FIRST_ATTEMPT_S))

    def call(self, endpoint: str, data: dict[str, Any] | None = None) -> Any:
        """Return the server's answer.

        Args:
            endpoint: What is asked: ``get_action``, ``reset``, ``get_modality_config``.
            data: What goes with it.

        Raises:
            ServerUnreachableError: If the server is gone and does not come back in time, or takes too long.
            PolicyError: If it answers with an error, or with something that cannot be read.
            ConfigError: If it wants another token.
        """
        request = self._request(endpoint, data)
        answer = self._exchange(request, self.address.timeout_s)
        if answer is None or self._is_leaving(answer):
            reason = self._loss if answer is None else _SHUTTING_DOWN
            _LOG.warning("the policy server at %s: %s; waiting for it", self.address, reason)
            self.wait_until_ready()
            answer = self._exchange(request, self.address.timeout_s)
        if answer is None:
            raise ServerUnreachableError(
                f"the policy server at {self.address} answers a ping, but not '{endpoint}': {self._loss}, twice; "
                f"its log may say why, and timeout_s has to leave its model enough time"
            )
        return self._message(answer, endpoint)

    def close(self) -> None:
        """Close the connection. May be called more than once; the next request opens another."""
        connection, self._socket, self._monitor = self._socket, None, None
        if connection is not None:
            connection.disable_monitor()
            connection.close(linger=0)

    def _request(self, endpoint: str, data: dict[str, Any] | None) -> bytes:
        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self.address.api_token:
            request["api_token"] = self.address.api_token
        try:
            return pack(request)
        except MessageError as error:
            raise PolicyError(f"'{endpoint}' cannot be asked of the policy server: {error}") from error

    def _message(self, answer: bytes, endpoint: str) -> Any:
        try:
            message = unpack(answer, self._limits)
        except MessageError as error:
            raise PolicyError(
                f"the policy server at {self.address} answered '{endpoint}' with something else than a GR00T policy "
                f"server does: {error}; make sure that remote_host and remote_port name the right one"
            ) from error
        if not isinstance(message, dict) or "error" not in message:
            return message
        if str(message["error"]).startswith("Unauthorized"):
            what = "another token than the one given here" if self.address.api_token else "a token"
            text = f"must name a file with the token of the policy server at {self.address}, which wants {what}"
            raise ConfigError(Problem(f"{text}; it says: {message['error']}", key=KEY_FILE_OPTION))
        raise PolicyError(f"the policy server at {self.address} could not answer '{endpoint}': {message['error']}")

    def _is_leaving(self, answer: bytes) -> bool:
        return answer == pack({"error": _SHUTTING_DOWN})

    def _exchange(self, request: bytes, timeout_s: float) -> bytes | None:
        """Return the answer to a request; None if there is none, and then `_loss` says why."""
        connection, monitor = self._opened()
        try:
            connection.send(request, flags=zmq.NOBLOCK, copy=len(request) < 65536)
            self._loss = self._wait_for_answer(connection, monitor, timeout_s)
            if not self._loss:
                return connection.recv(flags=zmq.NOBLOCK)
        except zmq.Again:
            self._loss = "it takes no requests"
        # A REQ socket that waits for an answer can ask nothing else.
        self.close()
        return None

    def _wait_for_answer(self, connection: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]", timeout_s: float) -> str:
        """Return as soon as there is an answer, an empty text, or it is clear that there will be none, and why."""
        poller = zmq.Poller()
        poller.register(connection, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(max(1, round(left_s * 1000))))
            if connection in ready:
                return ""
            if monitor in ready:
                event = recv_monitor_message(monitor)["event"]
                if event in _LOSSES:
                    return _LOSSES[event]
        return f"it did not answer within {timeout_s:g} s"

    def _opened(self) -> tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]:
        if self._socket is not None and self._monitor is not None:
            return self._socket, self._monitor
        host = self.address.host
        connection = self._context.socket(zmq.REQ)
        connection.setsockopt(zmq.LINGER, 0)
        connection.setsockopt(zmq.MAXMSGSIZE, 2 * self._limits.max_bytes)
        connection.setsockopt(zmq.RECONNECT_IVL, _FIRST_RECONNECT_MS)
        connection.setsockopt(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MS)
        # A machine that vanishes closes no connection; its silence does, well before a long time-out.
        connection.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        connection.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        connection.setsockopt(zmq.IPV6, int(":" in host))
        monitor = connection.get_monitor_socket(sum(_LOSSES))
        try:
            connection.connect(f"tcp://[{host}]:{self.address.port}" if ":" in host else f"tcp://{self.address}")
        except zmq.ZMQError as error:
            connection.disable_monitor()
            connection.close(linger=0)
            raise ConfigError(Problem(f"'{host}' is no machine: {error.strerror}", key="remote_host")) from error
        self._socket, self._monitor = connection, monitor
        return connection, monitor

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
