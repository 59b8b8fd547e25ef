import pytest

from benchmarks.gpu import results

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
