"""The ranks of an evaluation as actors of a Ray cluster: their processes, their supervision, and the run."""

import json
import logging
import re
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from textwrap import shorten
from typing import Any

import ray
from ray import exceptions
from ray._private.state import actors
from ray._private.utils import get_num_cpus
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]  compiled code
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import ClaimsLostError, DistributedError, ranks_of_one
from isaaclab_arena.errors import ArenaError, ConfigError, DiskUnusableError, Problem, first_line, refuse
from isaaclab_arena.evaluation import heartbeat, planning, process, run
from isaaclab_arena.evaluation.cluster import claim_server
from isaaclab_arena.evaluation.cluster.claim_server import Life, NodeNeeds, RankDiedError, RefusedError, RunOrders
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.storage.atomic import adapter, json_line

# The claim server and the ranks of a run as Ray actors, and the messages of their errors.

_GUESSES = re.compile(r"(?:Some|There are some) (?:common|potential root) causes")
CANNOT_IMPORT = "failed to import on the worker"  # in Ray's error if a node cannot load the code that is sent there
_EXCEPTION = re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE)

# Ray would run an episode twice, but the commits of a run allow it once.
ONCE = {"max_restarts": 0, "max_task_retries": 0}

CLAIM_SERVER_OPTIONS = {"num_cpus": 0, "enable_task_events": False, **ONCE}
"""The head would remember each of many thousand calls of the claim server, for its dashboard."""


class ClaimServerActor:
    """The claim server of a run, as an actor. Its questions and answers are JSON, besides the bytes of files."""

    def __init__(self, orders: str) -> None:
        read = adapter(RunOrders).validate_json(orders)
        request, directory = claim_server.request_of(read.needs), Path(read.output_directory)
        self._claim_server = claim_server.ClaimServer(request, read.attempt, directory)

    def ask(self, words: str, contents: list[bytes | None]) -> str:
        """Make calls of a rank or of the driver, each with its content, and answer the last one."""
        life, asked = json.loads(words)
        calls = [(name, arguments, content) for (name, arguments), content in zip(asked, contents, strict=True)]
        return json_line(self._claim_server.ask(calls, None if life is None else Life(**life)))


