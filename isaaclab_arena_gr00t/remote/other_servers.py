"""Tell by its first answer which protocol a server speaks, to name one that was taken for another."""

import socket as sockets

from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.gr00t import Gr00tWire
from isaaclab_arena_gr00t.remote.openpi import OpenpiWire
from isaaclab_arena_gr00t.remote.vla_eval import VlaEvalWire
from isaaclab_arena_gr00t.remote.wire import openpi_wire
from isaaclab_arena_gr00t.remote.wire.contract import Wire
from isaaclab_arena_gr00t.remote.wire.messages import WireError
from isaaclab_arena_gr00t.remote.wire.zmtp import GREETING

_CONNECT_S = 1.0
_SPEAKS_FIRST_S = 0.2
_READY = b"HTTP/1.1 200"
_READY_PATHS = (("/healthz", OpenpiWire), ("/health", VlaEvalWire))


def speaker_of(said: str | bytes | bytearray) -> type[Wire] | None:
    """Return the protocol of a server by its first message on a websocket, None if it is not known."""
    try:
        message = None if isinstance(said, str) else openpi_wire.unpack(said)
    except WireError:
        return None
    if not isinstance(message, dict):
        return None
    return VlaEvalWire if {"type", "payload", "seq"} <= message.keys() else OpenpiWire


def what_listens(address: ServerAddress) -> type[Wire] | None:
    """Return the protocol of what listens at an address, None if it is not known or nothing listens.

    It asks for nothing but whether the server is ready, so a server of any kind is left as it was.
    """
    try:
        if _said(address, b"", len(GREETING[:1])) == GREETING[:1]:
            return Gr00tWire
        for path, wire in _READY_PATHS:
            request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
            if _said(address, request, len(_READY)) == _READY:
                return wire
    except (OSError, UnicodeError):
        return None
    return None


def _said(address: ServerAddress, request: bytes, num_bytes: int) -> bytes:
    """Return the first bytes that a server says, to a request or of itself."""
    said = b""
    with sockets.create_connection((address.host, address.port), timeout=_CONNECT_S) as connection:
        connection.sendall(request)
        if not request:
            connection.settimeout(_SPEAKS_FIRST_S)
        try:
            while len(said) < num_bytes and (piece := connection.recv(num_bytes - len(said))):
                said += piece
        except TimeoutError:
            pass
    return said
