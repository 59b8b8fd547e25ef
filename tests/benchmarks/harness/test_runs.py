import sys

import pytest

from benchmarks.harness.runs import Watched, watched


def test_a_process_is_watched_to_its_end(tmp_path):
    program = "import time; held = bytearray(60_000_000); time.sleep(0.3); sum(range(3_000_000))"
    took = watched([sys.executable, "-c", program], tmp_path / "log.txt")
    assert took.ended - took.began > 0.3
    assert 0.0 < took.cpu_s < took.ended - took.began
    assert took.peak_mb > 60
    assert max(resident_mb for _, resident_mb in took.samples) > 60
    assert took.gpu_mb >= 0


def test_the_memory_at_a_time_is_that_of_the_look_before():
    samples = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]
    took = Watched(began=0.0, ended=4.0, cpu_s=1.0, peak_mb=30.0, gpu_mb=0.0, samples=samples)
    assert [took.resident_mb(when) for when in (1.5, 2.0, 9.0)] == [10.0, 30.0, 20.0]


def test_a_process_that_fails_is_told_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 1: so it is"):
        watched([sys.executable, "-c", "import sys; sys.exit('so it is')"], tmp_path / "log.txt")


def test_what_is_noted_meanwhile_can_be_given(tmp_path):
    noted = []
    watched([sys.executable, "-c", "pass"], tmp_path / "log.txt", note=lambda: noted.append(1), interval_s=0.01)
    assert noted
