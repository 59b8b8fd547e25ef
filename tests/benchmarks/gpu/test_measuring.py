import json
import time
from dataclasses import dataclass

from benchmarks.gpu.measuring import OUT_OF_TIME, GpuOptions, measure_all, unknown_keys


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
