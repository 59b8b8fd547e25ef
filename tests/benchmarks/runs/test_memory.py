import subprocess

import pytest

from benchmarks import ROOT
from benchmarks.harness.workers import module
from tests.end_to_end.launching import patience_s


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
