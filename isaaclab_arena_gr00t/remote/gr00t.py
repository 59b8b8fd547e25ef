"""GR00T's protocol: a ping first, then one request at a time, over ZeroMQ."""

from collections.abc import Mapping
from typing import Any

from arena_wire import gr00t
from arena_wire.messages import DEFAULT_LIMITS, WireLimits
from arena_wire.zmtp import GREETING
from isaaclab_arena_gr00t.config import StatedModality
from isaaclab_arena_gr00t.remote.protocols import AnswerError, Codec, LeavingError, UnauthorisedError


class Gr00tCodec(Codec):
    """The protocol of NVIDIA's server and of ``gr00t-server``."""

    server = "GR00T policy server"
    policy_type = "gr00t_remote_closedloop"
    advice = "; start one with: gr00t-server --model_path CHECKPOINT --port {port}"
    path, greeting = "", GREETING[:1]

    def __init__(self, api_token: str | None = None, limits: WireLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._api_token = api_token
        # Arrays are sent in the format of the server's answers. Ask for ``get_modality_config`` first to learn the
        # format. An answer depends only on its question, so questions may be repeated.
        self._arrays = gr00t.ArrayFormat.NPY
        self._asked = "ping"

    def hello(self) -> bytes:
        """Return a ping."""
        return self.encode("ping", None)

    def introduced(self, said: str | bytes | bytearray) -> Mapping[str, Any] | None:
        """Return the description of the server's model in its answer to a ping; NVIDIA's has none."""
        answer = self.decode(said)
        return answer.get("serves") if isinstance(answer, dict) else None

    def encode(self, kind: str, payload: Mapping[str, Any] | None) -> bytes:
        """Return a request to an endpoint."""
        self._asked = kind
        data = {} if payload is None else {"data": payload}
        token = {"api_token": self._api_token} if self._api_token else {}
        return gr00t.pack({"endpoint": kind, **data, **token}, self._arrays)

    def decode(self, said: str | bytes | bytearray) -> Any:
        """Return the answer to the last request."""
        data = said.encode() if isinstance(said, str) else said
        message, arrays = gr00t.received(data, self.limits, modality=StatedModality)
        self._arrays = arrays or self._arrays
        if not isinstance(message, dict) or "error" not in message:
            return message
        says = str(message["error"])
        # The included server's answer to waiting clients when it ends.
        if says == "the server is shutting down":
            raise LeavingError(says)
        if says.startswith("Unauthorized"):
            raise UnauthorisedError(says)
        raise AnswerError(f"could not answer '{self._asked}': {says}")
