"""A repair that is itself interrupted, at any of its file operations, is completed by the next one."""

import subprocess
import sys

import pytest

from tests.end_to_end.launching import ROOT, environment
from tests.faults.file_operations import Effect


def disturb(directory, *effects: Effect, stride: int = 1) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.recovery.interrupted_recovery", str(directory), str(stride), *effects],
        cwd=ROOT,
        env=environment({"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_repair_that_is_killed_is_completed_by_the_next(tmp_path):
    lines = disturb(tmp_path, Effect.DIES, stride=4)
    assert len(lines) > 15
    assert lines[-1].endswith("nothing 0")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("effect", Effect)
def test_a_repair_that_is_disturbed_at_any_operation_is_completed_by_the_next(tmp_path, effect):
    lines = disturb(tmp_path, effect)
    assert len(lines) > 2
    assert lines[-1].endswith("nothing 0")
