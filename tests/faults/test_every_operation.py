"""Every file operation of a run fails, or the process dies at it: what was finished stays, and the run can go on.

`World` checks after each fault what `invariants` says. The fast tests take some of the operations, the slow ones all.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import Ended
from tests.faults.world import World

CRASHES = {
    "before an episode is committed": ("write a/episode_results_rank0.jsonl", 2),
    "while a dataset takes the place of episodes": ("unlink a/episodes/e000000.h5", 1),
    "before the report of a job": ("replace b/.job_report_rank0", 1),
    "amid the tables": ("replace .episodes.csv", 1),
}
"""Where a run dies before it is taken up: before which of the operations that begin so."""

LEAST_FAULTS = dict.fromkeys(CRASHES, 10) | {"amid the tables": 8}
"""How many operations a resume has at least. Tables that hold what they should are not written again."""


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("world"), server, num_jobs=2, num_episodes=3)


def faults(effect: Effect, *, every: int) -> Iterator[Fault]:
    """Yield a fault at every n-th operation, and not at the same ones for every effect."""
    first = 1 + [*Effect].index(effect) % every
    yield from (Fault(effect=effect, at=at) for at in count(first, every))


def meet(effect: Effect, *, every: int, rank: int, try_fault: Callable[[Fault], Ended]) -> int:
    """Try faults until one is met no more, because the run is over before; return how many were met."""
    for tried, fault in enumerate(faults(effect, every=every)):
        if not try_fault(fault).met[rank]:
            return tried
    raise AssertionError("unreachable")


def fault_then_resume(world: World, effect: Effect, *, every: int, ranks: int = 1, rank: int = 0) -> int:
    def try_fault(fault: Fault) -> Ended:
        ended = world.begin(faults={rank: fault}, ranks=ranks)
        if ended.met[rank]:
            world.resume_to_the_end(ranks=ranks)
        return ended

    return meet(effect, every=every, rank=rank, try_fault=try_fault)


def fault_in_resume(world: World, effect: Effect, *, every: int, ranks: int = 1, rank: int = 0) -> int:
    def try_fault(fault: Fault) -> Ended:
        world.bring_back("crashed")
        ended = world.resume(faults={rank: fault}, ranks=ranks)
        if ended.met[rank]:
            world.resume_to_the_end(ranks=ranks)
        return ended

    return meet(effect, every=every, rank=rank, try_fault=try_fault)


def crash(world: World, where: str) -> None:
    """Let a run die at a named place, and keep what it leaves."""
    only, at = CRASHES[where]
    ended = world.begin(faults={0: Fault(effect=Effect.DIES, at=at, only=only)})
    assert ended.met[0], f"the run is over before it is {where}"
    world.keep("crashed")


@pytest.mark.parametrize("effect", Effect)
def test_a_run_goes_on_after_a_fault_at_some_operations(world, effect):
    assert fault_then_resume(world, effect, every=19) >= 2


@pytest.mark.parametrize("effect", [Effect.DIES, Effect.NO_SPACE])
def test_a_resume_meets_a_fault_at_some_operations_and_can_be_resumed(world, effect):
    crash(world, "while a dataset takes the place of episodes")
    assert fault_in_resume(world, effect, every=19) >= 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_of_two_ranks_goes_on_after_one_of_them_died(world, rank):
    assert fault_then_resume(world, Effect.DIES, every=37, ranks=2, rank=rank) >= 2


@pytest.mark.parametrize(("at", "only"), [(2, "write a/episodes/"), (1, "write a/.dataset_a")])
def test_a_full_disk_stops_the_run_with_one_message_and_calls_no_job_failed(world, at, only):
    ended = world.begin(faults={0: Fault(effect=Effect.NO_SPACE, at=at, only=only)})
    assert ended.exit_code == 1
    assert ended.output.count("error: ") == 1
    assert "No space left on device; the run ends: make room, then run isaaclab-arena resume DIR" in ended.output
    assert "failed" not in ended.output
    assert not any(world.output.glob("*/job_report_rank*.json"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("effect", Effect)
def test_a_run_goes_on_after_a_fault_at_any_operation(world, effect):
    assert fault_then_resume(world, effect, every=1) >= 30


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("where", CRASHES)
def test_a_resume_meets_a_fault_at_any_operation_and_can_be_resumed(world, where, effect):
    crash(world, where)
    assert fault_in_resume(world, effect, every=1) >= LEAST_FAULTS[where]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_of_two_ranks_goes_on_after_a_fault_at_any_operation_of_one(world, rank, effect):
    assert fault_then_resume(world, effect, every=3, ranks=2, rank=rank) >= 5
