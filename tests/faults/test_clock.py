"""Clocks are set back while runs go on, and nothing depends on them."""

import pytest

from tests.faults.file_operations import Effect, Fault
from tests.faults.world import World


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("world"), server, num_jobs=2, num_episodes=3)


@pytest.mark.slow
def test_a_clock_that_is_set_back_again_and_again_changes_no_table(world):
    ended = world.begin(clock_jumps=True)
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize("at", [40, 95, 130])
def test_a_run_is_resumed_by_a_clock_that_says_it_has_not_begun(world, at):
    world.begin(faults={0: Fault(effect=Effect.DIES, at=at)})
    ended = world.resume(clock_jumps=True)
    assert ended.exit_code == 0, ended.output
    assert "there is nothing to do" in world.resume(clock_jumps=True).output
