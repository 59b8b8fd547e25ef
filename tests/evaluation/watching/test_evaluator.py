"""The runner is asked as a person would ask it; here a program of the test stands in its place."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.evaluator import Evaluator
from isaaclab_arena.evaluation.watching.watcher import Ledger, Verdict
from tests.end_to_end.launching import wait_until
from tests.evaluation.watching.trainings import save

DOCUMENT = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "arena_env_args": {"environment": "reach"}}]}


@dataclass(frozen=True, kw_only=True)
class Ending(Evaluator):
    """Starts a program that writes its arguments, and ends as it is told."""

    ending: str = "sys.exit(0)"

    def runner(self) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"import os, sys; open('asked', 'w').write(' '.join(sys.argv[1:])); {self.ending}",
        ]


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(Path("training"), 50)

    def act(**options):
        evaluator = Ending(document=DOCUMENT, training=Path("training"), **options)
        outcome = evaluator(Checkpoint(step=50, path=Path("training/model_50.pt")), Path("watch/step_50"))
        return outcome, Path("asked").read_text()

    return act


def test_the_runner_gets_the_jobs_of_the_checkpoint_and_the_other_options(evaluated):
    outcome, asked = evaluated(options=["--device", "cpu"])
    assert outcome.verdict is Verdict.DONE
    assert asked == "--eval_jobs_config watch/watch/step_50/jobs.json --output_dir watch/step_50 --device cpu"
    (job,) = json.loads(Path("watch/watch/step_50/jobs.json").read_text())["jobs"]
    assert job["policy_config_dict"] == {"checkpoint_path": "training"}
    assert job["checkpoints"]["steps"] == [50]


def test_ranks_of_a_cluster_are_asked_for_as_the_watch_was(evaluated):
    words = ["--cluster", "ray", "--ray_address", "head:6379", "--num_ranks", "4", "--gpus_per_rank", "0.5"]
    _, asked = evaluated(options=[*words, "--cpus_per_rank", "2"])
    assert asked.endswith(" --cluster ray --ray_address head:6379 --num_ranks 4 --gpus_per_rank 0.5 --cpus_per_rank 2")


def test_a_run_that_was_begun_is_gone_on_with(evaluated):
    Path("watch/step_50").mkdir(parents=True)
    Path("watch/step_50/run.json").touch()
    _, asked = evaluated()
    assert asked == "--eval_jobs_config watch/watch/step_50/jobs.json --resume watch/step_50 --retry_errors"


@pytest.mark.parametrize(
    ("ending", "verdict", "reason"),
    [
        ("sys.exit(1)", Verdict.FAILED, "not every job has all its episodes"),
        ("sys.exit(2)", Verdict.REFUSED, "it was refused"),
        ("sys.exit(130)", Verdict.INTERRUPTED, ""),
        ("os.kill(os.getpid(), 15)", Verdict.INTERRUPTED, ""),
        ("os.kill(os.getpid(), 9)", Verdict.FAILED, "its process ended with -9"),
    ],
)
def test_the_exit_code_of_the_runner_decides(evaluated, ending, verdict, reason):
    outcome, _ = evaluated(ending=ending)
    assert outcome.verdict is verdict
    assert reason in (outcome.reason or "")


def test_the_evaluation_can_leave_the_processor_to_the_training(evaluated):
    _, nice = evaluated(nice=7, ending="open('asked', 'w').write(str(os.nice(0)))")
    assert int(nice) >= 7


def test_what_a_killed_watcher_has_started_keeps_its_checkpoint_from_its_first_moment_on(evaluated):
    """The program that is asked ends, and leaves one that has all that it was given, as a watcher leaves its own."""
    evaluated(ending="os.fork() or __import__('time').sleep(2.0)")
    with Ledger(Path("watch")).held("step_50") as is_mine:
        assert not is_mine
    wait_until(is_free)


def is_free() -> bool:
    with Ledger(Path("watch")).held("step_50") as is_mine:
        return is_mine
