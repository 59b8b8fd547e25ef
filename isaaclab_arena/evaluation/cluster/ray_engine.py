"""Runs the processes of a run as actors of a Ray cluster; the only file that knows Ray."""

import logging
import os
import re
import socket
import sys
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray._private.state import actors
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]  compiled code
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.evaluation.cluster.claim_keeper import ClaimKeeper
from isaaclab_arena.evaluation.cluster.cluster_options import ClusterOptions
from isaaclab_arena.evaluation.cluster.crew import EndedRank
from isaaclab_arena.evaluation.cluster.messages import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    Delivery,
    DeliveryAnswer,
    KeeperState,
    Life,
    LifeEnd,
    NodeNeeds,
    RankEnd,
    RunOrders,
)
from isaaclab_arena.evaluation.cluster.node_check import problem_of_node, request_of
from isaaclab_arena.evaluation.cluster.rank_process import run_rank
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.run.run_lock import RunLock

_LOG = logging.getLogger(__name__)
_GUESSES = re.compile(r"(?:Some|There are some) (?:common|potential root) causes")
_KNOCK_TIMEOUT_S = 5.0
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How HTTP/2 begins, which Ray speaks: both sides send their settings first (RFC 9113, 3.4)."""
_SETTINGS, _TLS_ALERT = b"\x04", b"\x15"
"""The fourth byte of an answer in HTTP/2, and the first one of a server that speaks nothing but TLS."""

_NO_CLUSTER = "start one with: ray start --head, or say --ray_address local for one on this node"
_HOW_IT_LETS_US_IN = (
    "this cluster has a token: copy ~/.ray/auth_token from its head, and set the variable RAY_AUTH_MODE to token"
)

_remote: Any = ray.remote
"""Its types know neither options given by name nor the methods that it adds."""

_ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""Ray would run an episode twice, where the commits of a run allow it once."""

KEEPER_OPTIONS = {"num_cpus": 0, "enable_task_events": False, **_ONCE}
"""The head would remember each of many thousand calls of the keeper, for its dashboard."""


class KeeperActor:
    """The keeper of a run, as an actor. What it is told and what it says is JSON, beside plain bytes."""

    def __init__(self, orders: str) -> None:
        read = adapter(RunOrders).validate_json(orders)
        directory = Path(read.output_directory)
        # While this process commits, nobody else may take the run up.
        self._lock = RunLock(directory).share()
        self._keeper = ClaimKeeper(request_of(read.needs), read.attempt, directory)

    def claim(self, question: str) -> str:
        """Give a rank a piece."""
        return json_line(self._keeper.claim(adapter(ClaimQuestion).validate_json(question)))

    def begin(self, begun: str) -> bool:
        """Take note of what a rank is about to play."""
        return self._keeper.begin(adapter(BegunEpisodes).validate_json(begun))

    def deliver(self, delivery: str, content: bytes) -> str:
        """Commit what a rank has done."""
        return json_line(self._keeper.deliver(adapter(Delivery).validate_json(delivery), content))

    def end(self, life: str, reason: str) -> str:
        """Take note that a rank has ended."""
        return json_line(self._keeper.end(adapter(Life).validate_json(life), reason))

    def stop(self, signal_number: int) -> None:
        """Ask all ranks to stop."""
        self._keeper.stop(signal_number)

    def state(self) -> str:
        """Return how the run stands."""
        return json_line(self._keeper.state())


class RemoteKeeper:
    """The keeper as a rank on another node asks it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Ask for a piece."""
        answer: Any = ray.get(self._actor.claim.remote(json_line(question)))
        return adapter(ClaimAnswer).validate_json(answer)

    def begin(self, begun: BegunEpisodes) -> bool:
        """Say what this rank is about to play."""
        return ray.get(self._actor.begin.remote(json_line(begun)))

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Deliver what this rank has done."""
        answer: Any = ray.get(self._actor.deliver.remote(json_line(delivery), content))
        return adapter(DeliveryAnswer).validate_json(answer)


class RankActor:
    """A rank of a run, as an actor."""

    def __init__(self, keeper: Any, rank: int) -> None:
        self._keeper = keeper
        self._rank = rank

    def __repr__(self) -> str:
        """Name the rank, in Ray's dashboard and before each of its lines on the screen."""
        return f"rank {self._rank}"

    def run(self, orders: str, life: str) -> str:
        """Run what the rank claims, and return how it ended."""
        read = adapter(RunOrders).validate_json(orders)
        end = run_rank(read, adapter(Life).validate_json(life), RemoteKeeper(self._keeper))
        return json_line(end)


