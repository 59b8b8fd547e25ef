"""Serve a policy to several clients, and answer requests that arrive together by one call of the model."""

import contextlib
import hmac
import logging
import queue
import selectors
import socket as sockets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from arena_wire import zmtp
from arena_wire.gr00t import ArrayFormat, pack, received
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, outline, read_message
from gr00t import plain
from gr00t.data.types import ModalityConfig

_LOG = logging.getLogger(__name__)

# Receive messages of ZeroMQ's REQ sockets in a separate thread, with limits on memory and clients.

_TICK_S = 1.0
_MAX_PIECES_WAITING = 64
_READS_AT_ONCE = 64
_MESSAGES_AT_ONCE = 4


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
    reader: zmtp.MessageReader
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
        """True if the next message must wait for the answer to the last one."""
        return self.is_unanswered and self.is_inside_message

    def send(self, *pieces: bytes | bytearray) -> None:
        self.outgoing.extend(map(memoryview, pieces))


class Listener:
    """Accepts connections, returns their messages one after the other, and sends the answers."""

    def __init__(
        self, address: tuple[str, int], *, max_message_bytes: int, max_clients: int, patience_s: float = 30.0
    ) -> None:
        # Of a message, in all its frames; of all incomplete and unanswered messages together; and connections at a
        # time, of which more are closed at once. A client that is silent for longer than `patience_s` [s], in the
        # middle of a message or of the introduction, is dropped.
        self._patience_s = patience_s
        self._max_message_bytes, self._max_bytes = max_message_bytes, _MESSAGES_AT_ONCE * max_message_bytes
        self._max_clients = max_clients
        family = sockets.AF_INET6 if ":" in address[0] else sockets.AF_INET
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
                self._turn()
        except Exception as error:  # noqa: BLE001  the receiver must learn that no more messages follow
            self._arrived.put(error)
        finally:
            self._close_all()

    def _turn(self) -> None:
        """Handle the sockets that are ready, queue the new answers, and drop the silent clients."""
        # Between two turns no answer and no lost connection stays in memory.
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
                connection.send(*zmtp.message_pieces(frames))
                connection.is_answered = True
                self._serve(connection, 0)
        now = time.monotonic()
        for connection in list(self.connections.values()):
            is_due = not connection.is_introduced or (connection.is_inside_message and not connection.has_paused)
            if is_due and now - connection.heard_at > self._patience_s:
                _LOG.debug("a client was silent in the middle of a message")
                self._drop(connection)

    def _accept(self) -> None:
        try:
            socket, _ = self._socket.accept()
        except OSError as error:
            # For example, no file descriptor is free. The client stays in the queue, so pause before the next try.
            _LOG.warning("the listener cannot accept a client: %s", error.strerror)
            time.sleep(0.05)
            return
        if len(self.connections) >= self._max_clients:
            _LOG.warning("the listener refused a client: there are %d already", len(self.connections))
            socket.close()
            return
        socket.settimeout(0)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        reader = zmtp.MessageReader(self._max_message_bytes)
        connection = _Connection(socket=socket, number=self._next_number, reader=reader)
        self._next_number += 1
        self.connections[connection.number] = connection
        connection.send(zmtp.GREETING)
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
        except (zmtp.ProtocolError, OSError) as error:
            _LOG.debug("a client is gone: %s", error)
            self._drop(connection)
            return
        if connection.is_answered and not connection.outgoing:
            connection.is_answered = connection.is_unanswered = False
            connection.num_unanswered_bytes = 0
            # The rest of a message that it sent ahead was not read until now.
            connection.heard_at = time.monotonic()
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
                if held > self._max_bytes:
                    reader.is_too_large = True
            if event is not None:
                self._handle(connection, event)
            if reader.has_greeted and not connection.is_introduced:
                connection.is_introduced = True
                connection.send(zmtp.ready("ROUTER"))
            if isinstance(event, zmtp.Message):
                return

    def _handle(self, connection: _Connection, event: zmtp.Command | zmtp.MessageBegins | zmtp.Message) -> None:
        """Answer a command, and hand on a message."""
        if isinstance(event, zmtp.Command):
            # A client that sends requests and never reads gets only a few answers.
            if event.name == b"PING" and len(connection.outgoing) < _MAX_PIECES_WAITING:
                connection.send(zmtp.pong(event))
            return
        if isinstance(event, zmtp.MessageBegins):
            connection.is_inside_message = True
            return
        connection.is_inside_message, connection.is_unanswered = False, True
        connection.num_unanswered_bytes = sum(map(len, event.frames))
        envelope, body = zmtp.split_envelope(event.frames)
        most, problem = self._max_message_bytes, ""
        if not event.is_whole:
            if event.num_bytes > most:
                problem = f"the message has {event.num_bytes} bytes, at most {most} are allowed"
            elif event.num_frames > zmtp.MAX_FRAMES:
                problem = f"the message has {event.num_frames} frames, at most {zmtp.MAX_FRAMES} are allowed"
            else:
                problem = f"the requests under way have more than {self._max_bytes} bytes together; ask again later"
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


