"""The processes of a run as actors of a Ray cluster."""

import io
import json
import logging
import re
import socket
import sys
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, cast

import ray
from ray import exceptions
from ray._private.state import actors
from ray._private.utils import get_num_cpus
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]  compiled code
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, first_line, refuse
from isaaclab_arena.evaluation.cluster import claim_server
from isaaclab_arena.evaluation.cluster.claim_server import WAY_OUT, Ask, Call, Life, NodeNeeds, RefusedError, RunOrders
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.storage.json_values import adapter, json_line

# The claim server and the ranks of a run as Ray actors, and the messages of their errors.

_GUESSES = re.compile(r"(?:Some|There are some) (?:common|potential root) causes")
CANNOT_IMPORT = "failed to import on the worker"
"""Part of Ray's error if a node's interpreter cannot load the code that is sent there."""
_EXCEPTION = re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE)

ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""Ray would run an episode twice, but the commits of a run allow it once."""

CLAIM_SERVER_OPTIONS = {"num_cpus": 0, "enable_task_events": False, **ONCE}
"""The head would remember each of many thousand calls of the claim server, for its dashboard."""


class ClaimServerActor:
    """The claim server of a run, as an actor. Its questions and answers are JSON, besides plain bytes."""

    def __init__(self, orders: str) -> None:
        read = adapter(RunOrders).validate_json(orders)
        self._claim_server = claim_server.ClaimServer(
            claim_server.request_of(read.needs), read.attempt, Path(read.output_directory)
        )

    def ask(self, words: str, content: bytes) -> str:
        """Make calls of a rank or of the driver, and answer the last one. `content` holds the bytes of all of them."""
        stream, (life, asked) = io.BytesIO(content), json.loads(words)
        calls = [(name, arguments, None if size is None else stream.read(size)) for name, arguments, size in asked]
        return json_line(self._claim_server.ask(calls, None if life is None else Life(**life)))


def answer_of(actor: Any, calls: Sequence[Call], *, life: Life | None = None, way_out: str = "") -> Any:
    """Make calls of the claim server, and return its last answer; `ClaimsLostError` if the server is lost."""
    asked = [(name, arguments, None if content is None else len(content)) for name, arguments, content in calls]
    contents = b"".join(content or b"" for _, _, content in calls)
    try:
        return json.loads(ray.get(actor.ask.remote(json_line([life, asked]), contents)))
    except (exceptions.RayTaskError, exceptions.RayActorError) as error:
        is_failure = isinstance(error, exceptions.RayTaskError)
        if is_failure and isinstance(error.cause, ArenaError):
            raise error.cause from error
        # No job of the asking rank is at fault.
        how = "failed" if is_failure else "does not answer"
        raise ClaimsLostError(f"the run's claim server {how}: {why(error)}{way_out}") from error


@dataclass(eq=False, repr=False)
class RankActor:
    """A rank of a run, as an actor."""

    claim_server: Any
    rank: int

    def __repr__(self) -> str:
        """Name the rank in Ray's dashboard and before each of its lines on the screen."""
        return f"rank {self.rank}"

    def run(self, orders: str, life: str) -> str:
        """Run the claimed jobs, and return the final state of the rank."""
        read, lived = adapter(RunOrders).validate_json(orders), adapter(Life).validate_json(life)
        return claim_server.run_rank(read, lived, partial(answer_of, self.claim_server, life=lived))


def why(error: exceptions.RayError) -> str:
    """Return the informative line of a long Ray message, without Ray's guesses at the cause."""
    if CANNOT_IMPORT in str(error) and (found := _EXCEPTION.findall(str(error).partition(CANNOT_IMPORT)[2])):
        return found[0]
    if isinstance(error, exceptions.RayTaskError):
        return f"{type(error.cause).__name__}: {first_line(error.cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, exceptions.RayActorError) and error.actor_init_failed:
        return lines[-1]
    telling = [line for line in lines if line.startswith("The actor ") and "unexpectedly before" not in line]
    return _GUESSES.split((telling or lines[-1:] or [type(error).__name__])[0])[0].strip()


# Run the processes of a run as actors of a Ray cluster.

