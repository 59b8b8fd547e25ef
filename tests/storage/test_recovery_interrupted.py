"""A repair that is itself interrupted, at any of its file operations, is completed by the next one."""

import subprocess
import sys

import pytest

from tests.end_to_end.launching import ROOT, environment
from tests.faults.file_operations import Effect


def disturb(folder, *effects: Effect) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.interrupted_recovery", str(folder), *effects],
        cwd=ROOT,
        env=environment({"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_repair_that_is_killed_at_any_moment_is_completed_by_the_next(tmp_path):
    lines = disturb(tmp_path, Effect.DIES)
    assert len(lines) > 50
    assert lines[-1].endswith("nothing 0")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_repair_whose_disk_fails_at_any_moment_says_so_and_is_completed_by_the_next(tmp_path):
    effects = [effect for effect in Effect if effect is not Effect.DIES]
    lines = disturb(tmp_path, *effects)
    assert len(lines) > 50 * len(effects)
