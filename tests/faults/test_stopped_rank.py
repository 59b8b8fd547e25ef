"""A rank is stopped for a while and then goes on, as under a debugger, or on a machine that was put to sleep."""

import signal
import time
from pathlib import Path

import pytest

from tests.faults.invariants import check_whole, committed
from tests.faults.launched_runs import LaunchedRun, kill
from tests.faults.small_run import read_diary, write_small_jobs


class Sleeper:
    """Runs jobs on two ranks, one of which is stopped in the middle."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.output = folder / "out"
        self.undisturbed = folder / "undisturbed"
        self._folder = folder
        self._options = options
        self._jobs = write_small_jobs(folder / "jobs.json", num_jobs=2, num_episodes=16, step_s=0.05)
        with self._launch(self.undisturbed, ranks=1) as run:
            assert run.wait() == 0, run.log.read_text()

    def sleep(self, rank: int, *, for_s: float) -> None:
        """Stop a rank amid its episodes, let it go on after a while, and wait for the end."""
        with self._launch(self.output, ranks=2) as run:
            while not list(self.output.glob(f"*/episode_results_rank{rank}.jsonl")) or len(committed(self.output)) < 6:
                assert run.launcher.poll() is None, run.log.read_text()
                time.sleep(0.01)
            stopped = run.pid_of(rank)
            kill(stopped, signal.SIGSTOP)
            time.sleep(for_s)
            kill(stopped, signal.SIGCONT)
            assert run.wait() == 0, run.log.read_text()

    @property
    def started(self) -> dict[tuple[str, int], int]:
        return read_diary(self._folder / "diary")

    def _launch(self, output: Path, *, ranks: int) -> LaunchedRun:
        diary = self._folder / "diary"
        diary.unlink(missing_ok=True)
        return LaunchedRun(
            "--eval_jobs_config",
            self._jobs,
            "--output_dir",
            output,
            *self._options,
            ranks=ranks,
            diary=diary,
            log=self._folder / "log",
        )


def test_others_finish_what_a_stopped_rank_has_claimed_and_its_own_rows_do_no_harm_later(tmp_path):
    sleeper = Sleeper(tmp_path, "--assignment", "dynamic", "--split_jobs", "--lease_s", "1")
    sleeper.sleep(1, for_s=5.0)
    again = [episode for episode, times in sleeper.started.items() if times > 1]
    assert 1 <= len(again) <= 2, "what the stopped rank had begun in its two rows was run again, and nothing else"
    check_whole(sleeper.output, sleeper.undisturbed, twice=again)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_for_a_minute_is_waited_for(tmp_path, rank):
    sleeper = Sleeper(tmp_path)
    sleeper.sleep(rank, for_s=60.0)
    check_whole(sleeper.output, sleeper.undisturbed)
    assert set(sleeper.started.values()) == {1}
