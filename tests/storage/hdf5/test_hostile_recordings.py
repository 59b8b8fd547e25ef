"""Recordings that mean harm: no reader ends in a traceback, in all of the memory, or never."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.hdf5.hostile_recordings import kinds

SEED = 15
FAST_KINDS = 14
ROOT = Path(__file__).parents[3]


def run_readers(directory: Path, *, seed: int, begin: int, end: int, timeout_s: float) -> str:
    """Run all readers on kinds that a seed draws, in a process of limited memory, and return what they did wrong."""
    arguments = [str(directory), str(seed), str(begin), str(end)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.hdf5.hostile_recordings", *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith(("COMPLAINT", "DONE"))]
    assert done.returncode == 0, f"seed {seed}: ended with {done.returncode}: {done.stderr[-2000:]}"
    assert said[-1].startswith(f"DONE {min(end, len(kinds())) - begin} "), f"seed {seed}"
    return "\n".join([f"seed {seed}:", *said[:-1]]) if len(said) > 1 else ""


def test_no_reader_breaks_on_any_of_some_bad_files(tmp_path):
    assert run_readers(tmp_path, seed=SEED, begin=0, end=FAST_KINDS, timeout_s=200) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("begin", range(FAST_KINDS, len(kinds()), 60))
def test_no_reader_breaks_on_any_bad_file(tmp_path, begin):
    end = min(begin + 60, len(kinds()))
    assert run_readers(tmp_path, seed=SEED, begin=begin, end=end, timeout_s=1700) == ""


def test_there_are_many_kinds_of_bad_files():
    assert len(kinds()) > 500