def _knock(address: str) -> None:
    """Refuse an address at which no Ray cluster answers; Ray itself would try for ten minutes.

    Raises:
        OSError: If nobody listens there.
        RayError: If Ray listens there, but not the head of a cluster, or it does not let this process in.
        ValueError: If it is no address, or something else listens there.
    """
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://"):
        raise ValueError("start the command on a node of the cluster, or by ray job submit")
    if not colon:
        return
    with socket.create_connection((host, int(port)), timeout=_KNOCK_TIMEOUT_S) as connection:
        connection.sendall(_GREETING)
        try:
            answer = connection.recv(9)
        except TimeoutError:
            answer = b""
    if answer[3:4] != _SETTINGS and answer[:1] != _TLS_ALERT:
        raise ValueError("something listens there, but no Ray cluster")
    GcsClient(address=address)


def refusal(address: str, error: Exception) -> Problem:
    """Return what is said of an address at which no cluster can be reached."""
    way_out = _HOW_IT_LETS_US_IN if "InvalidAuthToken" in str(error) else _NO_CLUSTER
    reason = first_line(error).partition(". ")[0]
    return Problem(f"no Ray cluster can be reached at '{address}' ({reason}); {way_out}", key="--ray_address")


def _problem_of_node(needs: str) -> str | None:
    return problem_of_node(adapter(NodeNeeds).validate_json(needs))


def _problem_told(reference: Any) -> str | None:
    """Return what a node has said, None where it has gone meanwhile: Ray lists it for some seconds more."""
    try:
        return ray.get(reference)
    except RayError as error:
        _LOG.warning("a node was not checked, because it has gone: %s", _why(error))
        return None


