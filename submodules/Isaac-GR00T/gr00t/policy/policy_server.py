"""Serves a policy to several clients at once, and answers what arrives together with one call of the model."""

import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from gr00t.policy.msgpack_numpy import DEFAULT_LIMITS, WireError, WireLimits, pack, unpack
from gr00t.policy.request_batching import ActionRequest, action_request, join, split

_LOG = logging.getLogger(__name__)

_POLL_MS = 100
_FAREWELL_MS = 1000
_CLIENT_MEMORY_S = 10.0
_LOCAL_HOSTS = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "[::1]"}


class ServedPolicy(Protocol):
    """What a policy must offer to be served."""

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the actions, and what there is to tell beside them."""
        ...

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Forget what went before."""
        ...


@dataclass(frozen=True, kw_only=True)
class EndpointHandler:
    """What answers an endpoint.

    Attributes:
        handler: Called with the request's ``data`` as keywords, or with nothing.
        requires_input: Which of the two.
    """

    handler: Callable[..., Any]
    requires_input: bool = True


@dataclass(frozen=True, kw_only=True)
class BatchingOptions:
    """How requests for actions are put together.

    Attributes:
        max_batch: Rows of one call of the model at most; 1 answers every request by itself. A request that has more
            rows is never taken apart.
        wait_ms: How long to wait for other clients that have asked of late, before the model is called.
    """

    max_batch: int = 64
    wait_ms: float = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """A request for actions that has arrived.

    Attributes:
        envelope: The frames in front of the message, which lead back to its client.
        data: What came with it.
        request: The same in a form that can be put together with others; None if it must be answered by itself.
    """

    envelope: Sequence[bytes]
    data: Any
    request: ActionRequest | None


