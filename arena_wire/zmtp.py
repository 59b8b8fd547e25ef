"""Speak ZeroMQ's protocol, version 3 without encryption, between REQ, REP and ROUTER sockets.

ZeroMQ's library limits the size of a frame, but not the number or the total size of a message's frames, and delivers a
message only after its last frame. So a peer that sends one frame after the other fills the memory. Here a message has
one limit for its total size, and bytes beyond it are dropped on arrival.
"""

import select
import socket as sockets
import struct
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arena_wire.messages import WireError

MAX_FRAMES = 16
"""Frames of a message at most: the request's own, an empty one before it, and those of proxies in front."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_MAX_COMMAND_BYTES = 4096
_PIECE_BYTES = 128 * 1024
_LARGE_FRAME_BYTES = 64 * 1024
_MAX_ENVELOPE_FRAME_BYTES = 256
_MECHANISM = b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _MECHANISM + bytes(32)
"""The first bytes of both sides."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}


class ProtocolError(ValueError):
    """The peer does not speak this protocol."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command between the libraries, besides the messages."""

    name: bytes  # such as ``READY`` or ``PING``
    data: bytes


@dataclass(frozen=True, kw_only=True)
class MessageBegins:
    """The beginning of a message: the next bytes belong to it."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message that has arrived completely."""

    frames: tuple[bytes | bytearray, ...]  # if it is too large, only the first small ones, which lead back to a client
    num_bytes: int  # of all frames together
    num_frames: int
    is_whole: bool  # True if it was small enough to be kept


Event = Command | MessageBegins | Message


class MessageReader:
    """Assembles messages from the bytes of a peer, and keeps at most `max_bytes` of a message in all its frames."""

    def __init__(self, max_bytes: int) -> None:
        self.num_held = 0  # bytes of the unfinished message that are kept
        self.has_greeted = False
        self.is_too_large = False  # True if the current or last message is dropped; may be set
        self._max_bytes = max_bytes
        self._steps = self._read()
        next(self._steps)
        self.num_wanted = _GREETING_BYTES  # most bytes for the next call of `feed`

    def feed(self, data: bytes) -> Event | None:
        """Take 1 to `num_wanted` received bytes, and return the completed event; ProtocolError if they are invalid."""
        step = self._steps.send(data)
        following = step if isinstance(step, int) else next(self._steps)
        self.num_wanted = following if isinstance(following, int) else 1
        return None if isinstance(step, int) else step

    def _read(self) -> Generator[Event | int, bytes, None]:
        greeting = yield from _exactly(_GREETING_BYTES)
        if greeting[0] != GREETING[0] or not greeting[9] & 1 or greeting[10] < GREETING[10]:
            raise ProtocolError("it does not speak ZeroMQ, or a version before 3")
        if greeting[12:32] != _MECHANISM:
            raise ProtocolError("it wants to be talked to in a secret way, which is not offered here")
        self.has_greeted = True
        while True:
            yield from self._read_message()

    def _read_message(self) -> Generator[Event | int, bytes, None]:
        frames: list[bytearray] = []
        num_bytes = num_frames = 0
        self.is_too_large, is_last = False, False
        while not is_last:
            (flags,) = yield from _exactly(1)
            if flags & _COMMAND == 0 and num_frames == 0:
                yield MessageBegins()
            size = int.from_bytes((yield from _exactly(8 if flags & _LONG else 1)))
            if flags & _COMMAND:
                if size > _MAX_COMMAND_BYTES:
                    raise ProtocolError(f"a command of {size} bytes; at most {_MAX_COMMAND_BYTES} are allowed")
                body = yield from _exactly(size)
                if not body or len(body) < 1 + body[0]:
                    raise ProtocolError("a command without a name")
                command = Command(name=body[1 : 1 + body[0]], data=body[1 + body[0] :])
                if command.name == b"ERROR":
                    raise ProtocolError("it refuses the connection")
                yield command
                continue
            num_bytes, num_frames, is_last = num_bytes + size, num_frames + 1, not flags & _MORE
            self.is_too_large = self.is_too_large or num_bytes > self._max_bytes or num_frames > MAX_FRAMES

            # Memory is allocated for received bytes only, never for the size in a header.
            frame = bytearray()
            while size:
                piece = yield min(size, _PIECE_BYTES)
                size -= len(piece)
                if not self.is_too_large:
                    frame += piece
                    self.num_held += len(piece)
                elif self.num_held:
                    frame.clear()
                    frames[:] = _envelope(frames)
                    self.num_held = 0
            if not self.is_too_large:
                frames.append(frame)
        self.num_held = 0
        kept = _envelope(frames) if self.is_too_large else frames
        yield Message(frames=tuple(kept), num_bytes=num_bytes, num_frames=num_frames, is_whole=not self.is_too_large)


def ready(socket_type: str) -> bytes:
    """Return the command that ends the introduction of a socket of a type such as ``REQ``."""
    kind = socket_type.encode()
    return _command_frame(b"READY", b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind)


