"""What all benchmarks share."""

import os
import sys
from dataclasses import dataclass

import pytest

from benchmarks.gr00t.policy import Options as PolicyOptions
from benchmarks.harness.measure import Page, command_line, in_turn, ratios
from benchmarks.harness.runs import watched
from benchmarks.harness.workers import Worker
from benchmarks.runs.two_ranks import Options


def test_a_page_begins_with_its_command_and_the_machine(tmp_path):
    Page("two_ranks", "Two", Options(output=tmp_path / "new" / "page.md", pairs=2), "numpy").write("Text.", "Table")
    title, command, machine, *rest = (tmp_path / "new" / "page.md").read_text().split("\n\n")
    assert (title, command) == ("# Two", "    python -m benchmarks.runs.two_ranks --pairs 2")
    assert "load average" in machine
    assert "numpy " in machine
    assert rest == ["Text.", "Table\n"]


def test_a_command_says_what_is_not_the_default_but_for_the_output(tmp_path):
    options = PolicyOptions(batch_sizes=(1, 2), devices=("cpu",), compiled_on=(), output=tmp_path)
    words = command_line(options).split(" --")
    assert words[0] == "python -m benchmarks.gr00t.policy"
    assert "batch_sizes 1 2" in words
    assert not any(word.startswith("output") for word in words)


@dataclass(frozen=True)
class Figure:
    value: float


def test_calls_take_turns_and_each_goes_first_as_often_as_the_other():
    order: list[str] = []
    taken = in_turn({name: lambda name=name: order.append(name) for name in "ab"}, 4)
    assert "".join(order) == "abbaabba"
    assert {name: len(each) for name, each in taken.items()} == {"a": 4, "b": 4}


def test_ratios_are_of_neighbours_in_time():
    assert ratios([Figure(1.0), Figure(10.0)], [Figure(2.0), Figure(20.0)], "value") == [0.5, 0.5]
    with pytest.raises(ValueError, match="shorter"):
        ratios([Figure(1.0)], [], "value")


def test_a_process_is_watched_to_its_end_and_one_that_fails_is_told_with_its_last_words(tmp_path):
    program = "import time; held = bytearray(60_000_000); time.sleep(0.3); sum(range(3_000_000))"
    took = watched([sys.executable, "-c", program], tmp_path / "log.txt")
    assert took.ended - took.began > 0.3
    assert 0.0 < took.cpu_s < took.ended - took.began
    assert took.peak_mb > 60
    assert max(resident_mb for _, resident_mb in took.samples) > 60
    assert took.gpu_mb >= 0
    with pytest.raises(RuntimeError, match="ended with 1: so it is"):
        watched([sys.executable, "-c", "import sys; sys.exit('so it is')"], tmp_path / "log.txt")


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
