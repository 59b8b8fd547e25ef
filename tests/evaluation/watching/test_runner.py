"""The runner is asked as a person would ask it; here a program of the test stands in its place."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.watch import Watch, WatchSettings, run_checkpoint
from isaaclab_arena.storage.disk import RunLock
from tests.end_to_end.launching import wait_until
from tests.evaluation.watching.trainings import KilledError, save

DOCUMENT = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "arena_env_args": {"environment": "reach"}}]}


def program(ending: str) -> list[str]:
    """Return a program that writes its arguments, and ends as it is told."""
    return [sys.executable, "-c", f"import os, sys; open('asked', 'w').write(' '.join(sys.argv[1:])); {ending}"]


@pytest.fixture
def settings(tmp_path, monkeypatch) -> WatchSettings:
    monkeypatch.chdir(tmp_path)
    save(Path("training"), 50)
    return WatchSettings(
        training=Path("training"), eval_jobs_config=Path("jobs.json"), output_dir=Path("watch"), once=True, poll_s=0.05
    )


def evaluated(settings: WatchSettings, *options: str, ending: str = "sys.exit(0)") -> tuple[int, str]:
    checkpoint = Checkpoint(step=50, path=Path("training/model_50.pt"))
    code = run_checkpoint(settings, DOCUMENT, options, checkpoint, Path("watch/step_50"), runner=program(ending))
    return code, Path("asked").read_text()


def test_the_runner_gets_the_jobs_of_the_checkpoint_and_the_other_options(settings):
    words = "--cluster ray --ray_address head:6379 --num_ranks 4 --gpus_per_rank 0.5"
    asked = f"--eval_jobs_config watch/watch/step_50/jobs.json --output_dir watch/step_50 {words}"
    assert evaluated(settings, *words.split()) == (0, asked)
    (job,) = json.loads(Path("watch/watch/step_50/jobs.json").read_text())["jobs"]
    assert job["policy_config_dict"] == {"checkpoint_path": "training"}
    assert job["checkpoints"]["steps"] == [50]


def test_a_run_that_was_begun_is_gone_on_with(settings):
    Path("watch/step_50").mkdir(parents=True)
    Path("watch/step_50/run.json").touch()
    _, asked = evaluated(settings)
    assert asked == "--eval_jobs_config watch/watch/step_50/jobs.json --resume watch/step_50 --retry_errors"


@pytest.mark.parametrize(
    ("ending", "exit_code", "told"),
    [
        ("sys.exit(1)", 1, "step 50 was not evaluated: not every job has all its episodes"),
        ("sys.exit(2)", 2, ""),
        ("sys.exit(130)", 130, ""),
        ("os.kill(os.getpid(), 15)", 130, ""),
        ("os.kill(os.getpid(), 9)", 1, "step 50 was not evaluated: its process ended with -9"),
    ],
)
def test_the_exit_code_of_the_runner_decides(settings, capsys, ending, exit_code, told):
    evaluate = partial(run_checkpoint, settings, DOCUMENT, (), runner=program(ending))
    assert Watch(settings=settings, evaluate=evaluate).run() == exit_code
    assert told in capsys.readouterr().out


def test_the_evaluation_can_leave_the_processor_to_the_training(settings):
    _, nice = evaluated(replace(settings, nice=7), ending="open('asked', 'w').write(str(os.nice(0)))")
    assert int(nice) >= 7


def test_a_killed_watch_leaves_a_run_that_the_next_one_waits_for(settings, caplog):
    """The program that is asked ends, and leaves one that has all that it was given, as a killed watch does."""

    def killed(checkpoint: Checkpoint, directory: Path, seed_offset: int) -> int:
        evaluated(settings, ending="os.fork() or __import__('time').sleep(2.0)")
        raise KilledError

    with pytest.raises(KilledError):
        Watch(settings=settings, evaluate=killed).run()
    assert not is_free()
    evaluate = partial(run_checkpoint, settings, DOCUMENT, (), runner=program("sys.exit(1)"))
    assert Watch(settings=settings, evaluate=evaluate).run() == 1
    assert caplog.text.count("another watch is at work in watch/watch, or a run of one") == 1
    wait_until(is_free)


def is_free() -> bool:
    with RunLock(Path("watch/watch")) as lock:
        try:
            lock.hold(alone=True)
        except ConfigError:
            return False
    return True