# Answer the messages: one call of the model for requests that arrive together.

MAX_CLIENTS = 1000
"""Default limit of the connections at a time."""
NOISE_SEEDS = "noise_seeds"

_POLL_S = 0.1
_FAREWELL_S = 1.0
_CLIENT_MEMORY_S = 10.0
_MAX_CLIENTS_REMEMBERED = 1000

LOCAL_HOSTS = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
"""The names that only this machine can reach, to their addresses."""


@dataclass(frozen=True, kw_only=True)
class EndpointHandler:
    """The handler of an endpoint; it gets the request's ``data`` as keywords if `requires_input`."""

    handler: Callable[..., Any]
    requires_input: bool = True


@dataclass(frozen=True, kw_only=True)
class BatchingOptions:
    """Limits on clients, and on the batches that combine their requests for actions.

    Attributes:
        max_batch: Largest number of batch entries in one call of the model; 1 answers every request separately. A
            larger request is never split.
        wait_ms: Longest wait for other recently active clients before the call of the model [ms].
        max_clients: Most connections at a time; the server closes more at once.
    """

    max_batch: int = 64
    wait_ms: float = 2.0
    max_clients: int = MAX_CLIENTS


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """A request for actions that can be combined with others."""

    observation: Mapping[str, Mapping[str, Any]]  # modality, then key, then an array or list as long as the batch
    noise_seeds: list[int] | None  # one seed per batch entry, None if the request has none
    batch_size: int  # entries of the batch
    layout: tuple[Any, ...]  # keys, types and shapes of an entry; only requests with equal layouts can be combined


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """A request for actions that has arrived."""

    sender: Arrived
    data: Any  # content of the request
    arrays: ArrayFormat | None  # array format of the client, which its answer uses too
    request: ActionRequest | None  # None if it needs an answer of its own


