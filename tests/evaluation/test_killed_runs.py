"""Ranks, launchers and programs are killed at random, and files are damaged in between; every run ends complete."""

import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.options import ASSIGNMENTS
from tests.end_to_end.launching import patience_s, wait_until
from tests.faults.fork_server import ForkServer
from tests.faults.invariants import check_results, committed
from tests.faults.launched_runs import LaunchedRun, kill
from tests.faults.world import World

NUM_JOBS, NUM_EPISODES = 3, 12
RECORDINGS = ("*/dataset_*.hdf5", "*/episodes/e*.h5")
"""Files whose loss takes episodes with it: these run again."""
DAMAGED = (
    *RECORDINGS,
    *("run.json", "attempts/attempt_*.json", "claims/*/*", "logs/rank*.status.json", "results.*", "episodes.csv"),
    *("*/episode_results_rank*.jsonl", "*/job_report_*.json", "*/job_begun_*.json", "*/settled.json"),
)


class Trouble:
    """Kills one run after the other, and damages its files, until it is complete.

    Args:
        directory: Place of all files.
        server: Runs the undisturbed run and the last resume.
        assignment: Assignment of the jobs to ranks.
    """

    def __init__(self, directory: Path, server: ForkServer, assignment: str) -> None:
        options = ("--assignment", assignment)
        self.world = World(directory, server, *options, num_jobs=NUM_JOBS, num_episodes=NUM_EPISODES, step_s=0.03)
        self.kills: Counter[str] = Counter()
        self.damages: Counter[str] = Counter()
        self._log = directory / "log"
        self._draw = random.Random(assignment)

    def life(self) -> bool:
        """Start or resume the run, kill one of its processes, and return whether the run is complete."""
        output, draw = self.world.output, self._draw
        lost = self._damage() if output.exists() and draw.random() < 0.5 else set()
        before, ranks = committed(output), draw.randint(1, 3)
        self.world.diary.unlink(missing_ok=True)
        arguments = self.world.arguments("--output_dir", output, "--resume")
        with LaunchedRun(*arguments, ranks=ranks, diary=self.world.diary, log=self._log) as run:
            while run.launcher.poll() is None and committed(output) == before:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.8))
            if run.launcher.poll() is None:
                self._kill(run, ranks)
            code = run.wait()
            assert not run.wait_until_gone(patience_s(60.0))
        said = self._log.read_text(errors="replace")
        again = before.keys() & self.world.started.keys()
        assert again <= lost, f"executed although committed: {sorted(again - lost)}\n{said}"
        assert max(committed(output).values(), default=1) == 1, said
        if code == 0:
            check_results(output, self.world.undisturbed)
        return code == 0

    def _kill(self, run: LaunchedRun, ranks: int) -> None:
        role = self._draw.choice(("rank 0", "other rank", "launcher", "all"))
        rank = 0 if role == "rank 0" or ranks == 1 else self._draw.randrange(1, ranks)
        victims = {"launcher": [run.launcher.pid], "all": run.living()}.get(role, [run.pid_of(rank)])
        for pid in victims:
            kill(pid)
        self.kills[role] += any(pid is not None for pid in victims)

    def _damage(self) -> set[tuple[str, int]]:
        """Remove, empty or tear one file, and return the episodes whose recordings it held."""
        output, draw = self.world.output, self._draw
        found = {pattern: files for pattern in DAMAGED if (files := sorted(filter(Path.is_file, output.glob(pattern))))}
        pattern = draw.choice(sorted(found))
        path, how = draw.choice(found[pattern]), draw.choice(("missing", "empty", "torn"))
        content = path.read_bytes()
        path.unlink()
        if how != "missing":
            path.write_bytes(content[: len(content) * 7 // 16] if how == "torn" else b"")
        self.damages[pattern] += 1
        if path.name == "run.json":
            # A process that is ending may hold the run's lock a moment longer.
            wait_until(lambda: main(["recover", str(output)]) == 0, timeout_s=patience_s(10.0))
        if pattern not in RECORDINGS:
            return set()
        index = re.fullmatch(r"e(\d+)\.h5", path.name)
        job = path.relative_to(output).parts[0]
        return {(job, int(index[1]))} if index else {(job, number) for number in range(NUM_EPISODES)}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("fork_server") / "log") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_eighty_kills_with_damage_lose_nothing_and_run_nothing_twice(assignment, server, tmp_path):
    trouble, runs = Trouble(tmp_path, server, assignment), 0
    while trouble.kills.total() < 80:
        if trouble.life():
            runs += 1
            shutil.rmtree(trouble.world.output)
    trouble.world.resume_to_the_end()
    sys.stdout.write(f"{dict(trouble.kills)}, {dict(trouble.damages)}, {runs + 1} runs\n")
    assert runs >= 2
