"""A rank is stopped for a while and then goes on, as under a debugger, or on a machine that was put to sleep."""

import signal
import time

import pytest

from tests.faults.invariants import check_whole, committed
from tests.faults.launched_runs import LaunchedRun, kill
from tests.faults.world import World


def sleep(world: World, rank: int, *, for_s: float) -> None:
    """Run on two ranks, stop one of them amid its episodes, let it go on after a while, and wait for the end."""
    log = world.output.with_name("log")
    world.diary.unlink(missing_ok=True)
    with LaunchedRun(*world.arguments("--output_dir", world.output), ranks=2, diary=world.diary, log=log) as run:
        while not any(world.output.glob(f"*/*_rank{rank}.jsonl")) or committed(world.output).total() < 6:
            assert run.launcher.poll() is None, log.read_text()
            time.sleep(0.01)
        stopped = run.pid_of(rank)
        kill(stopped, signal.SIGSTOP)
        time.sleep(for_s)
        kill(stopped, signal.SIGCONT)
        assert run.wait() == 0, log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_for_a_minute_is_waited_for(server, tmp_path, rank):
    world = World(tmp_path, server, num_jobs=2, num_episodes=16, step_s=0.05)
    sleep(world, rank, for_s=60.0)
    check_whole(world.output, world.undisturbed)
    assert set(world.started.values()) == {1}