class PolicyServer:
    """An inference server that speaks NVIDIA's protocol.

    NVIDIA's server answers one client after the other. This one combines similar requests for actions that arrive
    together into one call of the model. An error reaches only the client whose request caused it. By default only this
    machine can reach the server.

    Args:
        policy: Answers ``get_action`` and ``reset``, and ``get_modality_config`` if it has that method.
        host: Address to listen on; ``*`` means every address of this machine.
        port: Port to listen on; 0 means a free one, see `port`.
        api_token: Token that requests must have, None for no token.
        batching: Limits on clients and on combined requests.
        limits: Size limits of a message; the memory for messages is four times the largest.
        serves: Description of the model; every client that pings gets it.
        allow_kill: True: a client may stop the server. If other machines can reach it, this also needs an
            ``api_token``.

    Attributes:
        running: True while the server is running; `stop` makes it False.
        num_requests: Answered requests for actions, errors included.
        num_calls: Calls of the policy for these requests.
        port: Port of the server.
        address: Address for clients.

    Raises:
        OSError: If the server cannot listen there, for instance because the port is in use.
    """

    def __init__(
        self,
        policy: Any,
        host: str = "127.0.0.1",
        port: int = 5555,
        api_token: str | None = None,
        *,
        batching: BatchingOptions | None = None,
        limits: WireLimits = DEFAULT_LIMITS,
        allow_kill: bool = True,
        serves: Mapping[str, str] | None = None,
    ) -> None:
        self.policy = policy
        self.running = True
        self.api_token = api_token
        self.num_requests, self.num_calls = 0, 0
        self._batching = batching or BatchingOptions()
        self._limits = limits
        # A kill from another machine needs proof of the caller.
        self._may_kill = allow_kill and (host in LOCAL_HOSTS or api_token is not None)
        self._waiting: list[_Waiting] = []
        self._last_asked: dict[int, float] = {}

        name, most = "" if host == "*" else LOCAL_HOSTS.get(host, host), limits.max_message_bytes
        try:
            self._listener = Listener((name, port), max_message_bytes=most, max_clients=self._batching.max_clients)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
        self.port = self._listener.port
        shown = f"[{self._listener.host}]" if ":" in self._listener.host else self._listener.host
        self.address = f"tcp://{shown}:{self.port}"

        description = dict(serves or {})
        alive = {"status": "ok", "message": "Server is running"} | ({"serves": description} if description else {})
        self._endpoints: dict[str, EndpointHandler] = {}
        self.register_endpoint("get_action", policy.get_action)
        self.register_endpoint("reset", policy.reset)
        # A policy may lack this method; the answer is then an empty map.
        modalities = getattr(policy, "get_modality_config", dict)
        self.register_endpoint("get_modality_config", modalities, requires_input=False)
        self.register_endpoint("get_server_metadata", lambda: description, requires_input=False)
        self.register_endpoint("ping", lambda: alive, requires_input=False)
        self.register_endpoint("kill", self._kill, requires_input=False)

    @property
    def num_clients(self) -> int:
        """Connections at this moment."""
        return len(self._listener.connections)

    def register_endpoint(self, name: str, handler: Callable[..., Any], requires_input: bool = True) -> None:  # noqa: FBT001, FBT002  as in NVIDIA's package
        """Add or replace an endpoint.

        Args:
            name: Name of the endpoint.
            handler: Function that returns the answer; the client gets an exception as an error.
            requires_input: True if the handler takes the request's ``data`` as keywords.
        """
        self._endpoints[name] = EndpointHandler(handler=handler, requires_input=requires_input)

    def run(self) -> None:
        """Answer requests until a signal handler or another thread calls `stop`, or a client kills the server."""
        _LOG.info("listening on %s", self.address)
        self._listener.start()
        try:
            while self.running:
                self._receive(wait_s=_POLL_S)
                while self._waiting and self.running:
                    # Wait a moment for recently active clients whose next request has not arrived.
                    deadline = time.monotonic() + self._batching.wait_ms / 1000
                    while self._waiting[0].request is not None and self._waiting_entries() < self._batching.max_batch:
                        self._forget_old()
                        missing = set(self._last_asked) - {waiting.sender.client for waiting in self._waiting}
                        if not missing or not self._receive(max(0.0, deadline - time.monotonic())):
                            break
                    self._answer_some()
        finally:
            # Refuse the requests without an answer, then close.
            senders = [waiting.sender for waiting in self._waiting]
            while (arrived := self._listener.receive(0)) is not None:
                senders.append(arrived)
            for sender in senders:
                self._reply(sender, {"error": "the server is shutting down"})
            self._waiting = []
            self._listener.close(linger_s=_FAREWELL_S)

    def stop(self) -> None:
        """Let `run` return after its current request."""
        self.running = False

    @staticmethod
    def start_server(policy: Any, port: int, host: str = "127.0.0.1", api_token: str | None = None) -> None:
        """Serve a policy until its end."""
        PolicyServer(policy, host=host, port=port, api_token=api_token).run()

    def _receive(self, wait_s: float) -> bool:
        """Wait for a message, handle all that have arrived, and return True if there was one."""
        has_come = False
        while self.running and self._waiting_entries() < self._batching.max_batch:
            arrived = self._listener.receive(0 if has_come else wait_s)
            if arrived is None:
                break
            has_come = True
            if not arrived.envelope:
                _LOG.warning("dropped a message that came from no REQ socket")
                self._listener.answer(arrived.client)
                continue
            try:
                self._dispatch(arrived)
            except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
                self._fail(arrived, error)
        return has_come

    def _dispatch(self, arrived: Arrived) -> None:
        """Queue a request for actions, and answer any other one."""
        if arrived.problem:
            raise WireError(arrived.problem)
        if len(arrived.body) != 1:
            raise WireError(f"a request is one message, this one came in {len(arrived.body)} parts")
        message = arrived.body[0]
        # Compare the token before any other part of a foreign message is decoded.
        if self.api_token is not None:
            place = outline(message, self._limits).get(b"api_token")
            token = None if place is None else read_message(message[slice(*place)], self._limits)
            if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.api_token.encode()):
                self._reply(arrived, {"error": "Unauthorized: Invalid API token"})
                return
        request, arrays = received(message, self._limits, modality=ModalityConfig)
        if not isinstance(request, dict):
            raise WireError(f"a request is a map, this one is a {type(request).__name__}")

        name, data = request.get("endpoint", "get_action"), request.get("data", {})
        if not isinstance(name, str) or name not in self._endpoints:
            raise ValueError(f"Unknown endpoint: {name}")
        if name == "get_action":
            self._remember(arrived.client)
            self._waiting.append(_Waiting(sender=arrived, data=data, arrays=arrays, request=action_request(data)))
            return
        endpoint = self._endpoints[name]
        self._reply(arrived, endpoint.handler(**data) if endpoint.requires_input else endpoint.handler(), arrays)

    def _remember(self, client: int) -> None:
        """Note that a client has just sent a request; the most recent clients come last."""
        self._last_asked.pop(client, None)
        self._last_asked[client] = time.monotonic()
        self._forget_old()

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._last_asked:
            client, when = next(iter(self._last_asked.items()))
            if now - when < _CLIENT_MEMORY_S and len(self._last_asked) <= _MAX_CLIENTS_REMEMBERED:
                return
            del self._last_asked[client]

    def _waiting_entries(self) -> int:
        return sum(1 if waiting.request is None else waiting.request.batch_size for waiting in self._waiting)

    def _answer_some(self) -> None:
        """Answer the oldest request, together with those that combine with it."""
        # Later requests combine with it if they have its layout, up to the largest batch.
        first = self._waiting[0]
        batch, size = [first], first.request.batch_size if first.request else 0
        for waiting in self._waiting[1:]:
            if first.request is None or waiting.request is None or waiting.request.layout != first.request.layout:
                continue
            if size + waiting.request.batch_size <= self._batching.max_batch:
                batch.append(waiting)
                size += waiting.request.batch_size
        self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
        self.num_requests += len(batch)
        requests = [waiting.request for waiting in batch if waiting.request is not None]
        if len(batch) > 1:
            try:
                observation, options = join_requests(requests)
                action, info = self._act(observation=observation, options=options)
                answers = split_answer(action, info, [request.batch_size for request in requests])
            except Exception as error:  # noqa: BLE001  only the request at fault may get the error
                _LOG.debug("a batch of %d requests failed, each gets its own call: %s", len(batch), plain(error))
            else:
                for waiting, answer in zip(batch, answers, strict=True):
                    self._reply(waiting.sender, answer, waiting.arrays)
                return
        for waiting in batch:
            try:
                self._reply(waiting.sender, self._act(**waiting.data), waiting.arrays)
            except Exception as error:  # noqa: BLE001  an error of one client must not stop the others
                self._fail(waiting.sender, error)

    def _act(self, **data: Any) -> Any:
        self.num_calls += 1
        return self._endpoints["get_action"].handler(**data)

    def _fail(self, sender: Arrived, error: Exception) -> None:
        # An error's message often repeats the client's data, which may control a terminal.
        words = plain(error)
        _LOG.warning("a request failed: %s: %s", type(error).__name__, words)
        _LOG.debug("its traceback:\n%s", "".join(traceback.format_tb(error.__traceback__)))
        self._reply(sender, {"error": words or type(error).__name__})

    def _reply(self, sender: Arrived, answer: Any, arrays: ArrayFormat | None = None) -> None:
        try:
            message = pack(answer, arrays or ArrayFormat.NPY)
        except WireError as error:
            _LOG.warning("an answer cannot be sent: %s", error)
            message = pack({"error": str(error)})
        self._listener.answer(sender.client, [*sender.envelope, message])

    def _kill(self) -> None:
        if not self._may_kill:
            raise PermissionError("this server cannot be killed from outside; stop its process where it runs")
        self.running = False