class PolicyServer:
    """An inference server that speaks NVIDIA's protocol.

    Where theirs answers one client after the other, this one hears all of them, and puts the requests for actions
    that arrive together into one call of the model if they are alike. The error of a request reaches only the client
    that sent it. By default nobody outside this machine can reach it.

    Args:
        policy: Answers ``get_action``, ``reset`` and, if it has it, ``get_modality_config``.
        host: Address to listen on; ``*`` is every one of this machine's.
        port: Port to listen on; 0 takes a free one, see `port`.
        api_token: What requests must carry, None for nothing.
        batching: How requests are put together.
        limits: How large a message may be.
        allow_kill: Whether a client may stop the server. Where others than this machine can reach it, that also takes
            an ``api_token``.

    Attributes:
        running: Whether it goes on; `stop` makes it False.
        port: The port it listens on.
        address: Where clients find it.

    Raises:
        OSError: If it cannot listen there, for instance because the port is in use.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        host: str = "127.0.0.1",
        port: int = 5555,
        api_token: str | None = None,
        *,
        batching: BatchingOptions | None = None,
        limits: WireLimits = DEFAULT_LIMITS,
        allow_kill: bool = True,
    ) -> None:
        self.policy = policy
        self.running = True
        self.api_token = api_token
        self._batching = batching or BatchingOptions()
        self._limits = limits
        self._may_kill = allow_kill and (is_local(host) or api_token is not None)
        self._waiting: list[_Waiting] = []
        self._last_asked: dict[bytes, float] = {}
        self._endpoints: dict[str, EndpointHandler] = {}
        self.context = zmq.Context()
        self.socket = self._listening_socket(host, port)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address.rpartition(":")[2])
        self.register_endpoint("get_action", policy.get_action)
        self.register_endpoint("reset", policy.reset)
        self.register_endpoint(
            "get_modality_config", getattr(policy, "get_modality_config", dict), requires_input=False
        )

    def register_endpoint(self, name: str, handler: Callable[..., Any], requires_input: bool = True) -> None:  # noqa: FBT001, FBT002  as in NVIDIA's package
        """Answer another endpoint too, or one of them in another way.

        Args:
            name: What requests call it.
            handler: Its answer is sent back; its exception is sent back as an error.
            requires_input: Whether it takes the request's ``data`` as keywords.
        """
        self._endpoints[name] = EndpointHandler(handler=handler, requires_input=requires_input)

    def run(self) -> None:
        """Answer requests until `stop` is called, in a signal handler or another thread, or a client kills it."""
        _LOG.info("listening on %s", self.address)
        try:
            while self.running:
                self._receive(wait_ms=_POLL_MS)
                while self._waiting and self.running:
                    self._gather()
                    self._answer_some()
        finally:
            self._say_goodbye()
            self.socket.close(linger=_FAREWELL_MS)
            self.context.term()

    def stop(self) -> None:
        """Have `run` return after what it is doing."""
        self.running = False

    @staticmethod
    def start_server(policy: ServedPolicy, port: int, host: str = "127.0.0.1", api_token: str | None = None) -> None:
        """Serve a policy until somebody stops it."""
        PolicyServer(policy, host=host, port=port, api_token=api_token).run()

    def _listening_socket(self, host: str, port: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(":" in host))
        # Beyond this ZeroMQ ends the connection without a word; up to it the client learns what is wrong.
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * self._limits.max_message_bytes)
        name = _LOCAL_HOSTS.get(host, f"[{host}]" if ":" in host else host)
        try:
            socket.bind(f"tcp://{name}:{port or '*'}")
        except zmq.ZMQError as error:
            socket.close()
            self.context.term()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
        return socket

    def _receive(self, wait_ms: float) -> None:
        """Take the messages that are there, after waiting for the first one."""
        wait = max(0, round(wait_ms))
        while self.running and self._waiting_rows() < self._batching.max_batch and self.socket.poll(wait):
            self._take(self.socket.recv_multipart())
            wait = 0

    def _take(self, frames: list[bytes]) -> None:
        envelope, body = _opened(frames)
        if not envelope:
            _LOG.warning("dropped a message that came from no REQ socket")
            return
        try:
            self._dispatch(envelope, self._request_of(body))
        except Exception as error:  # noqa: BLE001  what one client sends must not stop the others
            self._fail(envelope, error)

    def _request_of(self, body: list[bytes]) -> dict[str, Any]:
        if len(body) != 1:
            raise WireError(f"a request is one message, this one came in {len(body)} parts")
        request = unpack(body[0], self._limits)
        if not isinstance(request, dict):
            raise WireError(f"a request is a map, this one is a {type(request).__name__}")
        return request

    def _dispatch(self, envelope: list[bytes], request: dict[str, Any]) -> None:
        if not self._is_authorised(request):
            self._reply(envelope, {"error": "Unauthorized: Invalid API token"})
            return
        name = request.get("endpoint", "get_action")
        handler = self._handler(name)
        data = request.get("data", {})
        if name == "get_action":
            self._last_asked[envelope[0]] = time.monotonic()
            self._waiting.append(_Waiting(envelope=envelope, data=data, request=action_request(data)))
        else:
            self._reply(envelope, handler.handler(**data) if handler.requires_input else handler.handler())

    def _handler(self, name: object) -> EndpointHandler:
        # What is the server's own stands in no table: an object that holds its own methods is collected late, and a
        # context that is collected before its socket hangs.
        own = {"ping": self._ping, "kill": self._kill}
        if isinstance(name, str) and name in self._endpoints:
            return self._endpoints[name]
        if isinstance(name, str) and name in own:
            return EndpointHandler(handler=own[name], requires_input=False)
        raise ValueError(f"Unknown endpoint: {name}")

    def _is_authorised(self, request: dict[str, Any]) -> bool:
        if self.api_token is None:
            return True
        token = request.get("api_token")
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self.api_token.encode())

    def _gather(self) -> None:
        """Wait a moment for the clients that have asked of late and not yet asked again."""
        deadline = time.monotonic() + self._batching.wait_ms / 1000
        while self._may_grow() and self._others_may_ask():
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms < 0.5 or not self.socket.poll(round(left_ms)):
                return
            self._receive(wait_ms=0)

    def _may_grow(self) -> bool:
        return self._waiting[0].request is not None and self._waiting_rows() < self._batching.max_batch

    def _others_may_ask(self) -> bool:
        now = time.monotonic()
        self._last_asked = {who: when for who, when in self._last_asked.items() if now - when < _CLIENT_MEMORY_S}
        return bool(set(self._last_asked) - {waiting.envelope[0] for waiting in self._waiting})

    def _waiting_rows(self) -> int:
        return sum(1 if waiting.request is None else waiting.request.num_rows for waiting in self._waiting)

    def _answer_some(self) -> None:
        """Answer the request that has waited longest, and those that can be answered together with it."""
        batch = self._next_batch()
        self._waiting = [waiting for waiting in self._waiting if waiting not in batch]
        requests = [waiting.request for waiting in batch if waiting.request is not None]
        if len(batch) > 1:
            try:
                observation, options = join(requests)
                action, info = self._act(observation=observation, options=options)
                answers = split(action, info, [request.num_rows for request in requests])
            except Exception:  # noqa: BLE001  one of them may be to blame, and only that one is to learn of it
                _LOG.debug("a batch of %d requests failed; each is answered by itself", len(batch), exc_info=True)
            else:
                for waiting, answer in zip(batch, answers, strict=True):
                    self._reply(waiting.envelope, answer)
                return
        for waiting in batch:
            self._answer_alone(waiting)

    def _next_batch(self) -> list[_Waiting]:
        first = self._waiting[0]
        batch, rows = [first], first.request.num_rows if first.request else 0
        for waiting in self._waiting[1:]:
            if first.request is None or waiting.request is None or waiting.request.layout != first.request.layout:
                continue
            if rows + waiting.request.num_rows <= self._batching.max_batch:
                batch.append(waiting)
                rows += waiting.request.num_rows
        return batch

    def _answer_alone(self, waiting: _Waiting) -> None:
        try:
            self._reply(waiting.envelope, self._act(**waiting.data))
        except Exception as error:  # noqa: BLE001  what one client asks must not stop the others
            self._fail(waiting.envelope, error)

    def _act(self, **data: Any) -> Any:
        return self._endpoints["get_action"].handler(**data)

    def _fail(self, envelope: Sequence[bytes], error: Exception) -> None:
        _LOG.warning("a request failed: %s: %s", type(error).__name__, error)
        _LOG.debug("its traceback:", exc_info=error)
        self._reply(envelope, {"error": str(error) or type(error).__name__})

    def _reply(self, envelope: Sequence[bytes], answer: Any) -> None:
        # A ROUTER drops what is for a client that has gone, so nobody can hold it up.
        try:
            message = pack(answer)
        except WireError as error:
            _LOG.warning("an answer cannot be sent: %s", error)
            message = pack({"error": str(error)})
        self.socket.send_multipart([*envelope, message])

    def _ping(self) -> Mapping[str, str]:
        return {"status": "ok", "message": "Server is running"}

    def _kill(self) -> None:
        if not self._may_kill:
            raise PermissionError("this server cannot be killed from outside; stop its process where it runs")
        self.running = False

    def _say_goodbye(self) -> None:
        envelopes = [waiting.envelope for waiting in self._waiting]
        while self.socket.poll(0):
            envelopes.append(_opened(self.socket.recv_multipart())[0])
        for envelope in filter(None, envelopes):
            self._reply(envelope, {"error": "the server is shutting down"})
        self._waiting = []


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    return host in _LOCAL_HOSTS


def _opened(frames: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the frames that lead back to the client, none if it left them out, and those of its message."""
    if b"" not in frames[1:]:
        return [], frames
    end = frames.index(b"", 1) + 1
    return frames[:end], frames[end:]
