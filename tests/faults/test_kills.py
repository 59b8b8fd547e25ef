"""Ranks and launchers are killed at any moment; the run is taken up, on any number of ranks, until it is whole."""

import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.invariants import check_whole, committed
from tests.faults.launched_runs import LaunchedRun, kill
from tests.faults.small_run import read_diary, write_small_jobs

ORPHANS_GONE_S = 5.0
ROLES = ("rank 0", "other rank", "launcher", "all")


class Killer:
    """Starts one run after the other, kills it until it is whole, and checks everything each time.

    Args:
        folder: Where everything lies.
        seed: Decides who is killed when.
    """

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.output = folder / "out"
        self.kills: Counter[str] = Counter()
        self._folder = folder
        self._generator = random.Random(seed)
        self._jobs = write_small_jobs(folder / "jobs.json", num_jobs=3, num_episodes=12, step_s=0.03)
        self.undisturbed = folder / "undisturbed"
        with self._launch("--output_dir", self.undisturbed, ranks=1) as run:
            assert run.wait() == 0, run.log.read_text()
        check_whole(self.undisturbed, self.undisturbed)

    def life(self, *, ranks: int, role: str | None, delay_s: float, after_start: bool) -> bool:
        """Start or take up the run, kill one of its processes, and return whether it is finished.

        Args:
            ranks: On how many ranks.
            role: Who is killed, None for nobody.
            delay_s: When [s].
            after_start: Whether that is counted from when an episode is committed, else from the launcher's start.
        """
        before = committed(self.output)
        with self._launch("--output_dir", self.output, "--resume", ranks=ranks) as run:
            if role is not None:
                self._wait_for_work(run, before if after_start else None)
                time.sleep(delay_s)
                if run.launcher.poll() is None:
                    self._kill(run, role, ranks)
            code = run.wait()
            assert not run.wait_until_gone(ORPHANS_GONE_S), f"orphans of {role}"
            output = run.log.read_text(errors="replace")
        again = before.keys() & read_diary(self._diary).keys()
        assert not again, f"executed although committed: {sorted(again)}\n{output}"
        assert max(committed(self.output).values(), default=1) == 1, output
        if code == 0:
            check_whole(self.output, self.undisturbed)
        elif role is None:
            raise AssertionError(f"not killed, and yet it ended with {code}:\n{output}")
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

    def _launch(self, *arguments: object, ranks: int) -> LaunchedRun:
        self._diary.unlink(missing_ok=True)
        return LaunchedRun(
            "--eval_jobs_config", self._jobs, *arguments, ranks=ranks, diary=self._diary, log=self._folder / "log"
        )

    def _wait_for_work(self, run: LaunchedRun, before: Counter[tuple[str, int]] | None) -> None:
        while before is not None and run.launcher.poll() is None and committed(self.output) == before:
            time.sleep(0.01)

    def _kill(self, run: LaunchedRun, role: str, ranks: int) -> None:
        self.kills[role] += 1
        if role == "launcher":
            kill(run.launcher.pid)
        elif role == "all":
            for pid in run.living():
                kill(pid)
        else:
            kill(run.pid_of(0 if role == "rank 0" or ranks == 1 else self._generator.randrange(1, ranks)))

    @property
    def _diary(self) -> Path:
        return self._folder / "diary"


def test_a_run_whose_worker_launcher_and_first_rank_are_killed_in_turn_ends_whole(tmp_path):
    killer = Killer(tmp_path)
    for ranks, role in ((2, "other rank"), (3, "launcher"), (2, "rank 0")):
        killer.life(ranks=ranks, role=role, delay_s=0.1, after_start=True)
    assert killer.kills.total() == 3
    assert killer.life(ranks=1, role=None, delay_s=0.0, after_start=False)


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_two_hundred_kills_at_random_lose_nothing_and_repeat_nothing(tmp_path):
    killer = Killer(tmp_path, seed=20261121)
    runs, lives = 0, 0
    while killer.kills.total() < 200:
        lives += 1
        if killer.random_life():
            runs += 1
            shutil.rmtree(killer.output)
    killer.life(ranks=1, role=None, delay_s=0.0, after_start=False)
    sys.stdout.write(f"{dict(killer.kills)} in {lives} lives, {runs + 1} runs\n")
    assert runs > 5
