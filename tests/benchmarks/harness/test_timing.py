import time
from dataclasses import dataclass

import pytest

from benchmarks.harness.timing import Timing, in_turn, median, ratios, timed, waited_for_core_s


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
