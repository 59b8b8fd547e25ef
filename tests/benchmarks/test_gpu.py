"""The check of a GPU and the page of its figures."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import RESULTS, ROOT
from benchmarks.gpu import check as gpu_check
from benchmarks.gpu import results
from benchmarks.gpu.check import Check, Options, checks
from benchmarks.gpu.page import crossover, page
from benchmarks.gpu.results import OUT_OF_TIME, GpuOptions, measure_all, unknown_keys
from benchmarks.gpu.throughput import EnvironmentLoop, Loop, build_worlds, emptied, free_memory, speeds, taken_per_world
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


def test_between_two_numbers_of_worlds_it_is_where_the_lines_cross_in_logarithms():
    # The GPU gains tenfold from 10 to 1,000 worlds, and half of that in logarithms is at 100.
    found = crossover([(10, 1.0, 10**0.5), (1000, 10.0, 10**0.5)])
    assert found.worlds == pytest.approx(100)
    assert str(found) == "100"


def test_a_gpu_that_is_always_quicker_crosses_below_what_was_measured():
    assert str(crossover([(4096, 9.0, 1.0), (16, 2.0, 1.0)])) == "below 16"


def test_a_gpu_that_is_not_quicker_crosses_above_what_was_measured():
    assert str(crossover([(16, 0.1, 1.0), (4096, 0.9, 1.0)])) == "above 4,096"


def test_a_gpu_that_is_quicker_only_for_a_while_has_not_crossed():
    assert str(crossover([(16, 2.0, 1.0), (64, 3.0, 1.0), (256, 0.5, 1.0)])) == "above 256"


def test_of_several_crossings_it_is_the_last_that_counts():
    found = crossover([(1, 2.0, 1.0), (10, 0.5, 1.0), (100, 2.0, 1.0)])
    assert found.worlds == pytest.approx(10 * 10**0.5)


def test_equal_speeds_count_as_crossed():
    assert str(crossover([(1, 0.5, 1.0), (64, 1.0, 1.0)])) == "64"


PHYSICS = {
    "task": "reach",
    "worlds": 64,
    "bare": 1000.0,
    "backend": 950.0,
    "environment": 800.0,
    "cpu": 50.0,
    "testspeed": 980.0,
    "bytes_per_world": 2e5,
    "build_s": 3.0,
}
PICTURES = {
    "task": "reach",
    "worlds": 64,
    "size_px": 128,
    "rendered": 5000.0,
    "stepped": 1000.0,
    "cpu": 100.0,
    "bytes_per_world": None,
}
ON_WARP = {
    "episodes": 100,
    "wall_s": 15.0,
    "build_s": 5.0,
    "simulate_s": 6.0,
    "policy_s": 2.0,
    "render_s": 0.0,
    "record_s": 1.0,
}
EPISODES = {"job": "`go1`", "worlds": 50, "warp": ON_WARP, "cpu": {**ON_WARP, "wall_s": 105.0}}
CHECKS = [{"name": "tests", "outcome": "passed", "seconds": 1.0, "last_lines": []}]
RESULT = {
    "gpu": "A GPU",
    "cpu": "a CPU, 16 cores",
    "versions": "torch 2",
    "checks": CHECKS,
    "physics": [PHYSICS],
    "pictures": [PICTURES],
    "episodes": [EPISODES],
}


def physics_page(*changes: dict[str, object]) -> str:
    return page([{**RESULT, "physics": [{**PHYSICS, **change} for change in changes]}])


def test_the_page_shows_each_machine_with_its_tables():
    text = page([RESULT])
    assert "## A GPU\n\na CPU, 16 cores. torch 2.\n\n- passed: tests\n" in text
    assert "| `reach` | 64 | 980 | 1,000 | 950 | 0.95 | 800 | 0.80 | 50 | 200 | 3.0 |" in text
    assert "| `reach` | 128 x 128 | 64 | 5,000 | 1,000 | 100 | 50.00 |  |" in text
    assert "| `go1` | 50 | 100 | MuJoCo-Warp | 10 | 6.67 | 60 % | 20 % | 0 % | 10 % | 10 % | 10.00 | 7.00 |" in text
    assert "| `go1` | 50 | 100 | MuJoCo | 1 | 0.952 | 6 % | 2 % | 0 % | 1 % | 91 % |  |  |" in text


def test_a_part_that_was_not_run_has_no_table():
    text = page([{**RESULT, "pictures": [], "episodes": []}])
    assert "### Physics" in text
    assert "### Pictures" not in text
    assert "### Episodes" not in text


def test_a_check_that_was_ended_says_after_what_time_and_not_what_it_said_last():
    check = {"name": "all tests", "outcome": "out of time", "seconds": 74.6, "last_lines": ["..x."]}
    assert "- out of time: all tests: not finished after 75 s\n" in page([{**RESULT, "checks": [check]}])


def test_the_page_says_where_nothing_was_measured():
    assert "No machine with a GPU has run it yet" in page([])


def test_goals_are_met_where_every_row_meets_them():
    text = physics_page({}, {"worlds": 512, "backend": 900.0})
    assert "- The backend, of MuJoCo-Warp alone: at least 0.9 is met; the least is 0.90, `reach`, 512 worlds.\n" in text
    assert (
        "- Control steps, of MuJoCo-Warp alone: at least 0.7 is met; the least is 0.80, `reach`, 64 worlds.\n" in text
    )


def test_goals_that_some_rows_miss_say_how_many_and_where_most():
    text = physics_page({"worlds": 1, "backend": 300.0, "environment": 100.0}, {"environment": 699.0})
    assert "at least 0.9 is met in 1 of 2 lines; the least is 0.30, `reach`, 1 world.\n" in text
    assert "at least 0.7 is **not met**; the least is 0.10, `reach`, 1 world.\n" in text


def test_the_goal_against_testspeed_is_told_only_where_it_ran():
    assert "The backend, of `mjwarp-testspeed`: at least 0.9 is met; the least is 0.97" in page([RESULT])
    assert "The backend, of `mjwarp-testspeed`" not in physics_page({"testspeed": None})


def test_each_task_has_its_crossovers():
    text = physics_page({}, {"task": "push_cube", "bare": 100.0, "backend": 10.0, "worlds": 16})
    assert "| `reach` | below 64 | below 64 |" in text
    assert "| `push_cube` | below 16 | above 16 |" in text


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


def test_checks_stay_in_the_order_in_which_they_were_run():
    names = ["tests", "training", "jobs"]
    before = results.merged({}, {**RESULTS_MACHINE, "checks": [{"name": name, "outcome": "FAILED"} for name in names]})
    after = results.merged(before, {**RESULTS_MACHINE, "checks": [{"name": "tests", "outcome": "passed"}]})
    assert [each["name"] for each in after["checks"]] == names
    assert after["checks"][0]["outcome"] == "passed"


@pytest.mark.parametrize("name", ["gpu", "cpu", "versions"])
def test_figures_of_another_machine_or_version_are_not_mixed_in(name):
    before = results.merged({}, {**RESULTS_MACHINE, "physics": rows(8)})
    after = results.merged(before, {**RESULTS_MACHINE, name: "another", "physics": rows(16)})
    assert [row["worlds"] for row in after["physics"]] == [16]


def test_results_are_written_as_a_whole_and_nothing_is_left_beside_them(tmp_path):
    path = tmp_path / "gpu-a.json"
    assert results.read(path) == {}
    results.write(path, {"gpu": "one"})
    results.write(path, {"gpu": "two"})
    assert results.read(path) == {"gpu": "two"}
    assert list(tmp_path.iterdir()) == [path]


@dataclass(frozen=True)
class Row:
    number: int


def test_rows_are_written_one_by_one_as_they_are_measured(tmp_path):
    output, seen = tmp_path / "rows.json", []

    def measure(number: int) -> Row:
        seen.append(json.loads(output.read_text()) if output.exists() else [])
        return Row(number)

    rows, code = measure_all([(1,), (2,)], measure, GpuOptions(output=output))
    assert code == 0
    assert rows == [Row(1), Row(2)]
    assert seen == [[], [{"number": 1}]]
    assert json.loads(output.read_text()) == [{"number": 1}, {"number": 2}]


def test_what_fails_is_told_and_costs_no_other_row(capsys):
    def measure(number: int) -> Row:
        if number == 2:
            raise RuntimeError("out of memory")
        return Row(number)

    rows, code = measure_all([(1,), (2,), (3,)], measure, GpuOptions())
    assert code == 1
    assert rows == [Row(1), Row(3)]
    assert "(2,) failed: out of memory" in capsys.readouterr().out


def test_nothing_is_begun_that_would_not_end_in_time(capsys):
    def measure(number: int) -> Row:
        time.sleep(0.3)
        return Row(number)

    rows, code = measure_all([(1,), (2,)], measure, GpuOptions(limit_s=0.5))
    assert code == OUT_OF_TIME
    assert rows == [Row(1)]
    assert "no time left for (2,)" in capsys.readouterr().out


def test_rows_of_a_results_file_are_known_by_what_tells_them_apart(tmp_path):
    path, keys = tmp_path / "gpu-a.json", [("reach", 8), ("reach", 16)]
    assert unknown_keys("physics", keys, path) == unknown_keys("physics", keys, None) == keys
    path.write_text(json.dumps({"physics": [{"task": "reach", "worlds": 8, "bare": 1.0}]}))
    assert unknown_keys("physics", keys, path) == [("reach", 16)]
    assert unknown_keys("pictures", [("reach", 8, 128)], path) == [("reach", 8, 128)]


def test_memory_of_a_world_is_not_known_on_the_cpu():
    assert taken_per_world(emptied(CPU), free_memory(CPU), 8) is None
    assert taken_per_world(1000, 200, 8) == 100


def test_loops_take_turns_from_where_they_start_and_the_first_round_does_not_count():
    order: list[str] = []
    loops = {
        name: Loop(run=lambda name=name: order.append(name), count=5, prepare=lambda: order.append("start"))
        for name in "ab"
    }
    found = speeds(loops, rounds=2)
    assert order[::2] == ["start"] * 6
    assert sorted(order[1::2]) == ["a"] * 3 + ["b"] * 3
    assert all(speed > 0 for speed in found.values())


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


def test_the_actions_of_a_loop_lie_within_the_bounds_of_the_environment():
    environment = build_worlds("cartpole", 2, CPU, backend="mujoco")
    seen = []
    step = environment.try_step

    def noting(action):
        seen.append(action)
        return step(action)

    environment.try_step = noting
    EnvironmentLoop(environment, steps=3).run()
    low, high = environment.action_spec.low, environment.action_spec.high
    actions = torch.cat(seen)
    assert (actions >= torch.tensor(low)).all()
    assert (actions <= torch.tensor(high)).all()
