"""Serve a policy to several clients, and answer requests that arrive together by one call of the model."""

import hmac
import logging
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from arena_wire.gr00t import ArrayFormat, pack, received
from arena_wire.messages import DEFAULT_LIMITS, WireError, WireLimits, outline, read_message
from gr00t.data.types import ModalityConfig
from gr00t.errors import plain
from gr00t.policy.listener import Arrived, Listener, ListenerLimits

_LOG = logging.getLogger(__name__)

MAX_CLIENTS = 1000
"""Default limit of the connections at a time."""
NOISE_SEEDS = "noise_seeds"

_POLL_S = 0.1
_FAREWELL_S = 1.0
_CLIENT_MEMORY_S = 10.0
_MAX_CLIENTS_REMEMBERED = 1000
_MESSAGES_AT_ONCE = 4
_LOCAL_HOSTS = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}


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
        allow_kill: Whether a client may stop the server. If other machines can reach it, this also needs an
            ``api_token``.

    Attributes:
        running: Whether the server is running; `stop` makes it False.
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
        self._may_kill = allow_kill and (is_local(host) or api_token is not None)
        self._waiting: list[_Waiting] = []
        self._last_asked: dict[int, float] = {}

        name = "" if host == "*" else _LOCAL_HOSTS.get(host, host)
        most = limits.max_message_bytes
        kept = ListenerLimits(
            max_message_bytes=most, max_bytes=_MESSAGES_AT_ONCE * most, max_clients=self._batching.max_clients
        )
        try:
            self._listener = Listener((name, port), socket.AF_INET6 if ":" in name else socket.AF_INET, kept)
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
            requires_input: Whether the handler takes the request's ``data`` as keywords.
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
                    self._gather()
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
        places = outline(message, self._limits)
        # Compare the token before any other part of a foreign message is decoded.
        if self.api_token is not None:
            place = places.get(b"api_token")
            token = None if place is None else read_message(message[slice(*place)], dict)
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

    def _gather(self) -> None:
        """Wait a moment for recently active clients whose next request has not arrived."""
        deadline = time.monotonic() + self._batching.wait_ms / 1000
        while self._waiting[0].request is not None and self._waiting_entries() < self._batching.max_batch:
            self._forget_old()
            missing = set(self._last_asked) - {waiting.sender.client for waiting in self._waiting}
            if not missing or not self._receive(max(0.0, deadline - time.monotonic())):
                return

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


def is_local(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    return host in _LOCAL_HOSTS


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
