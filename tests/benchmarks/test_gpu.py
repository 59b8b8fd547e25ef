"""The check of a GPU and the page of its figures."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import check as gpu_check
from benchmarks.gpu import results
from benchmarks.gpu.check import Check, Options, checks
from benchmarks.gpu.episodes import Job, evaluated
from benchmarks.gpu.episodes import Options as EpisodesOptions
from benchmarks.gpu.page import crossover, page
from benchmarks.gpu.results import OUT_OF_TIME, GpuOptions, measure_all

MACHINE = {"gpu": "A GPU", "cpu": "a CPU, 16 cores", "versions": "torch 2"}


def fake(name: str, program: str, **options: Any) -> Check:
    return Check(name=name, command=(sys.executable, "-c", program), **options)


def run_all(path: Path, *planned: Check, **options: Any) -> bool:
    return gpu_check.run_all(planned, Options(**options), path, MACHINE, path.parent)


def outcomes(path: Path) -> dict[str, str]:
    return {each["name"]: each["outcome"] for each in results.read(path)["checks"]}


@pytest.mark.parametrize(("options", "code", "said"), [({}, 0, "no GPU"), ({"device": "cpu"}, 2, "--directory")])
def test_it_checks_nothing_without_a_gpu_and_keeps_figures_of_a_cpu_out(options, code, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(Options(**options)) == code
    assert said in capsys.readouterr().out


def test_every_job_file_is_run_on_the_gpu_and_parts_may_be_chosen(tmp_path):
    names = [check.name for check in checks(Options(), tmp_path, 2)]
    assert names[:2] == ["tests that need a GPU", "training, a rank on each GPU (2)"]
    jobs = {path.name for path in (ROOT / "jobs").iterdir() if path.is_file()}
    assert {name.split("/")[1].split(" ")[0] for name in names if name.startswith("jobs/")} == jobs
    chosen = Options(parts=("episodes", "physics"), tasks=("reach",), evaluations=("go1",))
    assert [check.name for check in checks(chosen, tmp_path, 1)] == ["physics of reach", "episodes of go1"]


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    child = "import time, pathlib; time.sleep(3); pathlib.Path('late').touch()"
    program = f"""
