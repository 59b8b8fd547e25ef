"""Ranks and launchers are killed at any moment; the run is taken up, on any number of ranks, until it is whole."""

import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.launching import patience_s
from tests.faults.fork_server import ForkServer
from tests.faults.invariants import check_whole, committed
from tests.faults.launched_runs import LaunchedRun, kill
from tests.faults.world import World

ORPHANS_GONE_S = 5.0
LOADED_S = 60.0
"""A rank that is still loading its libraries leaves when they are loaded, which takes long on a busy machine."""
ROLES = ("rank 0", "other rank", "launcher", "all")


class Killer:
    """Starts one run after the other, kills it until it is whole, and checks everything each time."""

    def __init__(self, directory: Path, server: ForkServer, *, seed: int = 0) -> None:
        self.world = World(directory, server, num_jobs=3, num_episodes=12, step_s=0.03)
        self.kills: Counter[str] = Counter()
        self._log = directory / "log"
        self._generator = random.Random(seed)

    def life(self, *, ranks: int, role: str, delay_s: float, after_start: bool) -> bool:
        """Start or take up the run, kill one of its processes, and return whether it is finished.

        The delay begins when an episode is committed, or at the launcher's start.
        """
        before = committed(self.world.output)
        self.world.diary.unlink(missing_ok=True)
        arguments = self.world.arguments("--output_dir", self.world.output, "--resume")
        with LaunchedRun(*arguments, ranks=ranks, diary=self.world.diary, log=self._log) as run:
            while after_start and run.launcher.poll() is None and committed(self.world.output) == before:
                time.sleep(0.01)
            time.sleep(delay_s)
            if run.launcher.poll() is None:
                self._kill(run, role, ranks)
            code = run.wait()
            limit_s = patience_s(ORPHANS_GONE_S) if after_start else LOADED_S
            assert not run.wait_until_gone(limit_s), f"orphans of {role}"
            output = run.log.read_text(errors="replace")
        again = before.keys() & self.world.started.keys()
        assert not again, f"executed although committed: {sorted(again)}\n{output}"
        assert max(committed(self.world.output).values(), default=1) == 1, output
        if code == 0:
            check_whole(self.world.output, self.world.undisturbed)
        return code == 0

    def random_life(self) -> bool:
        """Live and die at random."""
        draw = self._generator
        after_start = draw.random() < 0.7
        return self.life(
            ranks=draw.randint(1, 3),
            role=draw.choice(ROLES),
            delay_s=draw.uniform(0.0, 1.0 if after_start else 8.0),
            after_start=after_start,
        )

    def _kill(self, run: LaunchedRun, role: str, ranks: int) -> None:
        if role == "launcher":
            victims = [run.launcher.pid]
        elif role == "all":
            victims = run.living()
        else:
            # Early in a start there may be no such rank yet, and then nobody is killed.
            rank = 0 if role == "rank 0" or ranks == 1 else self._generator.randrange(1, ranks)
            victims = [pid for pid in [run.pid_of(rank)] if pid is not None]
        for pid in victims:
            kill(pid)
        self.kills[role] += bool(victims)


@pytest.mark.slow
def test_a_run_whose_worker_launcher_and_first_rank_are_killed_in_turn_ends_whole(server, tmp_path):
    killer = Killer(tmp_path, server)
    for ranks, role in ((2, "other rank"), (3, "launcher"), (2, "rank 0")):
        killer.life(ranks=ranks, role=role, delay_s=0.1, after_start=True)
    assert killer.kills.total() == 3
    killer.world.resume_to_the_end()


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_two_hundred_kills_at_random_lose_nothing_and_repeat_nothing(server, tmp_path):
    killer = Killer(tmp_path, server, seed=20261121)
    runs, lives = 0, 0
    while killer.kills.total() < 200:
        lives += 1
        if killer.random_life():
            runs += 1
            shutil.rmtree(killer.world.output)
    killer.world.resume_to_the_end()
    sys.stdout.write(f"{dict(killer.kills)} in {lives} lives, {runs + 1} runs\n")
    assert runs > 5
