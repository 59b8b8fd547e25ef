"""Receive messages of ZeroMQ's REQ sockets in a separate thread, with limits on memory and clients."""

import contextlib
import logging
import queue
import selectors
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from arena_wire.zmtp import (
    GREETING,
    MAX_FRAMES,
    Command,
    Message,
    MessageBegins,
    MessageReader,
    ProtocolError,
    message_pieces,
    pong,
    ready,
    split_envelope,
)

_LOG = logging.getLogger(__name__)

_TICK_S = 1.0
_MAX_PIECES_WAITING = 64
_READS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class ListenerLimits:
    """Limits on the messages that the server keeps."""

    max_message_bytes: int  # of a message, in all its frames
    max_bytes: int  # of all incomplete and unanswered messages together
    max_clients: int = 1000  # connections at a time; the listener closes more at once
    patience_s: float = 30.0  # longest silence in the middle of a message or of the introduction [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrived:
    """A message from a client."""

    client: int  # number of its connection
    # Frames before the body, which the answer repeats. A message of another socket than REQ has none.
    envelope: Sequence[bytes]
    body: Sequence[bytes | bytearray]
    problem: str = ""  # reason for dropping the message, empty for a whole one


@dataclass(kw_only=True, eq=False)
class _Connection:
    """The state of a client's connection, whose next message waits for the answer to the last one."""

    socket: sockets.socket
    number: int
    reader: MessageReader
    outgoing: deque[memoryview] = field(default_factory=deque)
    watched: int = 0
    num_unanswered_bytes: int = 0
    is_unanswered: bool = False
    is_answered: bool = False
    is_inside_message: bool = False
    is_introduced: bool = False
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def has_paused(self) -> bool:
        """Whether the next message must wait for the answer to the last one."""
        return self.is_unanswered and self.is_inside_message

    def send(self, *pieces: bytes | bytearray) -> None:
        self.outgoing.extend(map(memoryview, pieces))


