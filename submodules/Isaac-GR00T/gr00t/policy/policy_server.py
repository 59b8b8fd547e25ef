"""Serve a policy to several clients, and answer requests that arrive together by one call of the model."""

import asyncio
import contextlib
import hmac
import itertools
import logging
import queue
import socket as sockets
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
_RECEIVED_BYTES = 128 * 1024
_SMALL_PIECES_BYTES = 256
_MAX_WAITING_BYTES = 4096
"""Bytes that a client has not read, up to which its signs of life are answered."""
_MESSAGES_AT_ONCE = 4
_PATIENCE_S = 30.0
"""The longest silence of a client in the middle of a message or of the introduction [s]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrived:
    """A message from a client."""

    client: int  # number of its connection
    # Frames before the body, which the answer repeats. A message of another socket than REQ has none.
    envelope: Sequence[bytes]
    body: Sequence[bytes | bytearray]
    problem: str = ""  # reason for dropping the message, empty for a whole one


class _Connection(asyncio.BufferedProtocol):
    """A client's connection, whose next message waits for the answer to the last one."""

    def __init__(self, listener: "Listener") -> None:
        self.number = listener.next_number()
        self.reader = zmtp.MessageReader(listener.max_message_bytes)
        self.left = memoryview(b"")  # received bytes of the next message, which has to wait
        self.num_unanswered_bytes = 0
        self.heard_at = time.monotonic()
        self.is_introduced = self.is_inside_message = False
        self._listener = listener
        self._is_unanswered = self._is_answered = self._is_full = False

    @property
    def is_waited_for(self) -> bool:
        """True if the client owes the rest of its introduction or of a message."""
        return not self.is_introduced or (self.is_inside_message and not self._is_unanswered)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        # `pause_writing` is called as soon as the client reads too slowly, `resume_writing` once it has read all.
        self.transport.set_write_buffer_limits(high=0)
        if not self._listener.admits(self):
            self.transport.abort()
            return
        self.transport.write(zmtp.GREETING)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.pop(self.number, None)
        if exc is not None:
            _LOG.debug("a client is gone: %s", exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        # Of small pieces only a few at a time, so that one client's keep no other client waiting.
        del sizehint
        return self._listener.buffer[: max(self.reader.num_wanted, _SMALL_PIECES_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = time.monotonic()
        self.left = self._listener.buffer[:nbytes]
        self._read()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._free()

    def answer(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send the answer to the last message; its memory is free once the client has read the answer."""
        for piece in zmtp.message_pieces(frames):
            self.transport.write(piece)
        self._is_answered = True
        self._free()

    def _free(self) -> None:
        if self._is_answered and not self._is_full:
            self._is_answered = self._is_unanswered = False
            self.num_unanswered_bytes = 0
            # While its message had to wait, the client could not be heard.
            self.heard_at = time.monotonic()
            self._read()

    def _read(self) -> None:
        """Handle the received bytes, up to the next message if the last one is unanswered."""
        try:
            while self.left and not (self._is_unanswered and self.is_inside_message):
                piece, self.left = self.left[: self.reader.num_wanted], self.left[self.reader.num_wanted :]
                held = self.reader.num_held
                event = self.reader.feed(piece)
                # The messages of all clients share one limit.
                if self.reader.num_held > held and self._listener.is_full():
                    self.reader.is_too_large = True
                if event is not None:
                    self._handle(event)
                if self.reader.has_greeted and not self.is_introduced:
                    self.is_introduced = True
                    self.transport.write(zmtp.ready("ROUTER"))
        except zmtp.ProtocolError as error:
            _LOG.debug("a client is gone: %s", error)
            self.transport.abort()
            return
        if self.left:
            self.transport.pause_reading()
            self.left = memoryview(bytes(self.left))
        else:
            self.transport.resume_reading()

    def _handle(self, event: zmtp.Event) -> None:
        """Answer a command, and hand on a message."""
        if isinstance(event, zmtp.Command):
            if event.name == b"PING" and self.transport.get_write_buffer_size() < _MAX_WAITING_BYTES:
                self.transport.write(zmtp.pong(event))
        elif isinstance(event, zmtp.MessageBegins):
            self.is_inside_message = True
        else:
            self.is_inside_message, self._is_unanswered = False, True
            self.num_unanswered_bytes = sum(map(len, event.frames))
            self._listener.hand_on(self.number, event)


class Listener:
    """Accepts connections, returns their messages one after the other, and sends the answers."""

    def __init__(self, address: tuple[str, int], *, max_message_bytes: int, max_clients: int) -> None:
        # Of a message, in all its frames; of all incomplete and unanswered messages together; and connections at a
        # time, of which more are closed at once.
        self.max_message_bytes, self._max_bytes = max_message_bytes, _MESSAGES_AT_ONCE * max_message_bytes
        self._max_clients = max_clients
        family = sockets.AF_INET6 if ":" in address[0] else sockets.AF_INET
        self._socket = sockets.create_server(address, family=family, backlog=128)
        self.host, self.port = self._socket.getsockname()[:2]
        self._arrived: queue.SimpleQueue[Arrived | Exception] = queue.SimpleQueue()
        self.connections: dict[int, _Connection] = {}  # by number
        # Each connection has read what it received here before another one receives.
        self.buffer = memoryview(bytearray(_RECEIVED_BYTES))
        self.next_number = itertools.count().__next__
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._report)
        self._warned_at = 0.0
        self._is_ending = asyncio.Event()
        self._linger_s = 0.0
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
        self._call(self._answer, client, frames)

    def close(self, linger_s: float) -> None:
        """Close all connections after all waiting answers are sent, or after `linger_s` [s]."""
        self._linger_s = linger_s
        if self._thread.is_alive():
            self._call(self._is_ending.set)
            self._thread.join()
        else:
            self._socket.close()
            self._loop.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let the listener's thread call a function."""
        # An error means that the thread has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # The rest runs in the listener's thread.

    def admits(self, connection: _Connection) -> bool:
        """Keep a new connection and return True, False if there are too many."""
        if len(self.connections) >= self._max_clients:
            _LOG.warning("the listener refused a client: there are %d already", len(self.connections))
            return False
        self.connections[connection.number] = connection
        return True

    def is_full(self) -> bool:
        """True if the bytes of all clients together exceed their limit."""
        each = self.connections.values()
        return sum(one.reader.num_held + one.num_unanswered_bytes + len(one.left) for one in each) > self._max_bytes

    def hand_on(self, client: int, message: zmtp.Message) -> None:
        """Queue a message for `receive`."""
        envelope, body = zmtp.split_envelope(message.frames)
        most, problem = self.max_message_bytes, ""
        if not message.is_whole:
            if message.num_bytes > most:
                problem = f"the message has {message.num_bytes} bytes, at most {most} are allowed"
            elif message.num_frames > zmtp.MAX_FRAMES:
                problem = f"the message has {message.num_frames} frames, at most {zmtp.MAX_FRAMES} are allowed"
            else:
                problem = f"the requests under way have more than {self._max_bytes} bytes together; ask again later"
        self._arrived.put(Arrived(client=client, envelope=tuple(envelope), body=tuple(body), problem=problem))

    def _answer(self, client: int, frames: Sequence[bytes | bytearray]) -> None:
        if client in self.connections:
            self.connections[client].answer(frames)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:  # noqa: BLE001  the receiver must learn that no more messages follow
            self._arrived.put(error)
        finally:
            self._loop.close()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error in a callback, after which the other connections are served as before."""
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError):
            loop.default_exception_handler(context)
            return
        # No file descriptor is free. asyncio says so many times, and tries again after a second.
        if time.monotonic() - self._warned_at > _TICK_S / 2:
            _LOG.warning("the listener cannot accept a client: %s", error.strerror)
            self._warned_at = time.monotonic()

    async def _serve(self) -> None:
        """Serve all connections, until `close` sets the end and all answers are sent, or time is up."""
        server = await self._loop.create_server(lambda: _Connection(self), sock=self._socket, backlog=128)
        while not self._is_ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_ending.wait(), _TICK_S)
            now = time.monotonic()
            for connection in self.connections.values():
                if connection.is_waited_for and now - connection.heard_at > _PATIENCE_S:
                    _LOG.debug("a client was silent in the middle of a message")
                    connection.transport.abort()
        server.close()
        ends_at = time.monotonic() + self._linger_s
        while time.monotonic() < ends_at and any(
            connection.transport.get_write_buffer_size() for connection in self.connections.values()
        ):
            await asyncio.sleep(0.01)
        for connection in list(self.connections.values()):
            connection.transport.abort()
        # The sockets close in the loop's next turn.
        await asyncio.sleep(0)


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