def pong(ping: Command) -> bytes:
    """Return the answer to a peer's ``PING``, which repeats the data after its time-out."""
    return _command_frame(b"PONG", ping.data[2:18])


def message_pieces(frames: Sequence[bytes | bytearray]) -> list[bytes | bytearray]:
    """Return the bytes of a message in pieces to send one after the other; large frames are not copied."""
    pieces: list[Any] = [bytearray()]
    for number, frame in enumerate(frames, start=1):
        more = _MORE if number < len(frames) else 0
        size = len(frame)
        header = bytes((more, size)) if size < 256 else bytes((more | _LONG,)) + size.to_bytes(8)
        pieces[-1] += header
        if size > _LARGE_FRAME_BYTES:
            pieces += [frame, bytearray()]
        else:
            pieces[-1] += frame
    return [piece for piece in pieces if piece]


def split_envelope(frames: Sequence[bytes | bytearray]) -> tuple[list[bytes], list[bytes | bytearray]]:
    """Return the frames of a client's address, with the empty frame after them, and the frames of its message."""
    # Without an empty frame, as from a socket that is not a REQ, there is no address.
    for number, frame in enumerate(frames):
        if not frame:
            return [bytes(part) for part in frames[: number + 1]], list(frames[number + 1 :])
    return [], list(frames)


def _exactly(size: int) -> Generator[int, bytes, bytes]:
    data = b""
    while len(data) < size:
        data += yield size - len(data)
    return data


def _command_frame(name: bytes, data: bytes) -> bytes:
    body = bytes((len(name),)) + name + data
    return bytes((_COMMAND, len(body))) + body


def _envelope(frames: Iterable[bytearray]) -> list[bytearray]:
    """Return the frames up to the first empty one, if they are small."""
    kept: list[bytearray] = []
    for frame in frames:
        if len(frame) > _MAX_ENVELOPE_FRAME_BYTES:
            return []
        kept.append(frame)
        if not frame:
            return kept
    return []


class ConnectionLostError(OSError):
    """The connection is unusable; the text says why."""


class RequestSocket:
    """A client's REQ socket, for one request at a time, with one limit of time and one of size for a whole answer."""

    # It belongs to one thread. After any error it must be closed, because a late answer would be taken for that to the
    # next request. ``timeout_s`` limits a handshake, a sent request or a whole answer [s]; TimeoutError after that.
    # ConnectionLostError: the server speaks no ZeroMQ, does not answer like a REP socket, or closed the connection.
    # WireError: an answer has more than ``max_bytes``, or came unasked. OSError: no server listens there. UnicodeError:
    # the host is no valid host name.

    def __init__(self, host: str, port: int, *, timeout_s: float, max_bytes: int) -> None:
        deadline = time.monotonic() + timeout_s
        self._max_bytes = max_bytes
        self._reader = MessageReader(max_bytes)
        self._socket = sockets.create_connection((host, port), timeout=timeout_s)
        try:
            self._socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            # The kernel then notices a dead server well before a long time-out.
            self._socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(sockets, name):
                    self._socket.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)

            # Both introduce themselves.
            self._socket.sendall(GREETING)
            while not self._reader.has_greeted:
                self._next(deadline)
            self._socket.sendall(ready("REQ"))
            while not (isinstance(event := self._next(deadline), Command) and event.name == b"READY"):
                pass
        except BaseException:
            self._socket.close()
            raise

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a request."""
        deadline = time.monotonic() + timeout_s
        # Bytes after the last answer would be taken for the answer to this request.
        arrived = select.poll()
        arrived.register(self._socket, select.POLLIN)
        while arrived.poll(0):
            if isinstance(self._next(deadline), (MessageBegins, Message)):
                raise WireError("it answered twice, or what it was not asked")
        try:
            for piece in message_pieces([b"", request]):
                self._socket.settimeout(_left_s(deadline))
                self._socket.sendall(piece)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLostError("it closed the connection") from error

    def receive(self, timeout_s: float) -> bytes | bytearray:
        """Return the answer to the request that was sent."""
        deadline = time.monotonic() + timeout_s
        while not isinstance(answer := self._next(deadline), Message):
            pass
        envelope, body = split_envelope(answer.frames)
        if len(envelope) != 1 or len(body) != 1:
            raise ConnectionLostError("it does not answer as a ZeroMQ REP socket does")
        return body[0]

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._socket.close()

    def _next(self, deadline: float) -> Event | None:
        """Receive some bytes, answer a ping, and return the completed event."""
        self._socket.settimeout(_left_s(deadline))
        try:
            data = self._socket.recv(self._reader.num_wanted)
        except ConnectionError as error:
            raise ConnectionLostError("it closed the connection") from error
        if not data:
            raise ConnectionLostError("it closed the connection")
        try:
            event = self._reader.feed(data)
        except ProtocolError as error:
            raise ConnectionLostError(f"what listens there cannot be talked to: {error}") from error
        if self._reader.is_too_large:
            raise WireError(f"the answer has more bytes than the {self._max_bytes} that are allowed")
        if isinstance(event, Command) and event.name == b"PING":
            self._socket.sendall(pong(event))
        return event


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s
