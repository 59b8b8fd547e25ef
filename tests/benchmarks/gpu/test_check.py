import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import check as gpu_check
from benchmarks.gpu import results
from benchmarks.gpu.check import Check, Options, checks
from benchmarks.gpu.results import OUT_OF_TIME

MACHINE = {"gpu": "A GPU", "cpu": "a CPU, 16 cores", "versions": "torch 2"}


def fake(name: str, program: str, **options: Any) -> Check:
    return Check(name=name, command=(sys.executable, "-c", program), **options)


def run_all(path: Path, *planned: Check, **options: Any) -> bool:
    return gpu_check.run_all(planned, Options(**options), path, MACHINE, path.parent)


def outcomes(path: Path) -> dict[str, str]:
    return {each["name"]: each["outcome"] for each in results.read(path)["checks"]}


def test_without_a_gpu_it_says_so_and_all_is_well(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(Options()) == 0
    assert capsys.readouterr().out == "no GPU: nothing was checked\n"


def test_figures_of_a_cpu_stay_out_of_the_repository(capsys):
    assert gpu_check.main(Options(device="cpu")) == 2
    assert "give --directory" in capsys.readouterr().out


def test_every_job_file_is_run_on_the_gpu(tmp_path):
    names = [check.name for check in checks(Options(), tmp_path, 2)]
    assert names[:2] == ["tests that need a GPU", "training, a rank on each GPU (2)"]
    jobs = {path.name for path in (ROOT / "jobs").iterdir() if path.is_file()}
    assert {name.split("/")[1].split(" ")[0] for name in names if name.startswith("jobs/")} == jobs


def test_only_the_parts_that_are_asked_for_are_run_always_in_the_same_order(tmp_path):
    options = Options(parts=("episodes", "physics"), tasks=("reach",), evaluations=("go1",))
    names = [check.name for check in checks(options, tmp_path, 1)]
    assert names == ["physics of reach", "episodes of go1"]


@pytest.mark.parametrize(("program", "outcome"), [("print(1)", "passed"), ("import sys; sys.exit('so')", "FAILED")])
def test_what_a_check_says_last_is_kept_where_it_fails(program, outcome):
    verdict = gpu_check.verdict(fake("a check", program))
    assert verdict.outcome == outcome
    assert verdict.last_lines == (() if outcome == "passed" else ("so",))


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    child = "import time, pathlib; time.sleep(3); pathlib.Path('late').touch()"
    program = f"""
import os, subprocess, sys, time
os.chdir({str(tmp_path)!r})
subprocess.Popen([sys.executable, "-c", {child!r}]).wait()
"""
    verdict = gpu_check.verdict(fake("a check", program), limit_s=1.0)
    assert verdict.outcome == "out of time"
    assert verdict.last_lines[-1] == "took longer than 1 s"
    assert verdict.seconds < 2.5
    assert not list(tmp_path.iterdir())


def test_each_part_adds_to_the_results_that_are_there(tmp_path):
    path = tmp_path / "gpu-a.json"
    assert run_all(path, fake("one", "pass"))
    assert not run_all(path, fake("two", "import sys; sys.exit(1)"))
    assert outcomes(path) == {"one": "passed", "two": "FAILED"}


def test_what_passed_is_not_run_again_where_only_the_missing_is_asked_for(tmp_path):
    path = tmp_path / "gpu-a.json"
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('x')"
    run_all(path, fake("one", mark), fake("two", f"{mark}; raise SystemExit(1)"))
    run_all(path, fake("one", mark), fake("two", mark), missing=True)
    assert (tmp_path / "mark").read_text() == "xxx"
    assert set(outcomes(path).values()) == {"passed"}


def test_nothing_is_begun_when_the_time_is_over(tmp_path, capsys):
    path = tmp_path / "gpu-a.json"
    assert not run_all(path, fake("one", "pass"), limit_s=1.0)
    assert outcomes(path) == {}
    assert "no time left for: one" in capsys.readouterr().out


def test_rows_of_a_benchmark_are_kept_when_it_runs_out_of_time(tmp_path):
    program = f"""
import json, sys
output = sys.argv[sys.argv.index("--output") + 1]
json.dump([{{"task": "reach", "worlds": 1}}], open(output, "w"))
sys.exit({OUT_OF_TIME})
"""
    path = tmp_path / "gpu-a.json"
    assert not run_all(path, fake("physics", program, rows="physics"))
    assert outcomes(path) == {"physics": "out of time"}
    assert results.read(path)["physics"] == [{"task": "reach", "worlds": 1}]


def test_the_page_is_written_from_all_results_of_a_directory(tmp_path):
    for name in "ba":
        machine = {**MACHINE, "gpu": f"GPU {name}"}
        (tmp_path / f"gpu-{name}.json").write_text(json.dumps(results.merged({}, machine)))
    gpu_check.write_document(tmp_path, tmp_path / "page.md")
    headings = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("## ")]
    assert headings == ["## GPU a", "## GPU b"]


def test_the_committed_page_is_the_one_that_its_results_give(tmp_path):
    gpu_check.write_document(RESULTS, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == gpu_check.DOCUMENT.read_text()