class RayEngine:
    """Runs ranks on a Ray cluster; see `Cluster`.

    Args:
        options: How to reach the cluster.

    Raises:
        ConfigError: If it cannot be reached.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._address = options.ray_address
        self._keeper: Any = None
        self._orders: RunOrders | None = None
        self._actors: dict[Life, Any] = {}
        self._running: dict[Any, Life] = {}

    def __enter__(self) -> Self:
        namespace = f"arena-{uuid.uuid4().hex}"
        own: dict[str, Any] = {"include_dashboard": False} if self._address == "local" else {}
        try:
            _knock(self._address)
            ray.init(address=self._address, namespace=namespace, logging_level=logging.WARNING, **own)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise ConfigError(refusal(self._address, error)) from error
        return self

    def __exit__(self, *exception: object) -> None:
        ray.shutdown()

    def working_directory(self) -> str | None:
        """Return where the command was typed; None where Ray brings a working directory to each node."""
        return None if ray.get_runtime_context().runtime_env.get("working_dir") else os.getcwd()  # noqa: PTH109

    def check_nodes(self, needs: NodeNeeds) -> None:
        """Refuse nodes that could have ranks and lack something.

        Raises:
            ConfigError: With what each of them lacks.
        """
        check = _remote(num_cpus=0, max_retries=0)(_problem_of_node)
        asked = [
            check.options(scheduling_strategy=_on(node["NodeID"])).remote(json_line(needs))
            for node in ray.nodes()
            if _could_have(node, needs) and (node["NodeID"] != _this_node() or not self._has_our_interpreter())
        ]
        problems = [problem for problem in map(_problem_told, asked) if problem is not None]
        if problems:
            raise ConfigError([Problem(problem) for problem in problems])

    def _has_our_interpreter(self) -> bool:
        """Whether Ray was started on this node from the environment that this process runs in."""
        # A lambda travels by value, so that its process need not import this package.
        prefix = _remote(num_cpus=0, max_retries=0)(lambda: sys.prefix)
        on_this_node = prefix.options(scheduling_strategy=_on(_this_node()))
        return self._address == "local" or ray.get(on_this_node.remote()) == sys.prefix

    def start_keeper(self, orders: RunOrders) -> None:
        """Start the keeper on this node."""
        self._orders = orders
        actor = _remote(**KEEPER_OPTIONS)(KeeperActor)
        named = actor.options(name=f"arena/{orders.run}/keeper", scheduling_strategy=_on(_this_node()))
        self._keeper = named.remote(json_line(orders))

    def state(self) -> KeeperState:
        """Return how the run stands."""
        return adapter(KeeperState).validate_json(ray.get(self._keeper.state.remote()))

    def end_life(self, life: Life, reason: str) -> LifeEnd:
        """Tell the keeper that a rank has ended."""
        return adapter(LifeEnd).validate_json(ray.get(self._keeper.end.remote(json_line(life), reason)))

    def stop(self, signal_number: int) -> None:
        """Tell the keeper that the run is to stop."""
        ray.get(self._keeper.stop.remote(signal_number))

    def start_rank(self, life: Life) -> None:
        """Start a rank as soon as there are the resources."""
        orders = self._orders
        if orders is None:
            raise RuntimeError("the keeper of the run has not been started")
        rank = _remote(num_cpus=orders.needs.cpus, num_gpus=orders.needs.gpus, **_ONCE)(RankActor)
        actor = rank.options(name=name_of_rank(orders, life)).remote(self._keeper, life.rank)
        self._actors[life] = actor
        self._running[actor.run.remote(json_line(orders), json_line(life))] = life

    def waiting(self) -> Collection[Life]:
        """Return the ranks that have no process yet."""
        return [life for life, actor in self._actors.items() if not _has_process(actor)]

    def wait(self, timeout_s: float) -> Sequence[EndedRank]:
        """Return the ranks that have ended since."""
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_s) if self._running else ((), ())
        return [self._ended(reference) for reference in ended]

    def kill(self, life: Life) -> None:
        """End a rank at once."""
        if (actor := self._actors.pop(life, None)) is not None:
            ray.kill(actor)

    def resources(self) -> str:
        """Return what the cluster has, in words."""
        total = ray.cluster_resources()
        return f"{total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU"

    def _ended(self, reference: Any) -> EndedRank:
        life = self._running.pop(reference)
        try:
            return EndedRank(life=life, end=adapter(RankEnd).validate_json(ray.get(reference)))
        except RayError as error:
            return EndedRank(life=life, reason=_why(error))
        finally:
            self._actors.pop(life, None)


def _has_process(actor: Any) -> bool:
    """Whether a worker of a node was given to an actor; until then it waits for the resources."""
    # Ray's public list of actors comes from its dashboard, which a cluster need not have.
    return bool(actors(actor._actor_id.hex()).get("Pid"))


def name_of_rank(orders: RunOrders, life: Life) -> str:
    """Return what Ray's dashboard calls a rank: its run, the jobs that it may have, and its number."""
    first, *others = (work.job for work in orders.attempt.jobs)
    jobs = f"{first} and {len(others)} more" if others else first
    again = f", life {life.number + 1}" if life.number else ""
    return f"arena/{orders.run}/{jobs}/rank {life.rank}{again}"


def _this_node() -> str:
    return ray.get_runtime_context().get_node_id()


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


def _could_have(node: dict[str, Any], needs: NodeNeeds) -> bool:
    resources = node["Resources"]
    return node["Alive"] and resources.get("CPU", 0) >= needs.cpus and resources.get("GPU", 0) >= needs.gpus


def _why(error: RayError) -> str:
    """Return the line of one of Ray's long messages that says what happened, without what it then guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("The actor ") and "unexpectedly before" not in line]
    return _GUESSES.split((telling or lines[-1:] or [type(error).__name__])[0])[0].strip()