class Listener:
    """Accepts connections, returns their messages one after the other, and sends the answers."""

    def __init__(self, address: tuple[str, int], family: int, limits: ListenerLimits) -> None:
        self._limits = limits
        self._socket = sockets.create_server(address, family=family, backlog=128)
        self._socket.settimeout(0)
        self.host, self.port = self._socket.getsockname()[:2]
        self._arrived: queue.SimpleQueue[Arrived | Exception] = queue.SimpleQueue()
        self._answers: deque[tuple[int, Sequence[bytes | bytearray]]] = deque()
        # A byte through this pair wakes the thread, which waits in the selector.
        self._bell, self._ringing = sockets.socketpair()
        self._selector = selectors.DefaultSelector()
        self.connections: dict[int, _Connection] = {}  # by number
        self._next_number = 0
        self._ends_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="gr00t-listener", daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def receive(self, wait_s: float) -> Arrived | None:
        """Return the next message, None if there is none within `wait_s` [s]."""
        try:
            arrived = self._arrived.get(timeout=wait_s) if wait_s > 0 else self._arrived.get_nowait()
        except queue.Empty:
            return None
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def answer(self, client: int, frames: Sequence[bytes | bytearray] = ()) -> None:
        """Send the answer with its envelope, without blocking; empty `frames` free a message that gets no answer."""
        self._answers.append((client, frames))
        self._ring()

    def close(self, linger_s: float) -> None:
        """Close all connections after all waiting answers are sent, or after `linger_s` [s]."""
        self._ends_at = time.monotonic() + linger_s
        if self._thread.is_alive():
            self._ring()
            self._thread.join()
        else:
            self._close_all()

    def _ring(self) -> None:
        # An error means that the thread is already awake, or has ended.
        with contextlib.suppress(OSError):
            self._ringing.send(b"!", sockets.MSG_DONTWAIT)

    def _run(self) -> None:
        """Serve all connections, until `close` sets the end and all answers are sent, or time is up."""
        try:
            self._selector.register(self._socket, selectors.EVENT_READ)
            self._selector.register(self._bell, selectors.EVENT_READ)
            while True:
                if self._ends_at is not None and (
                    not (self._answers or any(each.outgoing for each in self.connections.values()))
                    or time.monotonic() >= self._ends_at
                ):
                    return
                for key, events in self._selector.select(_TICK_S if self._ends_at is None else 0.01):
                    if key.fileobj is self._socket:
                        self._accept()
                    elif key.fileobj is self._bell:
                        self._bell.recv(4096)
                    elif key.data in self.connections:
                        self._serve(self.connections[key.data], events)
                while self._answers:
                    client, frames = self._answers.popleft()
                    connection = self.connections.get(client)
                    if connection is not None:
                        connection.send(*message_pieces(frames))
                        connection.is_answered = True
                        self._serve(connection, 0)
                now = time.monotonic()
                for each in list(self.connections.values()):
                    is_due = not each.is_introduced or (each.is_inside_message and not each.has_paused)
                    if is_due and now - each.heard_at > self._limits.patience_s:
                        _LOG.debug("a client was silent in the middle of a message")
                        self._drop(each)
        except Exception as error:  # noqa: BLE001  the receiver must learn that no more messages follow
            self._arrived.put(error)
        finally:
            self._close_all()

    def _accept(self) -> None:
        try:
            socket, _ = self._socket.accept()
        except OSError as error:
            # For example, no file descriptor is free. The client stays in the queue, so pause before the next try.
            _LOG.warning("the listener cannot accept a client: %s", error.strerror)
            time.sleep(0.05)
            return
        if len(self.connections) >= self._limits.max_clients:
            _LOG.warning("the listener refused a client: there are %d already", len(self.connections))
            socket.close()
            return
        socket.settimeout(0)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        reader = MessageReader(self._limits.max_message_bytes)
        connection = _Connection(socket=socket, number=self._next_number, reader=reader)
        self._next_number += 1
        self.connections[connection.number] = connection
        connection.send(GREETING)
        self._serve(connection, 0)

    def _serve(self, connection: _Connection, events: int) -> None:
        """Read and write as much as the socket allows, then watch it for the next step."""
        try:
            if events & selectors.EVENT_READ:
                self._read(connection)
            while connection.outgoing:
                piece = connection.outgoing[0]
                try:
                    sent = connection.socket.send(piece)
                except BlockingIOError:
                    break
                if sent < len(piece):
                    connection.outgoing[0] = piece[sent:]
                else:
                    connection.outgoing.popleft()
        except (ProtocolError, OSError) as error:
            _LOG.debug("a client is gone: %s", error)
            self._drop(connection)
            return
        if connection.is_answered and not connection.outgoing:
            connection.is_answered = connection.is_unanswered = False
            connection.num_unanswered_bytes = 0
        reading = 0 if connection.has_paused else selectors.EVENT_READ
        wanted = reading | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if wanted == connection.watched:
            return
        if not wanted:
            self._selector.unregister(connection.socket)
        elif not connection.watched:
            self._selector.register(connection.socket, wanted, connection.number)
        else:
            self._selector.modify(connection.socket, wanted, connection.number)
        connection.watched = wanted

    def _read(self, connection: _Connection) -> None:
        """Read the bytes that have arrived, but only so many that other clients need not wait."""
        reader = connection.reader
        for _ in range(_READS_AT_ONCE):
            if connection.has_paused:
                return
            try:
                data = connection.socket.recv(reader.num_wanted)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError("it closed the connection")
            connection.heard_at = time.monotonic()
            event = reader.feed(data)
            # The messages of all clients share one limit.
            if reader.num_held:
                held = sum(each.reader.num_held + each.num_unanswered_bytes for each in self.connections.values())
                if held > self._limits.max_bytes:
                    reader.is_too_large = True
            if event is not None:
                self._handle(connection, event)
            if reader.has_greeted and not connection.is_introduced:
                connection.is_introduced = True
                connection.send(ready("ROUTER"))
            if isinstance(event, Message):
                return

    def _handle(self, connection: _Connection, event: Command | MessageBegins | Message) -> None:
        """Answer a command, and hand on a message."""
        if isinstance(event, Command):
            # A client that sends requests and never reads gets only a few answers.
            if event.name == b"PING" and len(connection.outgoing) < _MAX_PIECES_WAITING:
                connection.send(pong(event))
            return
        if isinstance(event, MessageBegins):
            connection.is_inside_message = True
            return
        connection.is_inside_message, connection.is_unanswered = False, True
        connection.num_unanswered_bytes = sum(map(len, event.frames))
        envelope, body = split_envelope(event.frames)
        limits, problem = self._limits, ""
        if not event.is_whole:
            if event.num_bytes > limits.max_message_bytes:
                problem = f"the message has {event.num_bytes} bytes, at most {limits.max_message_bytes} are allowed"
            elif event.num_frames > MAX_FRAMES:
                problem = f"the message has {event.num_frames} frames, at most {MAX_FRAMES} are allowed"
            else:
                problem = f"the requests under way have more than {limits.max_bytes} bytes together; ask again later"
        self._arrived.put(
            Arrived(client=connection.number, envelope=tuple(envelope), body=tuple(body), problem=problem)
        )

    def _drop(self, connection: _Connection) -> None:
        del self.connections[connection.number]
        if connection.watched:
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _close_all(self) -> None:
        for connection in list(self.connections.values()):
            connection.socket.close()
        self.connections.clear()
        self._selector.close()
        for socket in (self._socket, self._bell, self._ringing):
            socket.close()
