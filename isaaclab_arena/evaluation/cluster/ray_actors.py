"""What a run on a Ray cluster consists of: its keeper and its ranks as actors, and what they say when they cannot."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.evaluation.cluster.keeper.claim_keeper import ClaimKeeper
from isaaclab_arena.evaluation.cluster.messages import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    Delivery,
    DeliveryAnswer,
    Life,
    RunOrders,
)
from isaaclab_arena.evaluation.cluster.node_check import request_of
from isaaclab_arena.evaluation.cluster.rank_process import run_rank
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.run.run_lock import RunLock

_GUESSES = re.compile(r"(?:Some|There are some) (?:common|potential root) causes")
CANNOT_IMPORT = "failed to import on the worker"
"""What Ray says of a node whose interpreter cannot load the code that is sent there."""
_EXCEPTION = re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE)

ONCE = {"max_restarts": 0, "max_task_retries": 0}
"""Ray would run an episode twice, where the commits of a run allow it once."""

KEEPER_OPTIONS = {"num_cpus": 0, "enable_task_events": False, **ONCE}
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


def answer_to(reference: Any, way_out: str = "") -> Any:
    """Return what the keeper says.

    Raises:
        ArenaError: What it raised.
        ClaimsLostError: If it has died, or cannot be reached.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ArenaError):
            raise error.cause from error
        # Whatever it is, no job of the rank that asked is to blame.
        raise ClaimsLostError(f"the keeper of the run's claims failed: {why(error)}{way_out}") from error
    except RayActorError as error:
        raise ClaimsLostError(f"the keeper of the run's claims does not answer: {why(error)}{way_out}") from error


class RemoteKeeper:
    """The keeper as a rank on another node asks it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Ask for a piece."""
        answer: Any = answer_to(self._actor.claim.remote(json_line(question)))
        return adapter(ClaimAnswer).validate_json(answer)

    def begin(self, begun: BegunEpisodes) -> bool:
        """Say what this rank is about to play."""
        return answer_to(self._actor.begin.remote(json_line(begun)))

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Deliver what this rank has done."""
        answer: Any = answer_to(self._actor.deliver.remote(json_line(delivery), content))
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
        return json_line(replace(end, node=ray.get_runtime_context().get_node_id()))


def why(error: RayError) -> str:
    """Return the line of one of Ray's long messages that says what happened, without what it then guesses."""
    if CANNOT_IMPORT in str(error) and (found := _EXCEPTION.findall(str(error).partition(CANNOT_IMPORT)[2])):
        return found[0]
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {first_line(error.cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return lines[-1]
    telling = [line for line in lines if line.startswith("The actor ") and "unexpectedly before" not in line]
    return _GUESSES.split((telling or lines[-1:] or [type(error).__name__])[0])[0].strip()