_LOG = logging.getLogger(__name__)
_NODE_ID = "ray.io/node-id"
"""The label with which Ray provides every node."""
_KNOCK_TIMEOUT_S = 5.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The opening of HTTP/2, which Ray speaks: both sides send their settings first (RFC 9113, 3.4)."""
_SETTINGS, _TLS_ALERT = b"\x04", b"\x15"
"""The fourth byte of an answer in HTTP/2, and the first one of a server that speaks nothing but TLS."""

_MAX_JOBS_CHARACTERS = 120
_TRIES_OF_A_CHECK = 3

_NO_CLUSTER = "start one with: ray start --head, or say --ray_address local for one on this node"
_HOW_IT_LETS_US_IN = (
    "this cluster has a token: copy ~/.ray/auth_token from its head, and set the variable RAY_AUTH_MODE to token"
)

_on = partial(NodeAffinitySchedulingStrategy, soft=False)
_remote: Any = ray.remote
"""Its types know neither options given by name nor the methods that it adds."""


@contextmanager
def connected(options: ClusterOptions) -> Iterator["RayEngine"]:
    """Connect to a Ray cluster for a `with` block, at whose end all processes end; `ConfigError` if there is none."""
    address, own = options.ray_address, dict[str, Any]()
    if address == "local":
        # Ray starts a process for each core of its own cluster. Its default nice value is 15, with which ranks get
        # little time beside other programs.
        cores = min(int(get_num_cpus()), ceil(options.num_ranks * options.cpus_per_rank))
        own = {"include_dashboard": False, "num_cpus": cores, "_system_config": {"worker_niceness": 0}}
    try:
        # Ray would try for ten minutes if no cluster answers.
        host, colon, port = address.rpartition(":")
        if address.startswith("ray://"):
            raise ValueError("start the command on a node of the cluster, or by ray job submit")  # noqa: TRY301
        if colon:
            with socket.create_connection((host, int(port)), timeout=_KNOCK_TIMEOUT_S) as connection:
                connection.sendall(_GREETING)
                answer = b""
                with suppress(TimeoutError):
                    answer = connection.recv(9)
            if answer[3:4] != _SETTINGS and answer[:1] != _TLS_ALERT:
                raise ValueError("something listens there, but no Ray cluster")  # noqa: TRY301
            GcsClient(address=address)
        ray.init(address=address, namespace=f"arena-{uuid.uuid4().hex}", logging_level=logging.WARNING, **own)
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        way_out = _HOW_IT_LETS_US_IN if "InvalidAuthToken" in str(error) else _NO_CLUSTER
        reason = first_line(error).partition(". ")[0]
        message = f"no Ray cluster can be reached at '{address}' ({reason}); {way_out}"
        raise ConfigError(Problem(message, key="--ray_address")) from error
    try:
        is_copied = ray.get_runtime_context().runtime_env.get("working_dir")
        directory = None if is_copied else str(Path.cwd())
        yield RayEngine(is_local=address == "local", working_directory=directory)
    finally:
        ray.shutdown()


@dataclass(eq=False, kw_only=True)
class RayEngine:
    """A Ray cluster that runs the processes of a run; see `connected`."""

    is_local: bool  # begun for this run, on this node
    working_directory: str | None  # of the command; None if Ray copies a working directory to each node
    ask: Ask = lambda _: None  # of the claim server, once it is started
    _orders: RunOrders = field(init=False)
    _claim_server: Any = field(init=False)
    # The ranks and their actors, by the outcome to come.
    _ranks: dict[Any, tuple[Life, Any]] = field(default_factory=dict, init=False)

    def check_nodes(self, needs: NodeNeeds) -> None:
        """Raise `ConfigError` with everything that nodes lack, among those with enough resources for a rank."""
        # This node needs no check if Ray runs here in the Python environment of this process. A lambda is pickled by
        # value, so its process need not import this package.
        check, here = _remote(num_cpus=0, max_retries=0), ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node for node in ray.nodes() if _could_have(node, needs)}
        prefix = check(lambda: sys.prefix).options(scheduling_strategy=_on(here))
        if here in nodes and (self.is_local or ray.get(prefix.remote()) == sys.prefix):
            del nodes[here]
        # Made once, because Ray sends each remote function to the cluster by itself. All nodes are at work on their
        # checks at the same time.
        problem_there, words = check(claim_server.problem_of_node), json_line(needs)
        checks = [problem_there.options(scheduling_strategy=_on(node_id)) for node_id in nodes]
        pending, problems = [each.remote(words) for each in checks], []
        for node, there, reference in zip(nodes.values(), checks, pending, strict=True):
            name, checking = node["NodeManagerHostname"], reference
            told: str | None = None
            # Ray's own retries would never end on a node that lacks memory.
            for _ in range(_TRIES_OF_A_CHECK):
                try:
                    told = cast("str | None", ray.get(checking))
                except exceptions.WorkerCrashedError as error:
                    # If the node has gone, the next try raises NodeDiedError as soon as Ray has noticed.
                    told = f"node {name}: the process that checks it crashed: {why(error)}; {WAY_OUT}"
                    checking = there.remote(words)
                    continue
                except (exceptions.NodeDiedError, exceptions.TaskUnschedulableError) as error:
                    # Ray lists a node that has gone for a while.
                    _LOG.warning("node %s was not checked, because it has gone: %s", name, why(error))
                    told = None
                except exceptions.RayError as error:
                    lacks = "it lacks this package or has another version of it"
                    told = f"node {name}: cannot be checked, so {lacks}: {why(error)}; {WAY_OUT}"
                break
            problems += [] if told is None else [Problem(told)]
        refuse(problems)

    def start_claim_server(self, orders: RunOrders) -> None:
        """Start the claim server on this node."""
        self._orders = orders
        actor = _remote(**CLAIM_SERVER_OPTIONS)(ClaimServerActor)
        here = ray.get_runtime_context().get_node_id()
        named = actor.options(name=f"arena/{orders.run}/claim_server", scheduling_strategy=_on(here))
        self._claim_server = named.remote(json_line(orders))
        again = f"go on with the same command and --resume {orders.output_directory}"
        self.ask = partial(answer_of, self._claim_server, way_out=f"; all that it committed is kept: {again}")

    def start_rank(self, life: Life, *, avoid: Collection[str] = ()) -> None:
        """Start a rank as soon as the cluster has the resources, on none of the nodes to avoid."""
        orders = self._orders
        rank = _remote(num_cpus=orders.needs.cpus, num_gpus=orders.needs.gpus, **ONCE)(RankActor)
        elsewhere = {"label_selector": {_NODE_ID: f"!in({','.join(sorted(avoid))})"}} if avoid else {}
        actor = rank.options(name=name_of_rank(orders, life), **elsewhere).remote(self._claim_server, life.rank)
        self._ranks[actor.run.remote(json_line(orders), json_line(life))] = life, actor

    def waiting(self) -> Collection[Life]:
        """Return the ranks without a worker process, which wait for resources."""
        # Ray's public list of actors needs the dashboard, which a cluster may lack.
        return [life for life, actor in self._ranks.values() if not actors(actor._actor_id.hex()).get("Pid")]

    def wait(self, timeout_s: float) -> Sequence[tuple[Life, str | Exception]]:
        """Return the ranks that have ended since the last call, each with its final state or its error."""
        ended, _ = ray.wait(list(self._ranks), num_returns=1, timeout=timeout_s) if self._ranks else ((), ())
        return [(self._ranks[reference][0], self._outcome(reference)) for reference in ended]

    def kill(self, life: Life) -> None:
        """End a rank at once."""
        (reference,) = [reference for reference, (each, _) in self._ranks.items() if each == life]
        ray.kill(self._ranks.pop(reference)[1])

    def has_nodes(self, avoided: Collection[str]) -> bool:
        """Whether another node than these has enough resources for a rank."""
        return any(_could_have(node, self._orders.needs) and node["NodeID"] not in avoided for node in ray.nodes())

    def resources(self) -> str:
        """Return the resources of the cluster in words."""
        total = ray.cluster_resources()
        return f"{total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU"

    def _outcome(self, reference: Any) -> str | Exception:
        _, actor = self._ranks.pop(reference)
        try:
            return ray.get(reference)
        except exceptions.RayTaskError as error:
            if not isinstance(error.cause, RefusedError):
                return error.cause if isinstance(error.cause, Exception) else error
            refusal = error.cause
        except exceptions.RayError as error:
            if CANNOT_IMPORT not in str(error):
                return claim_server.RankDiedError(why(error))
            # The node cannot load the code of the rank.
            refusal = RefusedError(f"lacks this package or something that it needs: {why(error)}; {WAY_OUT}")
        refusal.node = actors(actor._actor_id.hex())["Address"]["NodeID"]
        hosts = {each["NodeID"]: each["NodeManagerHostname"] for each in ray.nodes()}
        refusal.host = hosts.get(refusal.node, refusal.host)
        return refusal


def name_of_rank(orders: RunOrders, life: Life) -> str:
    """Return a rank's name in Ray's dashboard: its run, the jobs of the attempt, and its number."""
    names = [work.job for work in orders.attempt.jobs]
    jobs, shown = ", ".join(names), len(names)
    while len(jobs) > _MAX_JOBS_CHARACTERS and shown > 1:
        shown -= 1
        jobs = f"{', '.join(names[:shown])} and {len(names) - shown} more"
    again = f", life {life.number + 1}" if life.number else ""
    return f"arena/{orders.run}/{jobs}/rank {life.rank}{again}"


def _could_have(node: dict[str, Any], needs: NodeNeeds) -> bool:
    resources = node["Resources"]
    return node["Alive"] and resources.get("CPU", 0) >= needs.cpus and resources.get("GPU", 0) >= needs.gpus
