"""A process dies before each transition of a run's ledger, for each assignment of episodes to ranks.

`tests/faults/test_transitions.py` looks between the files of one transition, `tests/evaluation/cluster/test_cuts.py` at
the claim server of a cluster.
"""

from collections.abc import Iterator

import pytest

from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.storage.ledger import TRANSITIONS
from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import ForkServer
from tests.faults.world import World

BEFORE = {
    "the run is planned": ("replace .run.json", 1),
    "an attempt begins": ("replace attempts/.attempt_1.json", 1),
    "a piece is claimed": ("open claims/attempt_1/j000000_p00001", 1),
    "a job begins": ("replace a/.job_begun_rank", 1),
    "an episode is recorded": ("replace a/episodes/.e000001.h5", 1),
    "an episode is committed": ("write a/episode_results_rank", 1),
    "a piece is played": ("open claims/attempt_1/j000000_p00001.done", 1),
    "a job is consolidated": ("replace a/.dataset_a", 1),
    "a job is reported": ("replace a/.job_report_rank", 1),
    "the run is merged": ("replace .results.csv", 1),
}
"""The operation before which the process dies, and its number among those of its kind."""
ONLY_CLAIMED = {"a piece is claimed", "a piece is played"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("fork_server") / "log") as server:
        yield server


@pytest.fixture(scope="module", params=list(Assignment))
def world(server, tmp_path_factory, request) -> World:
    directory = tmp_path_factory.mktemp(str(request.param))
    return World(directory, server, f"--assignment={request.param}", num_jobs=1, num_episodes=4)


def test_each_transition_is_cut():
    assert list(BEFORE) == [each.event for each in TRANSITIONS]


@pytest.mark.parametrize("event", BEFORE)
def test_the_next_start_ends_a_run_that_died_before(world, request, event):
    if event in ONLY_CLAIMED and request.node.callspec.params["world"] is not Assignment.DYNAMIC:
        pytest.skip("episodes are assigned before the start")
    only, at = BEFORE[event]
    cut = world.begin(faults={0: Fault(effect=Effect.DIES, at=at, only=only)})
    assert cut.met[0], cut.output
    world.resume_to_the_end()