import os, subprocess, sys, time
os.chdir({str(tmp_path)!r})
subprocess.Popen([sys.executable, "-c", {child!r}]).wait()
"""
    verdict = gpu_check.verdict(fake("a check", program), limit_s=1.0)
    assert (verdict.outcome, verdict.last_lines[-1]) == ("out of time", "took longer than 1 s")
    assert verdict.seconds < 2.5
    assert not list(tmp_path.iterdir())


def test_each_part_adds_to_the_results_and_only_the_missing_may_be_asked_for(tmp_path):
    path = tmp_path / "gpu-a.json"
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('x')"
    assert run_all(path, fake("one", mark))
    assert not run_all(path, fake("two", f"{mark}; raise SystemExit('so')"))
    assert results.read(path)["checks"][1]["last_lines"] == ["so"]
    assert outcomes(path) == {"one": "passed", "two": "FAILED"}
    assert run_all(path, fake("one", mark), fake("two", mark), missing=True)
    assert (tmp_path / "mark").read_text() == "xxx"
    assert outcomes(path) == {"one": "passed", "two": "passed"}


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


# Results.


def rows(*worlds: int, task: str = "reach", bare: float = 1.0) -> list[dict[str, object]]:
    return [{"task": task, "worlds": number, "bare": bare} for number in worlds]


def test_later_results_add_to_earlier_ones_and_replace_them_in_their_order():
    checked = [{"name": name, "outcome": "FAILED"} for name in ("tests", "training", "jobs")]
    before = results.merged({}, {**MACHINE, "physics": rows(64, 8), "checks": checked})
    again = {"name": "tests", "outcome": "passed"}
    after = results.merged(before, {**MACHINE, "physics": [*rows(16), *rows(8, bare=2.0)], "checks": [again]})
    assert [(row["worlds"], row["bare"]) for row in after["physics"]] == [(8, 2.0), (16, 1.0), (64, 1.0)]
    assert after["checks"] == [again, *checked[1:]]
    assert after["pictures"] == []
    elsewhere = results.merged(before, {**MACHINE, "gpu": "another", "physics": rows(16)})
    assert [row["worlds"] for row in elsewhere["physics"]] == [16]


@dataclass(frozen=True)
class Row:
    number: int


def test_rows_are_written_as_they_are_measured_and_one_that_fails_costs_no_other(tmp_path, capsys):
    output, seen = tmp_path / "rows.json", []

    def measure(number: int) -> Row:
        seen.append(json.loads(output.read_text()) if output.exists() else [])
        if number == 2:
            raise RuntimeError("out of memory")
        return Row(number)

    assert measure_all([(1,), (2,), (3,)], measure, GpuOptions(output=output)) == ([Row(1), Row(3)], 1)
    assert measure_all([(1,), (3,)], measure, GpuOptions(limit_s=0.0)) == ([], OUT_OF_TIME)
    assert seen == [[], [{"number": 1}], [{"number": 1}]]
    assert json.loads(output.read_text()) == [{"number": 1}, {"number": 3}]
    assert "(2,) failed: out of memory" in capsys.readouterr().out


# The page.


@pytest.mark.parametrize(
    ("speeds", "cell"),
    [
        # The GPU gains tenfold from 10 to 1,000 worlds, and half of that in logarithms is at 100.
        ([(10, 1.0, 10**0.5), (1000, 10.0, 10**0.5)], "100"),
        ([(4096, 9.0, 1.0), (16, 2.0, 1.0)], "below 16"),
        ([(16, 0.1, 1.0), (4096, 0.9, 1.0)], "above 4,096"),
        ([(16, 2.0, 1.0), (64, 3.0, 1.0), (256, 0.5, 1.0)], "above 256"),
        ([(1, 2.0, 1.0), (10, 0.5, 1.0), (1000, 2.0, 1.0)], "100"),
        ([(1, 0.5, 1.0), (64, 1.0, 1.0)], "64"),
    ],
)
def test_a_gpu_crosses_where_its_speed_stays_higher(speeds, cell):
    assert str(crossover(speeds)) == cell


PHYSICS = {"task": "reach", "worlds": 64, "bare": 1000.0, "backend": 950.0, "environment": 800.0, "cpu": 50.0,
           "testspeed": 980.0, "bytes_per_world": 2e5, "build_s": 3.0}  # fmt: skip
PICTURES = {"task": "reach", "worlds": 64, "size_px": 128, "rendered": 5000.0, "stepped": 1000.0, "cpu": 100.0,
            "bytes_per_world": None}  # fmt: skip
ON_WARP = {"episodes": 100, "wall_s": 15.0, "build_s": 5.0, "simulate_s": 6.0, "policy_s": 2.0, "render_s": 0.0,
           "record_s": 1.0}  # fmt: skip
EPISODES = {"job": "`go1`", "worlds": 50, "warp": ON_WARP, "cpu": {**ON_WARP, "wall_s": 105.0}}
CHECKS = [
    {"name": "tests", "outcome": "passed", "seconds": 1.0, "last_lines": []},
    {"name": "jobs", "outcome": "out of time", "seconds": 74.6, "last_lines": ["..x."]},
]
RESULT = {**MACHINE, "checks": CHECKS, "physics": [PHYSICS], "pictures": [PICTURES], "episodes": [EPISODES]}


def test_the_page_shows_each_machine_with_its_tables_and_no_table_for_what_was_not_run():
    text = page([RESULT])
    assert (
        "## A GPU\n\na CPU, 16 cores. torch 2.\n\n- passed: tests\n- out of time: jobs: not finished after 75 s" in text
    )
    assert "| `reach` | 64 | 980 | 1,000 | 950 | 0.95 | 800 | 0.80 | 50 | 200 | 3.0 |" in text
    assert "| `reach` | 128 x 128 | 64 | 5,000 | 1,000 | 100 | 50.00 |  |" in text
    assert "| `go1` | 50 | 100 | MuJoCo-Warp | 10 | 6.67 | 60 % | 20 % | 0 % | 10 % | 10 % | 10.00 | 7.00 |" in text
    assert "| `go1` | 50 | 100 | MuJoCo | 1 | 0.952 | 6 % | 2 % | 0 % | 1 % | 91 % |  |  |" in text
    assert "The backend, of `mjwarp-testspeed`: at least 0.9 is met; the least is 0.97" in text
    assert "| `reach` | below 64 | below 64 |" in text
    slow = {**RESULT, "physics": [{**PHYSICS, "worlds": 1, "backend": 300.0, "testspeed": None}, PHYSICS]}
    assert "at least 0.9 is met in 1 of 2 lines; the least is 0.30, `reach`, 1 world.\n" in page([slow])
    headings = [line for line in page([{**RESULT, "pictures": [], "episodes": []}]).splitlines() if "### " in line]
    assert headings == ["### Physics"]
    assert "## " not in page([])


def test_the_page_is_written_from_all_results_of_a_directory_and_the_committed_one_too(tmp_path):
    for name in "ba":
        results.write(tmp_path / f"gpu-{name}.json", results.merged({}, {**MACHINE, "gpu": f"GPU {name}"}))
    gpu_check.write_document(tmp_path, tmp_path / "page.md")
    headings = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("## ")]
    assert headings == ["## GPU a", "## GPU b"]
    gpu_check.write_document(RESULTS, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == gpu_check.DOCUMENT.read_text()


# Loops and evaluations that are measured.


@pytest.mark.usefixtures("quick_python")
def test_a_job_is_evaluated_by_the_runner_itself_and_one_that_fails_says_why():
    job = Job(title="cartpole", environment="cartpole", policy_type="zero_action", num_envs=(1,))
    found = evaluated(job, 3, EpisodesOptions(episodes_per_slot=1), None, on_cpu=True)
    assert found.episodes == 3
    assert 0 < found.simulate_s < found.wall_s
    wrong = Job(title="none", environment="no_such_place", policy_type="zero_action", num_envs=(1,))
    with pytest.raises(RuntimeError, match="no_such_place"):
        evaluated(wrong, 1, EpisodesOptions(), None, on_cpu=True)
