"""Ask a policy server with strict time-outs; client and server under the module name of NVIDIA's package."""

import time
from typing import Any

from arena_wire.gr00t import ArrayFormat, pack, received, unpack
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits
from arena_wire.zmtp import RequestSocket
from gr00t import plain
from gr00t.data.types import ModalityConfig
from gr00t.policy.policy import BasePolicy
from gr00t.policy.policy_server import BatchingOptions, EndpointHandler, PolicyServer

__all__ = [
    "BatchingOptions",
    "EndpointHandler",
    "MsgSerializer",
    "PolicyClient",
    "PolicyServer",
    "ServerTimeoutError",
    "WireError",
    "WireLimits",
]

_PAUSE_S = 0.1


class ServerTimeoutError(RuntimeError):
    """The server did not answer in time."""


class PolicyClient(BasePolicy):
    """A policy whose network runs in another process, behind this package's server or NVIDIA's.

    It holds one connection and belongs to one thread. After a request without an answer in time, the next one uses a
    new connection. It sends a request again if it loses the connection. It sends arrays in the format of the server's
    answers, and before the first answer in the older one, which NVIDIA's newer server reads too.

    Args:
        host: Machine of the server.
        port: Port of the server.
        timeout_ms: Time limit of an answer [ms].
        api_token: The server's token, None if it needs none.
        strict: Accepted for NVIDIA's signature; the server does the checks.
        limits: Size limits of an answer.
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
        self._arrays = ArrayFormat.NPY
        self._socket: RequestSocket | None = None

    def ping(self) -> bool:
        """True if the server answers in time."""
        try:
            self.call_endpoint("ping", requires_input=False)
        except ServerTimeoutError:
            return False
        return True

    def kill_server(self) -> None:
        """Stop the server.

        Raises:
            RuntimeError: If it refuses, or does not answer in time.
        """
        self.call_endpoint("kill", requires_input=False)

    def call_endpoint(self, endpoint: str, data: dict[str, Any] | None = None, requires_input: bool = True) -> Any:  # noqa: FBT001, FBT002  as in NVIDIA's package
        """Return a server's answer.

        Args:
            endpoint: Name of the endpoint.
            data: Data of the request.
            requires_input: True if the request has data.

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
            packed = pack(request, self._arrays)
            # Ask, on a new connection if there is none; wait for an unreachable server until the time-out.
            deadline = time.monotonic() + self.timeout_ms / 1000
            message = None
            while message is None:
                try:
                    if self._socket is None:
                        left_s = max(0.001, deadline - time.monotonic())
                        self._socket = RequestSocket(
                            self.host, self.port, timeout_s=left_s, max_bytes=self._limits.max_message_bytes
                        )
                    connection = self._socket
                    connection.send(packed, deadline - time.monotonic())
                    message = connection.receive(deadline - time.monotonic())
                except WireError:
                    self.close()
                    raise
                except OSError as error:
                    self.close()
                    if time.monotonic() + _PAUSE_S >= deadline:
                        raise ServerTimeoutError(
                            f"{self._server} did not answer '{endpoint}' within {self.timeout_ms / 1000:g} s; "
                            f"is it running, and is timeout_ms long enough for its model?"
                        ) from error
                    time.sleep(_PAUSE_S)
            answer, arrays = received(message, self._limits, modality=ModalityConfig)
        except WireError as error:
            raise RuntimeError(f"{self._server}: {endpoint}: {plain(error)}") from error
        self._arrays = arrays or self._arrays
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"Server error: {plain(answer['error'])}")
        return answer

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the inputs and outputs of the served policy, by modality."""
        return self.call_endpoint("get_modality_config", requires_input=False)

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Reset the served policy, for all clients."""
        return self.call_endpoint("reset", {"options": options})

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Do nothing, because the server checks observations."""

    def check_action(self, action: dict[str, Any]) -> None:
        """Do nothing, because the server checks actions."""

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = self.call_endpoint("get_action", {"observation": observation, "options": options})
        if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(part, dict) for part in answer):
            raise RuntimeError(
                f"{self._server}: get_action must answer with [action, info], got a {type(answer).__name__}"
            )
        return answer[0], answer[1]

    @property
    def _server(self) -> str:
        return f"the policy server at {self.host}:{self.port}"


class MsgSerializer:
    """Messages as bytes."""

    @staticmethod
    def to_bytes(data: Any) -> bytes:
        """Return the bytes of a message; see `pack`."""
        return pack(data)

    @staticmethod
    def from_bytes(data: bytes) -> Any:
        """Return the message in the bytes; see `unpack`."""
        return unpack(data, modality=ModalityConfig)
