import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.loading import load

# The check takes the table from it.
load("gpu_throughput")
GPU_CHECK = load("gpu_check")


def test_without_a_gpu_it_says_so_and_all_is_well(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert GPU_CHECK.main(GPU_CHECK.Options()) == 0
    assert capsys.readouterr().out == "no GPU: nothing was checked\n"


def test_every_job_file_is_run_on_the_gpu(tmp_path):
    names = [check.name for check in GPU_CHECK.checks(tmp_path, 2)]
    assert names[:2] == ["tests that need a GPU", "training, a rank on each GPU (2)"]
    jobs = {path.name for path in (Path(__file__).parents[2] / "jobs").iterdir() if path.is_file()}
    assert {name.split("/")[1].split(" ")[0] for name in names if name.startswith("jobs/")} == jobs


@pytest.mark.parametrize(("program", "passed"), [("print(1)", True), ("import sys; print('so'); sys.exit(3)", False)])
def test_what_a_check_says_last_is_kept_where_it_fails(program, passed):
    verdict = GPU_CHECK.verdict(GPU_CHECK.Check(name="a check", command=(sys.executable, "-c", program)))
    assert verdict.passed is passed
    assert verdict.last_lines == (() if passed else ("so",))


def test_the_page_shows_each_machine_with_its_table():
    row = {
        "task": "reach",
        "worlds": 64,
        "bare": 1000.0,
        "backend": 950.0,
        "environment": 800.0,
        "cpu": 50.0,
        "bytes_per_world": 2e5,
        "build_s": 3.0,
        "pictures_per_s": {"128 x 128": 5000.0},
    }
    checks = [{"name": "tests", "passed": True, "seconds": 1.0, "last_lines": []}]
    page = GPU_CHECK.page([{"gpu": "A GPU", "versions": "torch 2", "checks": checks, "throughput": [row]}])
    assert "## A GPU\n\ntorch 2.\n\n- passed: tests\n" in page
    assert "| `reach` | 64 | 1,000 | 950 | 0.95 | 800 | 0.80 | 50 | 200 | 3.0 |" in page
    assert "| `reach` | 64 | 128 x 128 | 5,000 |" in page


def test_the_page_says_where_nothing_was_measured():
    assert "No machine with a GPU has run it yet" in GPU_CHECK.page([])
