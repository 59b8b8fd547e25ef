"""Provide the policy server and client under the module name of NVIDIA's package."""

from gr00t.policy.policy_client import PolicyClient, ServerTimeoutError
from gr00t.policy.policy_server import BatchingOptions, EndpointHandler, PolicyServer
from gr00t.policy.wire.msgpack_numpy import MsgSerializer, WireError, WireLimits

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