def action_request(data: object) -> ActionRequest | None:
    """Return a request's ``data`` as a request for actions, None if it needs an answer of its own."""
    # The policy must report the error of a malformed request. Options other than ``noise_seeds`` may affect a whole
    # batch. Neither can be combined.
    if not isinstance(data, Mapping) or not {"observation"} <= set(data) <= {"observation", "options"}:
        return None
    observation, options = data["observation"], data.get("options") or {}
    if not isinstance(observation, Mapping) or not isinstance(options, Mapping) or not set(options) <= {NOISE_SEEDS}:
        return None
    # Each value is an array or a list, with one element per batch entry.
    layout: list[tuple[Any, ...]] = []
    sizes: set[int] = set()
    for modality, parts in observation.items():
        if not isinstance(parts, Mapping):
            return None
        for key, values in parts.items():
            if isinstance(values, np.ndarray) and values.ndim > 0:
                layout.append((str(modality), str(key), values.dtype.str, values.shape[1:]))
            elif isinstance(values, list):
                layout.append((str(modality), str(key), "list"))
            else:
                return None
            sizes.add(len(values))
    if len(sizes) != 1 or sizes == {0}:
        return None
    (batch_size,) = sizes
    noise_seeds = options.get(NOISE_SEEDS)
    if noise_seeds is not None and not (isinstance(noise_seeds, list) and len(noise_seeds) == batch_size):
        return None
    return ActionRequest(
        observation=observation,
        noise_seeds=noise_seeds,
        batch_size=batch_size,
        layout=(*sorted(layout), noise_seeds is not None),
    )


