"""Every file operation of a run fails, or the process dies at it: what was finished stays, and the run can go on.

`World` checks after each fault what `invariants` says. The fast tests take some of the operations, the slow ones all.
"""

from collections.abc import Iterator
from itertools import count, takewhile

import pytest
from _pytest.mark import ParameterSet

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


def fault_then_resume(
    world: World, effect: Effect, *, kept: str = "", every: int, ranks: int = 1, rank: int = 0
) -> int:
    """Let a run, or the resume of one that was kept, meet faults until it is over before; return how many it met."""

    def try_fault(fault: Fault) -> Ended:
        world.bring_back(kept or "nothing")
        begin = world.resume if kept else world.begin
        ended = begin(faults={rank: fault}, ranks=ranks)
        if ended.met[rank]:
            world.resume_to_the_end(ranks=ranks)
        return ended

    return sum(1 for _ in takewhile(lambda fault: try_fault(fault).met[rank], faults(effect, every=every)))


def crash(world: World, where: str) -> None:
    """Let a run die at a named place, and keep what it leaves."""
    only, at = CRASHES[where]
    ended = world.begin(faults={0: Fault(effect=Effect.DIES, at=at, only=only)})
    assert ended.met[0], f"the run is over before it is {where}"
    world.keep("crashed")


def thorough(*values: object) -> ParameterSet:
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


FEW = (Effect.DIES, Effect.SHORT_WRITE, Effect.NO_SPACE)
EVERYTHING = [(effect, rank) for effect in Effect for rank in (0, 1)]


@pytest.mark.parametrize(
    ("effect", "every", "least"),
    [*((effect, 37, 1) for effect in FEW), *(thorough(effect, 1, 30) for effect in Effect)],
)
def test_a_run_goes_on_after_a_fault_at_some_operations(world, effect, every, least):
    assert fault_then_resume(world, effect, every=every) >= least


@pytest.mark.parametrize(
    ("where", "every", "least", "effect"),
    [
        ("while a dataset takes the place of episodes", 19, 2, Effect.DIES),
        *(thorough(where, 1, least, effect) for where, least in LEAST_FAULTS.items() for effect in Effect),
    ],
)
def test_a_resume_meets_a_fault_at_some_operations_and_can_be_resumed(world, where, every, least, effect):
    crash(world, where)
    assert fault_then_resume(world, effect, kept="crashed", every=every) >= least


@pytest.mark.parametrize(
    ("effect", "rank", "every", "least"),
    [(Effect.DIES, 1, 37, 2), *(thorough(*each, 3, 5) for each in EVERYTHING)],
)
def test_a_run_of_two_ranks_goes_on_after_a_fault_of_one(world, effect, rank, every, least):
    assert fault_then_resume(world, effect, every=every, ranks=2, rank=rank) >= least


@pytest.mark.parametrize(("at", "only"), [(2, "write a/episodes/"), (1, "write a/.dataset_a")])
def test_a_full_disk_stops_the_run_with_one_message_and_calls_no_job_failed(world, at, only):
    ended = world.begin(faults={0: Fault(effect=Effect.NO_SPACE, at=at, only=only)})
    assert ended.exit_code == 1
    assert ended.output.count("error: ") == 1
    assert "No space left on device; the run ends: make room, then run isaaclab-arena resume DIR" in ended.output
    assert "failed" not in ended.output
    assert not any(world.output.glob("*/job_report_rank*.json"))
