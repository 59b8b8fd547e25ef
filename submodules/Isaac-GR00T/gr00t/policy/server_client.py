"""Provide the policy server and client under the module name of NVIDIA's package."""

from typing import Any

from gr00t.data.types import ModalityConfig
from gr00t.policy.policy_client import PolicyClient, ServerTimeoutError
from gr00t.policy.policy_server import BatchingOptions, EndpointHandler, PolicyServer
from gr00t.policy.wire.gr00t_wire import pack, unpack
from gr00t.policy.wire.messages import WireError, WireLimits

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
