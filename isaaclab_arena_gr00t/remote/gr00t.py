"""The protocol of GR00T's policy servers: a ping first, then one request at a time, over ZeroMQ."""

from collections.abc import Mapping
from typing import Any

from arena_wire.gr00t import ArrayFormat, pack, received
from arena_wire.messages import DEFAULT_LIMITS, WireLimits
from arena_wire.zmtp import RequestSocket
from isaaclab_arena_gr00t.joints import StatedModality
from isaaclab_arena_gr00t.remote.contract import (
    AnswerError,
    Channel,
    LeavingError,
    ServerAddress,
    UnauthorisedError,
    Wire,
)

_SHUTTING_DOWN = "the server is shutting down"
"""The included server's answer to waiting clients when it ends."""


class Gr00tWire(Wire):
    """The protocol of NVIDIA's server and of ``gr00t-server``."""

    server = "GR00T policy server"
    policy_type = "gr00t_remote_closedloop"

    def __init__(self, api_token: str | None = None, limits: WireLimits = DEFAULT_LIMITS) -> None:
        self._api_token = api_token
        self._limits = limits
        # Arrays are sent in the format of the server's answers. Ask for ``get_modality_config`` first to learn the
        # format. An answer depends only on its question, so questions may be repeated.
        self._arrays = ArrayFormat.NPY
        self._asked = "ping"

    def advice(self, address: ServerAddress) -> str:
        """Return the command that starts a server; see `Wire.advice`."""
        return f"; start one with: gr00t-server --model_path CHECKPOINT --port {address.port}"

    def dial(self, address: ServerAddress, timeout_s: float) -> Channel:
        """Connect; see `Wire.dial`."""
        return RequestSocket(address.host, address.port, timeout_s=timeout_s, max_bytes=self._limits.max_message_bytes)

    def greeting(self) -> bytes:
        """Return a ping."""
        return self.question("ping", None)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the description of the server's model in its answer to a ping; NVIDIA's has none."""
        answer = self.answer(said)
        return answer.get("serves") if isinstance(answer, dict) else None

    def question(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a request to an endpoint; see `Wire.question`."""
        self._asked = kind
        request: dict[str, Any] = {"endpoint": kind}
        if payload is not None:
            request["data"] = payload
        if self._api_token:
            request["api_token"] = self._api_token
        return pack(request, self._arrays)

    def answer(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last request; see `Wire.answer`."""
        data = said.encode() if isinstance(said, str) else said
        message, arrays = received(data, self._limits, modality=StatedModality)
        self._arrays = arrays or self._arrays
        if not isinstance(message, dict) or "error" not in message:
            return message
        says = str(message["error"])
        if says == _SHUTTING_DOWN:
            raise LeavingError(says)
        if says.startswith("Unauthorized"):
            raise UnauthorisedError(says)
        raise AnswerError(f"could not answer '{self._asked}': {says}")


# A server that wraps its policy for simulation has flat keys.


def flattened(observation: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a nested observation with the keys ``video.<camera>``, ``state.<key>`` and the instruction's own names."""
    arrays = {
        f"{modality}.{key}": values for modality in ("video", "state") for key, values in observation[modality].items()
    }
    # ``language`` contains a list of one text per env slot; flat keys have the texts alone.
    return {**arrays, **{key: [text for (text,) in texts] for key, texts in observation["language"].items()}}


def without_prefix(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with ``action.`` removed from its keys."""
    return {key.removeprefix("action."): values for key, values in action.items()}
