"""Benchmarks of large runs."""

import subprocess

import pytest

from benchmarks import ROOT
from benchmarks.harness.workers import module
from benchmarks.runs.many_episodes import measure
from tests.end_to_end.launching import patience_s


@pytest.mark.slow
def test_memory_does_not_grow_with_the_episodes_of_a_job():
    few, many = (measure(num_jobs=1, num_episodes=number, num_envs=64) for number in (1_000, 10_000))
    assert many.late_mb - many.halfway_mb < 2
    assert many.late_mb - few.late_mb < 10


@pytest.mark.slow
def test_memory_and_time_of_a_job_do_not_grow_with_the_number_of_jobs():
    few, many = (measure(num_jobs=number, num_episodes=1, num_envs=1) for number in (250, 1_000))
    # The plan, and what is known of each job, may cost a few kilobytes.
    assert many.late_mb - few.late_mb < 15
    assert many.cpu_s - few.cpu_s < 3.5 * few.cpu_s


@pytest.mark.slow
def test_a_job_leaves_nothing_behind_in_the_process_that_ran_it(tmp_path):
    """In a process of its own: what earlier tests have left to the allocator moves by more than a job leaves."""
    table = tmp_path / "memory.md"
    command = module("benchmarks.runs.memory", "--jobs", 120, "--camera_jobs", 120, "--output", table)
    measured = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience_s(600), check=False)
    assert measured.returncode == 0, measured.stderr
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.read_text().splitlines()]
    found = {line[0]: line for line in lines if line and line[0] in {"state", "cameras"}}
    assert set(found) == {"state", "cameras"}
    for _, number, _, _, _, growth_kb, files, threads in found.values():
        assert number == "120"
        assert int(growth_kb) < 1000
        assert len(set(files.split(", "))) == 1
        assert len(set(threads.split(", "))) == 1
