"""Asks a policy server, with time-outs that are kept."""

from typing import Any

import zmq

from gr00t.data.types import ModalityConfig
from gr00t.policy.msgpack_numpy import DEFAULT_LIMITS, WireError, WireLimits, pack, unpack
from gr00t.policy.policy import BasePolicy


class ServerTimeoutError(RuntimeError):
    """A server that did not answer in time."""


class PolicyClient(BasePolicy):
    """A policy whose network runs in another process, behind this package's server or NVIDIA's.

    It holds one connection and belongs to one thread. A request that was not answered in time leaves nothing behind:
    the next one goes over a new connection, as a REQ socket that waits for an answer cannot ask anything else.

    Args:
        host: Machine of the server.
        port: Port of the server.
        timeout_ms: How long to wait for an answer [ms].
        api_token: What the server asks for, None for nothing.
        strict: Accepted for NVIDIA's signature; it is the server that checks.
        limits: How large an answer may be.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 5555,
        timeout_ms: int = 15000,
        api_token: str | None = None,
        strict: bool = False,  # noqa: FBT001, FBT002  as in NVIDIA's package
        limits: WireLimits = DEFAULT_LIMITS,
    ) -> None:
        del strict
        super().__init__(strict=False)
        self.host = host
        self.port = port
        self.timeout_ms = timeout_ms
        self.api_token = api_token
        self._limits = limits
        # One that everybody shares: a context of its own would hang when it is collected before its socket.
        self.context = zmq.Context.instance()
        self.socket = self._connected_socket()

    def ping(self) -> bool:
        """Whether the server answers in time."""
        try:
            self.call_endpoint("ping", requires_input=False)
        except ServerTimeoutError:
            return False
        return True

    def kill_server(self) -> None:
        """Stop the server.

        Raises:
            RuntimeError: If it does not let itself be stopped, or does not answer in time.
        """
        self.call_endpoint("kill", requires_input=False)

    def call_endpoint(self, endpoint: str, data: dict[str, Any] | None = None, requires_input: bool = True) -> Any:  # noqa: FBT001, FBT002  as in NVIDIA's package
        """Return a server's answer.

        Args:
            endpoint: What is asked.
            data: What goes with it.
            requires_input: Whether anything goes with it.

        Raises:
            ServerTimeoutError: If there is no answer within ``timeout_ms``.
            RuntimeError: If the answer is an error, or cannot be read.
        """
        request: dict[str, Any] = {"endpoint": endpoint}
        if requires_input:
            request["data"] = data
        if self.api_token:
            request["api_token"] = self.api_token
        try:
            answer = unpack(self._exchange(pack(request), endpoint), self._limits)
        except WireError as error:
            raise RuntimeError(f"{self._server}: {endpoint}: {error}") from error
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"Server error: {answer['error']}")
        return answer

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return what the served policy takes and gives, by modality."""
        return self.call_endpoint("get_modality_config", requires_input=False)

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Have the served policy forget what went before, for every client."""
        return self.call_endpoint("reset", {"options": options})

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Leave it to the server to check what it gets."""

    def check_action(self, action: dict[str, Any]) -> None:
        """Leave it to the server to check what it gives."""

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self.socket.close(linger=0)

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = self.call_endpoint("get_action", {"observation": observation, "options": options})
        if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(part, dict) for part in answer):
            raise RuntimeError(f"{self._server}: get_action must answer with [action, info], got {answer!r:.200}")
        return answer[0], answer[1]

    @property
    def _server(self) -> str:
        return f"the policy server at {self.host}:{self.port}"

    def _connected_socket(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDTIMEO, self.timeout_ms)
        socket.setsockopt(zmq.RCVTIMEO, self.timeout_ms)
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * self._limits.max_message_bytes)
        socket.setsockopt(zmq.IPV6, int(":" in self.host))
        socket.connect(f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}")
        return socket

    def _exchange(self, request: bytes, endpoint: str) -> bytes:
        try:
            self.socket.send(request)
            return self.socket.recv()
        except zmq.Again as error:
            self.socket.close(linger=0)
            self.socket = self._connected_socket()
            raise ServerTimeoutError(
                f"{self._server} did not answer '{endpoint}' within {self.timeout_ms / 1000:g} s; "
                f"is it running, and is timeout_ms long enough for its model?"
            ) from error
