import json
import time
from dataclasses import dataclass

import pytest

from benchmarks.gpu import results
from benchmarks.gpu.results import OUT_OF_TIME, GpuOptions, measure_all, unknown_keys

MACHINE = {"gpu": "A GPU", "cpu": "a CPU", "versions": "torch 2"}


def rows(*worlds: int, task: str = "reach", bare: float = 1.0) -> list[dict[str, object]]:
    return [{"task": task, "worlds": number, "bare": bare} for number in worlds]


def test_a_later_part_adds_to_what_is_there_and_rows_stand_in_order():
    before = results.merged({}, {**MACHINE, "physics": rows(64, 8)})
    after = results.merged(before, {**MACHINE, "physics": rows(16), "checks": [{"name": "tests"}]})
    assert [row["worlds"] for row in after["physics"]] == [8, 16, 64]
    assert after["checks"] == [{"name": "tests"}]
    assert after["pictures"] == []


def test_what_is_measured_again_replaces_the_figure_before():
    before = results.merged({}, {**MACHINE, "physics": rows(8, 64)})
    after = results.merged(before, {**MACHINE, "physics": rows(8, bare=2.0)})
    assert [(row["worlds"], row["bare"]) for row in after["physics"]] == [(8, 2.0), (64, 1.0)]


def test_checks_stay_in_the_order_in_which_they_were_run():
    names = ["tests", "training", "jobs"]
    before = results.merged({}, {**MACHINE, "checks": [{"name": name, "outcome": "FAILED"} for name in names]})
    after = results.merged(before, {**MACHINE, "checks": [{"name": "tests", "outcome": "passed"}]})
    assert [each["name"] for each in after["checks"]] == names
    assert after["checks"][0]["outcome"] == "passed"


@pytest.mark.parametrize("name", ["gpu", "cpu", "versions"])
def test_figures_of_another_machine_or_version_are_not_mixed_in(name):
    before = results.merged({}, {**MACHINE, "physics": rows(8)})
    after = results.merged(before, {**MACHINE, name: "another", "physics": rows(16)})
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
