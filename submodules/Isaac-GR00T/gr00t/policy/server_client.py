"""The server and the client of a policy, under the name that NVIDIA's package has for them."""

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