def answer_of(actor: Any, calls: Sequence[claim_server.Call], *, life: Life | None = None, way_out: str = "") -> Any:
    """Make calls of the claim server, and return its last answer; `ClaimsLostError` if the server is lost."""
    asked = [(name, arguments) for name, arguments, _ in calls]
    try:
        return json.loads(ray.get(actor.ask.remote(json_line([life, asked]), [content for _, _, content in calls])))
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
_NODE_ID = "ray.io/node-id"  # the label with which Ray provides every node
_KNOCK_TIMEOUT_S = 5.0
_GONE = exceptions.NodeDiedError, exceptions.TaskUnschedulableError, exceptions.WorkerCrashedError
_MAX_JOBS_CHARACTERS = 120
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The opening of HTTP/2, which Ray speaks: both sides send their settings first (RFC 9113, 3.4)."""
_SETTINGS, _TLS_ALERT = b"\x04", b"\x15"
"""The fourth byte of an answer in HTTP/2, and the first one of a server that speaks nothing but TLS."""

_TO_JOIN = "copy ~/.ray/auth_token from its head, and set the variable RAY_AUTH_MODE to token"
_NO_CLUSTER = "start one with: ray start --head, or use --ray_address local for one on this node"

_on = partial(NodeAffinitySchedulingStrategy, soft=False)
_remote: Any = ray.remote  # its types know neither options given by name nor the methods that it adds


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
                answer = connection.recv(9)
            if answer[3:4] != _SETTINGS and answer[:1] != _TLS_ALERT:
                raise ValueError("something listens there, but no Ray cluster")  # noqa: TRY301
            GcsClient(address=address)
        ray.init(address=address, namespace=f"arena-{uuid.uuid4().hex}", logging_level=logging.WARNING, **own)
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        way_out = f"this cluster needs a token: {_TO_JOIN}" if "InvalidAuthToken" in str(error) else _NO_CLUSTER
        reason = first_line(error).partition(". ")[0]
        message = f"no Ray cluster can be reached at '{address}' ({reason}); {way_out}"
        raise ConfigError(Problem(message, key="--ray_address")) from error
    try:
        is_copied = ray.get_runtime_context().runtime_env.get("working_dir")
        yield RayEngine(options=options, working_directory=None if is_copied else str(Path.cwd()))
    finally:
        ray.shutdown()


@dataclass(eq=False, kw_only=True)
class RayEngine:
    """A Ray cluster that runs the processes of a run; see `connected`."""

    options: ClusterOptions
    working_directory: str | None  # of the command; None if Ray copies a working directory to each node
    ask: claim_server.Ask = lambda _: None  # of the claim server, once it is started
    _claim_server: Any = field(init=False)
    # The ranks and their actors, by the outcome to come.
    _ranks: dict[Any, tuple[Life, Any]] = field(default_factory=dict, init=False)

    def check_nodes(self, needs: NodeNeeds) -> None:
        """Raise `ConfigError` with everything that nodes lack, among those with enough resources for a rank."""
        # This node needs no check if Ray runs here in the Python environment of this process. A lambda is pickled by
        # value, so its process need not import this package.
        check, here = _remote(num_cpus=0, max_retries=0), ray.get_runtime_context().get_node_id()
        nodes = _able_nodes(needs)
        prefix = check(lambda: sys.prefix).options(scheduling_strategy=_on(here))
        if here in nodes and (self.options.ray_address == "local" or ray.get(prefix.remote()) == sys.prefix):
            del nodes[here]
        # Made once, because Ray sends each remote function to the cluster by itself. All nodes check at the same time.
        problem_there, words, problems = check(claim_server.problem_of_node), json_line(needs), list[str | None]()
        pending = [problem_there.options(scheduling_strategy=_on(node_id)).remote(words) for node_id in nodes]
        for node, checking in zip(nodes.values(), pending, strict=True):
            name = node["NodeManagerHostname"]
            try:
                problems.append(ray.get(checking))
            except _GONE as error:
                # Ray lists a node that has gone for a while. Each rank checks its node itself before it plays.
                _LOG.warning("node %s was not checked: %s", name, why(error))
            except exceptions.RayError as error:
                lacks = "it lacks this package or has another version of it"
                problems.append(f"node {name}: cannot be checked, so {lacks}: {why(error)}; {claim_server.WAY_OUT}")
        refuse([Problem(told) for told in problems if told is not None])

    def start_claim_server(self, orders: RunOrders) -> None:
        """Start the claim server on this node."""
        here, name = _on(ray.get_runtime_context().get_node_id()), f"arena/{orders.run}/claim_server"
        actor = _remote(**CLAIM_SERVER_OPTIONS, name=name, scheduling_strategy=here)(ClaimServerActor)
        self._claim_server = actor.remote(json_line(orders))
        again = f"continue with the same command and --resume {orders.output_directory}"
        self.ask = partial(answer_of, self._claim_server, way_out=f"; all that it committed is kept: {again}")

    def start_rank(self, orders: RunOrders, life: Life, *, avoid: Collection[str] = ()) -> None:
        """Start a rank as soon as the cluster has the resources, on none of the nodes to avoid."""
        own = {"num_cpus": orders.needs.cpus, "num_gpus": orders.needs.gpus, "name": name_of_rank(orders, life), **ONCE}
        elsewhere = {"label_selector": {_NODE_ID: f"!in({','.join(sorted(avoid))})"}} if avoid else {}
        actor = _remote(**own, **elsewhere)(RankActor).remote(self._claim_server, life.rank)
        self._ranks[actor.run.remote(json_line(orders), json_line(life))] = life, actor

    def waiting(self) -> Collection[Life]:
        """Return the ranks without a worker process, which wait for resources."""
        # Ray's public list of actors needs the dashboard, which a cluster may lack.
        return [life for life, actor in self._ranks.values() if not actors(actor._actor_id.hex()).get("Pid")]

    def wait(self, timeout_s: float) -> Sequence[tuple[Life, str | Exception]]:
        """Return the ranks that have ended since the last call, each with its final state or its error."""
        ended, _ = ray.wait(list(self._ranks), num_returns=1, timeout=timeout_s)
        return [(self._ranks[reference][0], self._outcome(reference)) for reference in ended]

    def kill(self, life: Life) -> None:
        """End a rank at once."""
        (reference,) = [reference for reference, (each, _) in self._ranks.items() if each == life]
        ray.kill(self._ranks.pop(reference)[1])

    def has_nodes(self, needs: NodeNeeds, avoided: Collection[str]) -> bool:
        """Whether another node than these has enough resources for a rank."""
        return not _able_nodes(needs).keys() <= {*avoided}

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
                return RankDiedError(why(error))
            # The node cannot load the code of the rank.
            lacks = f"lacks this package or something that it needs: {why(error)}"
            refusal = RefusedError(f"{lacks}; {claim_server.WAY_OUT}")
        refusal.node = actors(actor._actor_id.hex())["Address"]["NodeID"]
        hosts = {each["NodeID"]: each["NodeManagerHostname"] for each in ray.nodes()}
        refusal.host = hosts.get(refusal.node, refusal.host)
        return refusal


def name_of_rank(orders: RunOrders, life: Life) -> str:
    """Return a rank's name in Ray's dashboard: its run, the jobs of the attempt, and its number."""
    jobs = shorten(", ".join(work.job for work in orders.attempt.jobs), _MAX_JOBS_CHARACTERS, placeholder=" …")
    return f"arena/{orders.run}/{jobs}/rank {life.rank}" + (f", life {life.number + 1}" if life.number else "")


def _able_nodes(needs: NodeNeeds) -> dict[str, dict[str, Any]]:
    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    needed = {"CPU": needs.cpus, "GPU": needs.gpus}.items()
    return {id_: each for id_, each in alive.items() if all(each["Resources"].get(kind, 0) >= n for kind, n in needed)}


# Keep the ranks of a run alive: start them, restart them if they die, and end them with the run.

_INTERVAL_S = 0.5
_SILENT_S = 30.0
_GRACE_S = 30.0
_SAY_EVERY_S = 30.0
_RESTARTS_PER_RANK = 3  # a restart after a life that finished something costs none


@dataclass(eq=False)
class RankSupervisor:
    """The ranks of a run. As under torchrun, their status files say which are at work, and which are silent."""

    cluster: RayEngine
    orders: RunOrders
    look: Callable[[], Sequence[heartbeat.RankReport]]
    interruption: process.Interruption  # request of the user to stop
    _: KW_ONLY
    fail_fast: bool = False  # stop the run after the first failed job
    clock: Callable[[], float] = time.monotonic
    failure: Exception | None = None  # first error of a rank, which ended the run; None without
    _lives: dict[Life, float] = field(default_factory=dict, init=False)  # that have not ended, and their starts [s]
    _restarts: int = field(default=0, init=False)  # that count
    _stop_by: float = field(default=float("inf"), init=False)  # infinite before a request to stop
    _said_waiting_at: float = field(default=float("-inf"), init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)  # by node, which is avoided: the reason

    def work(self, start_timeout_s: float) -> None:
        """Start all ranks; return if no work or no rank is left. `DistributedError`: no rank or claim server starts."""
        for rank in range(self.orders.attempt.world_size):
            self._start(Life(rank=rank))
        # `start_timeout_s` [s] limits the wait for the first rank only.
        start_by = self.clock() + start_timeout_s
        while True:
            for life, outcome in self.cluster.wait(_INTERVAL_S):
                self._take_note(life, outcome)
            nothing_left = self.cluster.ask([("num_unfinished_jobs", (), None)]) == 0
            heard = {each.rank: each.silent_s for each in self.look() if each.status is not None}
            start_by = float("inf") if heard else start_by

            # Ranks without a message for too long are killed and treated as dead.
            for life in [each for each in self._lives if heard.get(each.rank, 0.0) > _SILENT_S]:
                self.cluster.kill(life)
                self._take_note(life, RankDiedError(f"it was silent for {heard.pop(life.rank):.0f} s"))

            # The run is over if no rank or no work is left, or if the ranks take too long to stop.
            if self.interruption.signal_number is not None:
                self._stop(self.interruption.signal_number)
            unheard = {life for life in self._lives if life.rank not in heard}
            nothing_left |= self._stop_by < float("inf")
            if self.clock() > self._stop_by or not self._lives or (nothing_left and len(unheard) == len(self._lives)):
                break
            self._check_waiting(unheard, start_by, start_timeout_s)
        for life in self._lives:
            self.cluster.kill(life)

    def _check_waiting(self, unheard: set[Life], start_by: float, start_timeout_s: float) -> None:
        """Log the ranks that wait or start up now and then; `DistributedError` if the first one does not begin."""
        # `start_by` is the moment by which the first rank must have begun, infinite if it has.
        at, needs, num_ranks = self.clock(), self.orders.needs, self.orders.attempt.world_size
        if start_by < float("inf") and self._refused and not self.cluster.has_nodes(needs, self._refused):
            raise DistributedError("; ".join(self._refused.values()))
        late = {life for life in unheard if at - self._lives[life] > _SAY_EVERY_S}
        if at <= start_by and not (late and at - self._said_waiting_at > _SAY_EVERY_S):
            return
        self._said_waiting_at, waiting, told = at, unheard & {*self.cluster.waiting()}, []
        if waiting:
            gpus = f" and {needs.gpus:g} GPU" if needs.gpus else ""
            asked_and_had = f"each asks for {needs.cpus:g} CPU{gpus}, and the cluster has {self.cluster.resources()}"
            told.append(f"{len(waiting)} of {num_ranks} ranks wait for resources: {asked_and_had}")
        if starting := unheard - waiting:
            told.append(f"{len(starting)} of {num_ranks} ranks are starting up")
        if at > start_by:
            way_out = "ask for less, add nodes, look into Ray's logs, or give a longer --start_timeout_s"
            raise DistributedError(f"no rank has started within {start_timeout_s:g} s: {', '.join(told)}; {way_out}")
        _LOG.log(logging.WARNING if waiting else logging.INFO, "%s", ", ".join(told))

    def _take_note(self, life: Life, outcome: str | Exception) -> None:
        """Note the final state of a rank that has ended, or its error."""
        # Only if the process died its running episodes are suspected.
        rank, is_dead = life.rank, isinstance(outcome, RankDiedError)
        num_pieces, was_fruitful, explained = self.cluster.ask([("end", (life, str(outcome) if is_dead else ""), None)])
        del self._lives[life]
        costs = int(not was_fruitful and not isinstance(outcome, RefusedError))
        # After a death, a refusal or a lost claim server the rank gets another life. Any other error ends the run.
        match outcome:
            case RankDiedError() | DistributedError():
                how, told = "died" if is_dead else "ended", "rank %d has %s: %s; other ranks can take its %d pieces"
                _LOG.error(told, rank, how, outcome, num_pieces)
                self._restarts = max(0, self._restarts - explained)
            case RefusedError(host=host, node=node):
                if node not in self._refused:
                    self._refused[node] = f"node {host} runs no ranks of this run: it {outcome}"
                    _LOG.error("%s", self._refused[node])
            case Exception() if self.failure is not None:
                _LOG.debug("rank %d has failed too: %s", rank, outcome)
                return
            case Exception():
                # The first error ends the run, as with a launcher.
                self.failure = outcome
                is_known, kind = isinstance(outcome, ArenaError), type(outcome).__name__
                what = str(outcome) if is_known else f"{kind}: {first_line(outcome)}"
                mend = (
                    ": make room, then run isaaclab-arena resume DIR" if isinstance(outcome, DiskUnusableError) else ""
                )
                _LOG.error("rank %d failed first: %s; the run ends%s", rank, what, mend)
                self._stop(signal.SIGTERM)
                return
            case _:
                if outcome == heartbeat.RankState.FAILED and self.fail_fast:
                    _LOG.error("a job failed on rank %d, and --fail_fast ends the run", rank)
                    self._stop(signal.SIGTERM)
                return
        if self._stop_by < float("inf"):
            return
        if self._restarts + costs > _RESTARTS_PER_RANK * self.orders.attempt.world_size:
            _LOG.error("rank %d is not restarted: ranks of this run have died too often", rank)
            return
        self._restarts += costs
        heartbeat.status_path(Path(self.orders.output_directory), rank).unlink(missing_ok=True)
        self._start(Life(rank=rank, number=life.number + 1))

    def _start(self, life: Life) -> None:
        self.cluster.start_rank(self.orders, life, avoid=self._refused)
        self._lives[life] = self.clock()

    def _stop(self, signal_number: int) -> None:
        if self._stop_by == float("inf"):
            self._stop_by = self.clock() + _GRACE_S
            self.cluster.ask([("stop", (signal_number,), None)])


# Run the jobs of a request on the ranks of a cluster.


def execute_on_cluster(request: planning.RunRequest, options: ClusterOptions) -> int:
    """Run jobs on the ranks of a cluster, merge and show the results, and return the exit code."""
    # `ConfigError`: contradictory options, no cluster, or a node lacks something. `DistributedError`: no rank starts.
    way_out = "ranks of a cluster share no policy server; leave policy_server out, so that each rank loads the network"
    way_out += ", or run this job under torchrun, without --cluster"
    file, key = request.source_file, "policy_server.shared"
    shared = [(job.config.name, job.config.policy_server) for job in request.jobs]
    refuse([Problem(f"'{server.shared}': {way_out}", file=file, job=job, key=key) for job, server in shared if server])
    # Connect before the run has a directory, so that a missing cluster leaves none.
    with connected(options) as cluster:
        needs = claim_server.needs_of(request, options, working_directory=cluster.working_directory)
        cluster.check_nodes(needs)
        num_ranks, device = options.num_ranks, options.device or ("cuda" if options.gpus_per_rank else "cpu")
        ranks = ranks_of_one(DistributedContext(world_size=num_ranks, local_world_size=num_ranks))
        host = ClusterHost(ranks, devices_to_come=[device] * num_ranks, cluster=cluster, needs=needs)
        return run.run(request, host).exit_code


@dataclass(kw_only=True)
class ClusterHost(run.RunHost):
    """Has a run's jobs played by the ranks of a cluster, and plays none in this process."""

    cluster: RayEngine
    needs: NodeNeeds
    is_whole_program: bool = True
    writes_report: bool = True

    def play(self, active: run.ActiveRun) -> run.Played:
        """Run the ranks to their end; there is no other rank to wait for."""
        directory, cluster, options = active.output_directory, self.cluster, self.cluster.options
        if self.needs.working_directory is None and directory.is_relative_to(Path.cwd()):
            where = f"{directory} is in Ray's copy of the working directory, which Ray removes some time after the run"
            _LOG.warning("%s; name another one by --output_dir, or copy this one", where)
        orders = RunOrders(
            run=f"{directory.name}-{active.attempt.run_id[:6]}",
            needs=self.needs,
            config_hash=active.plan.config_hash,
            output_directory=str(directory),
            attempt=active.attempt,
            node_directory=None if options.node_dir is None else str(Path(options.node_dir).absolute()),
        )
        # A watch of its own: no rank counts as silent while the supervisor itself waits for a busy claim server.
        watch = heartbeat.RankWatch(directory, world_size=active.attempt.world_size, run_id=active.attempt.run_id)
        ranks = RankSupervisor(cluster, orders, watch.look, active.interruption, fail_fast=options.fail_fast)
        with active.progress:
            cluster.start_claim_server(orders)
            ranks.work(options.start_timeout_s)
        return run.Played(merges=True, failed=ranks.failure is not None, all_ended=True)
