"""What all benchmarks share."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import tyro

from benchmarks import RESULTS, ROOT
from benchmarks.gr00t.policy import Options as PolicyOptions
from benchmarks.harness.coins import CoinOptions, Coins
from benchmarks.harness.environments import make_policy, success_rate, tally
from benchmarks.harness.measure import (
    Page,
    Table,
    Timing,
    command_line,
    in_turn,
    line_of,
    markdown_table,
    median,
    ratios,
    spread,
    timed,
    waited_for_core_s,
)
from benchmarks.harness.runs import Watched, watched
from benchmarks.harness.workers import Worker, module
from benchmarks.runs.two_ranks import Options
from isaaclab_arena.interfaces.episode import Outcome


@pytest.mark.parametrize(("rate", "length"), [(1.0, 3), (0.0, 7)])
def test_heads_succeeds_early_and_tails_runs_into_the_time_limit(rate, length):
    environment = Coins(CoinOptions(success_rate=rate, success_step=3, failure_step=7), 2)
    found = tally(environment, make_policy("zero_action"), 5)
    assert {record.length for record in found.records} == {length}
    assert found.count(Outcome.SUCCESS) == 5 * rate
    assert found.busy == 5 * length
    # The last of five episodes in two slots runs alone.
    assert found.steps == found.busy + length


def test_a_success_rate_has_its_interval():
    assert success_rate(195, 200) == "97.5 % [94.3, 98.9]"


WITH_PAGES = sorted(
    path for path in (ROOT / "benchmarks").glob("*/*.py") if "Options(PageOptions)" in path.read_text(encoding="utf-8")
)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_a_page_begins_with_its_command_and_the_machine(tmp_path):
    Page("two_ranks", "Two", Options(output=tmp_path / "new" / "page.md", pairs=2), "numpy").write("Text.", "Table")
    title, command, machine, *rest = (tmp_path / "new" / "page.md").read_text().split("\n\n")
    assert (title, command) == ("# Two", "    python -m benchmarks.runs.two_ranks --pairs 2")
    assert "load average" in machine
    assert "numpy " in machine
    assert rest == ["Text.", "Table\n"]


def test_a_page_goes_among_the_results_unless_told_otherwise():
    assert Page("two_ranks", "Two", Options()).path == RESULTS / "two_ranks.md"


def test_a_command_says_what_is_not_the_default_but_for_the_output(tmp_path):
    options = PolicyOptions(batch_sizes=(1, 2), devices=("cpu",), compiled_on=(), output=tmp_path)
    words = command_line(options).split(" --")
    assert words[0] == "python -m benchmarks.gr00t.policy"
    assert "batch_sizes 1 2" in words
    assert not any(word.startswith("output") for word in words)


@pytest.mark.parametrize("path", WITH_PAGES, ids=module_of)
def test_a_benchmark_with_a_page_reads_where_it_goes(path, tmp_path):
    options = tyro.cli(import_module(module_of(path)).Options, args=["--output", str(tmp_path / "page.md")])
    assert options.output == tmp_path / "page.md"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_committed_page_names_a_program_that_exists(path):
    text = path.read_text(encoding="utf-8")
    program = text.split("python -m ")[1].split()[0].rstrip("`.") if "python -m " in text else ""
    if program or path.stem != "camera_throughput":
        assert (ROOT / f"{program.replace('.', '/')}.py").is_file()


def test_columns_of_numbers_are_aligned_to_the_right():
    assert markdown_table(("a", "b"), [("x", "1")]) == ["| a | b |", "| --- | --: |", "| x | 1 |"]


def test_a_row_is_printed_as_soon_as_it_is_measured(capsys):
    table = Table("what", "times")
    table.add("a", 2)
    assert capsys.readouterr().out == f"{table}\n"
    assert str(table).splitlines()[-1] == "| a | 2 |"


def test_a_spread_is_the_median_with_the_smallest_and_the_largest():
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert spread([1000.0, 2000.0], 0) == "1,500 (1,000 to 2,000)"


def test_a_figure_is_read_from_the_line_of_a_page_that_has_its_name():
    page = "# Page\n\n| measure | figure |\n| --- | --: |\n| speed | 2.5 ms |\n"
    assert line_of(page, "speed") == ["2.5 ms"]
    with pytest.raises(LookupError, match="no line 'weight'"):
        line_of(page, "weight")


@dataclass(frozen=True)
class Figure:
    value: float


def test_calls_take_turns_and_each_goes_first_as_often_as_the_other():
    order: list[str] = []
    taken = in_turn({name: lambda name=name: order.append(name) for name in "ab"}, 4)
    assert "".join(order) == "abbaabba"
    assert {name: len(each) for name, each in taken.items()} == {"a": 4, "b": 4}


def test_rounds_that_warm_up_do_not_count():
    numbers = iter(range(10))
    assert in_turn({"a": lambda: next(numbers)}, 2, warm_up=3) == {"a": [3, 4]}


def test_time_asleep_is_no_cpu_time():
    took = timed(lambda: time.sleep(0.05))
    assert took.wall_s >= 0.05
    assert took.cpu_s < 0.04


def test_a_clock_of_another_process_can_be_given():
    clock = iter([10.0, 12.5])
    assert timed(lambda: None, lambda: next(clock)).cpu_s == 2.5


def test_ratios_are_of_neighbours_in_time():
    assert ratios([Figure(1.0), Figure(10.0)], [Figure(2.0), Figure(20.0)], "value") == [0.5, 0.5]
    with pytest.raises(ValueError, match="shorter"):
        ratios([Figure(1.0)], [], "value")


def test_a_median_is_that_of_one_figure():
    assert median([Timing(wall_s=wall, cpu_s=0.0) for wall in (1.0, 9.0, 2.0)], "wall_s") == 2.0


def test_a_thread_has_waited_for_a_core_no_longer_than_time_has_passed():
    waited_s = waited_for_core_s()
    took = timed(lambda: [time.sleep(0) for _ in range(100)])
    assert 0 <= waited_for_core_s() - waited_s <= took.wall_s + 1e-3


def test_a_process_is_watched_to_its_end(tmp_path):
    program = "import time; held = bytearray(60_000_000); time.sleep(0.3); sum(range(3_000_000))"
    took = watched([sys.executable, "-c", program], tmp_path / "log.txt")
    assert took.ended - took.began > 0.3
    assert 0.0 < took.cpu_s < took.ended - took.began
    assert took.peak_mb > 60
    assert max(resident_mb for _, resident_mb in took.samples) > 60
    assert took.gpu_mb >= 0


def test_the_memory_at_a_time_is_that_of_the_look_before():
    samples = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]
    took = Watched(began=0.0, ended=4.0, cpu_s=1.0, peak_mb=30.0, gpu_mb=0.0, samples=samples)
    assert [took.resident_mb(when) for when in (1.5, 2.0, 9.0)] == [10.0, 30.0, 20.0]


def test_a_process_that_fails_is_told_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 1: so it is"):
        watched([sys.executable, "-c", "import sys; sys.exit('so it is')"], tmp_path / "log.txt")


def test_what_is_noted_meanwhile_can_be_given(tmp_path):
    noted = []
    watched([sys.executable, "-c", "pass"], tmp_path / "log.txt", note=lambda: noted.append(1), interval_s=0.01)
    assert noted


PROGRAM = """
from benchmarks.harness.workers import serve
print("a library says hello")
serve({"ready": True}, lambda a, b: {"sum": a + b})
"""


def test_a_worker_answers_each_request_and_ends_with_its_input():
    worker = Worker([sys.executable, "-c", PROGRAM], os.environ)
    assert worker.answer() == {"ready": True}
    worker.ask(1, 2)
    assert worker.answer() == {"sum": 3}
    worker.close()
    with pytest.raises(RuntimeError, match="ended with 0 without an answer"):
        worker.answer()


def test_waiting_processes_load_nothing_heavy_by_the_harness():
    program = "import sys, benchmarks.harness.workers, benchmarks.harness.measure;"
    heavy = "sys.exit(bool({'torch', 'numpy', 'mujoco'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program + heavy], cwd=ROOT, check=False).returncode == 0


def test_a_module_is_run_by_this_interpreter():
    assert module("a.b", "--number", 1) == [sys.executable, "-m", "a.b", "--number", "1"]
