"""Encode and decode ZeroMQ's protocol, version 3 without encryption, between REQ, REP and ROUTER sockets.

ZeroMQ's library limits the size of a frame, but not the number or the total size of a message's frames, and delivers a
message only after its last frame. So a peer that sends one frame after the other fills the memory. Here a message has
one limit for its total size, and bytes beyond it are dropped on arrival.
"""

import struct
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_FRAMES = 16
"""Frames of a message at most: the request's own, an empty one before it, and what proxies put in front."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_MAX_COMMAND_BYTES = 4096
_PIECE_BYTES = 128 * 1024
_LARGE_FRAME_BYTES = 64 * 1024
_MAX_ENVELOPE_FRAME_BYTES = 256
_MECHANISM = b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _MECHANISM + bytes(32)
"""What both sides say first, wherever they are."""


class ProtocolError(ValueError):
    """The peer does not speak this protocol."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command between the libraries, besides the messages.

    Attributes:
        name: Name of the command, such as ``READY`` or ``PING``.
        data: What goes with it.
    """

    name: bytes
    data: bytes


@dataclass(frozen=True, kw_only=True)
class MessageBegins:
    """The beginning of a message: the next bytes belong to it."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message that has arrived completely.

    Attributes:
        frames: Its frames; for a message that is too large only the first small ones, which lead back to a client.
        num_bytes: Bytes of all frames together.
        num_frames: Number of frames.
        is_whole: Whether it was small enough to be kept.
    """

    frames: tuple[bytes | bytearray, ...]
    num_bytes: int
    num_frames: int
    is_whole: bool


Event = Command | MessageBegins | Message


class MessageReader:
    """Assembles messages from the bytes of a peer, and keeps at most the allowed number of bytes.

    Args:
        max_bytes: Bytes of all frames of a message together.

    Attributes:
        num_wanted: Largest number of bytes for the next call of `feed`.
        num_held: Number of bytes of the unfinished message that are kept.
        has_greeted: Whether the peer has sent this protocol's greeting.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_held = 0
        self.has_greeted = False
        self._max_bytes = max_bytes
        self._is_whole = True
        self._steps = self._read()
        self.num_wanted = self._advance(next(self._steps))[1]

    def feed(self, data: bytes) -> Event | None:
        """Take received bytes, and return what they complete.

        Args:
            data: From 1 to `num_wanted` bytes.

        Raises:
            ProtocolError: If the bytes violate the protocol.
        """
        event, self.num_wanted = self._advance(self._steps.send(data))
        return event

    @property
    def is_too_large(self) -> bool:
        """Whether the current or last message is dropped."""
        return not self._is_whole

    def give_up(self) -> None:
        """Drop the unfinished message, including the part that has not arrived yet."""
        self._is_whole = False

    def _advance(self, step: Event | int) -> tuple[Event | None, int]:
        if isinstance(step, int):
            return None, step
        following = next(self._steps)
        return step, following if isinstance(following, int) else 1

    def _read(self) -> Generator[Event | int, bytes, None]:
        _check_greeting((yield from _exactly(_GREETING_BYTES)))
        self.has_greeted = True
        while True:
            yield from self._read_message()

    def _read_message(self) -> Generator[Event | int, bytes, None]:
        frames: list[bytearray] = []
        num_bytes = num_frames = 0
        self._is_whole, is_last = True, False
        while not is_last:
            (flags,) = yield from _exactly(1)
            if flags & _COMMAND == 0 and num_frames == 0:
                yield MessageBegins()
            size = int.from_bytes((yield from _exactly(8 if flags & _LONG else 1)))
            if flags & _COMMAND:
                yield _command((yield from _exactly(_checked_command_size(size))))
                continue
            num_bytes, num_frames, is_last = num_bytes + size, num_frames + 1, not flags & _MORE
            self._is_whole = self._is_whole and num_bytes <= self._max_bytes and num_frames <= MAX_FRAMES
            frames += yield from self._frame(size, frames)
        self.num_held = 0
        kept = frames if self._is_whole else _envelope(frames)
        yield Message(frames=tuple(kept), num_bytes=num_bytes, num_frames=num_frames, is_whole=self._is_whole)

    def _frame(self, size: int, frames: list[bytearray]) -> Generator[Event | int, bytes, list[bytearray]]:
        """Return the frame, in a list; nothing if the message is too large."""
        frame = bytearray()
        left = size
        while left:
            piece = yield min(left, _PIECE_BYTES)
            left -= len(piece)
            if self._is_whole:
                # Memory is allocated for received bytes only, never for the size in a header.
                frame += piece
                self.num_held += len(piece)
            elif self.num_held:
                frame.clear()
                frames[:] = _envelope(frames)
                self.num_held = 0
        return [frame] if self._is_whole else []


def ready(socket_type: str) -> bytes:
    """Return the command that ends the introduction.

    Args:
        socket_type: Socket type of this side, such as ``REQ``.
    """
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
    """Return the frames of a client's address, with the empty frame after them, and the frames of its message.

    Without an empty frame, as from a socket that is not a REQ, there is no address.
    """
    for number, frame in enumerate(frames):
        if not frame:
            return [bytes(part) for part in frames[: number + 1]], list(frames[number + 1 :])
    return [], list(frames)


def _exactly(size: int) -> Generator[int, bytes, bytes]:
    data = b""
    while len(data) < size:
        data += yield size - len(data)
    return data


def _check_greeting(greeting: bytes) -> None:
    if greeting[0] != GREETING[0] or not greeting[9] & 1 or greeting[10] < GREETING[10]:
        raise ProtocolError("it does not speak ZeroMQ, or a version before 3")
    if greeting[12:32] != _MECHANISM:
        raise ProtocolError("it wants to be talked to in a secret way, which is not offered here")


def _checked_command_size(size: int) -> int:
    if size > _MAX_COMMAND_BYTES:
        raise ProtocolError(f"a command of {size} bytes; at most {_MAX_COMMAND_BYTES} are allowed")
    return size


def _command(body: bytes) -> Command:
    if not body or len(body) < 1 + body[0]:
        raise ProtocolError("a command without a name")
    command = Command(name=body[1 : 1 + body[0]], data=body[1 + body[0] :])
    if command.name == b"ERROR":
        raise ProtocolError("it refuses the connection")
    return command


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
