"""Messages between a policy server and the ranks that ask it: frames over a Unix socket, or TCP with a token."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.interfaces.policy_traits import Entries
from isaaclab_arena.workers.program import frames

VERSION = 1
"""Of these messages. Server and ranks are of one program, so another one is a mistake."""

ERRORS: Mapping[str, type[ArenaError]] = {"config": ConfigError, "lost": PolicyLostError, "policy": PolicyError}
"""What an asker raises of an error, by what the server calls its kind."""

MAX_FIRST_BYTES = 1 << 16
"""The largest first message of an asker, who may be anybody."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Where a policy server listens.

    Attributes:
        path: Unix socket, None for TCP.
        host: Name of the machine, for TCP.
        port: Its port.
        token: What an asker has to know.
    """

    token: str
    path: str | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def connected(self, timeout_s: float) -> socket.socket:
        """Return a connection.

        Raises:
            OSError: If nobody listens there.
        """
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Send a message.

    Raises:
        OSError: If the other side is gone.
    """
    connection.sendall(frames.encode(message, arrays or {}))


def received(
    connection: socket.socket, *, timeout_s: float | None = None, max_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return message and arrays of the next frame.

    Args:
        connection: Where it comes from.
        timeout_s: How long it may take [s], None for however long.
        max_bytes: How large it may be, None for what frames allow.

    Raises:
        EOFError: If the other side is gone.
        OSError: If the connection breaks, `TimeoutError` if it takes too long.
        FrameError: If it is no frame, or too large.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    left = max_bytes

    def read_exactly(size: int) -> bytearray:
        nonlocal left
        if left is not None:
            left -= size
            if left < 0:
                raise frames.FrameError(f"the message has more than {max_bytes} bytes")
        taken = bytearray(size)
        view, filled = memoryview(taken), 0
        while filled < size:
            connection.settimeout(None if deadline_s is None else max(0.001, deadline_s - time.monotonic()))
            count = connection.recv_into(view[filled:])
            if count == 0:
                raise EOFError
            filled += count
        return taken

    try:
        return frames.decode(read_exactly)
    except (ValueError, KeyError, TypeError) as error:
        raise frames.FrameError(f"the message is damaged: {error}") from error


def split(entries: Entries) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Return the texts and the arrays of entries, which travel apart."""
    arrays = {name: values for name, values in entries.items() if isinstance(values, np.ndarray)}
    return {name: list(values) for name, values in entries.items() if name not in arrays}, arrays
