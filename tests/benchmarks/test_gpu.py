"""The check of a GPU and the page of its figures."""

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
from benchmarks.gpu.throughput import EnvironmentLoop, build_worlds
from benchmarks.harness.environments import CPU

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


def test_the_committed_page_is_the_one_that_its_results_give(tmp_path):
    gpu_check.write_document(RESULTS, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == gpu_check.DOCUMENT.read_text()


RESULTS_MACHINE = {"gpu": "A GPU", "cpu": "a CPU", "versions": "torch 2"}


def rows(*worlds: int, task: str = "reach", bare: float = 1.0) -> list[dict[str, object]]:
    return [{"task": task, "worlds": number, "bare": bare} for number in worlds]


def test_a_later_part_adds_to_what_is_there_and_rows_stand_in_order():
    before = results.merged({}, {**RESULTS_MACHINE, "physics": rows(64, 8)})
    after = results.merged(before, {**RESULTS_MACHINE, "physics": rows(16), "checks": [{"name": "tests"}]})
    assert [row["worlds"] for row in after["physics"]] == [8, 16, 64]
    assert after["checks"] == [{"name": "tests"}]
    assert after["pictures"] == []


def test_what_is_measured_again_replaces_the_figure_before():
    before = results.merged({}, {**RESULTS_MACHINE, "physics": rows(8, 64)})
    after = results.merged(before, {**RESULTS_MACHINE, "physics": rows(8, bare=2.0)})
    assert [(row["worlds"], row["bare"]) for row in after["physics"]] == [(8, 2.0), (64, 1.0)]


@pytest.mark.parametrize("name", ["gpu", "cpu", "versions"])
def test_figures_of_another_machine_or_version_are_not_mixed_in(name):
    before = results.merged({}, {**RESULTS_MACHINE, "physics": rows(8)})
    after = results.merged(before, {**RESULTS_MACHINE, name: "another", "physics": rows(16)})
    assert [row["worlds"] for row in after["physics"]] == [16]


def test_slots_of_a_loop_are_of_all_ages_so_that_some_begin_anew_in_every_few_steps():
    environment = build_worlds("cartpole", 64, CPU, backend="mujoco")
    begun = []
    reset = environment.reset

    def counting(env_ids, conditions):
        begun.append(len(env_ids))
        return reset(env_ids, conditions)

    environment.reset = counting
    EnvironmentLoop(environment, steps=30).run()
    assert begun[0] == 64
    assert len(begun) > 2
    assert max(begun[1:]) < 64