def join_requests(requests: Sequence[ActionRequest]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the observation and the options of requests with one layout, the entries of the first request first."""
    first = requests[0]
    observation: dict[str, dict[str, Any]] = {}
    for modality, parts in first.observation.items():
        observation[modality] = {}
        for key, values in parts.items():
            pieces = [request.observation[modality][key] for request in requests]
            is_array = isinstance(values, np.ndarray)
            observation[modality][key] = np.concatenate(pieces) if is_array else list(chain.from_iterable(pieces))
    if first.noise_seeds is None:
        return observation, None
    return observation, {NOISE_SEEDS: [seed for request in requests for seed in request.noise_seeds or ()]}


def split_answer(
    action: Mapping[str, Any], info: Mapping[str, Any], sizes: Sequence[int]
) -> list[list[dict[str, Any]]]:
    """Return each request's part of actions (sum of sizes, horizon, dimension) and info; ValueError on a misfit."""
    total = sum(sizes)
    for key, values in action.items():
        if not isinstance(values, np.ndarray) or values.shape[:1] != (total,):
            raise ValueError(f"the policy's action '{key}' is no array of {total} batch entries")
    # Split arrays and lists of the batch's length; all requests get the other information.
    per_entry = {
        key: values
        for key, values in info.items()
        if (isinstance(values, np.ndarray) and values.shape[:1] == (total,))
        or (isinstance(values, list) and len(values) == total)
    }
    shares: list[list[dict[str, Any]]] = []
    start = 0
    for batch_size in sizes:
        part = slice(start, start + batch_size)
        mine = {key: values[part] for key, values in per_entry.items()}
        shares.append([{key: values[part] for key, values in action.items()}, {**info, **mine}])
        start += batch_size
    return shares
