import pytest

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.heartbeat import in_a_thread, keep_writing


class FakeTime:
    """Pauses that nobody waits for, and pages that cost what they are said to."""

    def __init__(self, costs_s: list[float]) -> None:
        self.costs_s = costs_s
        self.cost_s = 0.0
        self.pauses_s: list[float] = []
        self.num_pages = 0

    def pause(self, pause_s: float) -> bool:
        self.pauses_s.append(pause_s)
        return self.num_pages == len(self.costs_s)

    def write(self) -> None:
        self.cost_s += self.costs_s[self.num_pages]
        self.num_pages += 1
        if self.cost_s > 100:
            raise ArenaError("the disk is full")

    def goes_on(self) -> None:
        keep_writing(self.write, self.pause, cost_clock=lambda: self.cost_s)


def test_a_page_is_written_every_thirty_seconds():
    time = FakeTime([0.1, 0.2, 0.05])
    time.goes_on()
    assert time.num_pages == 3
    assert time.pauses_s == [30.0, 30.0, 30.0, 30.0]


def test_pages_that_cost_much_come_more_rarely_so_that_they_take_one_percent():
    time = FakeTime([0.1, 2.0, 2.0])
    time.goes_on()
    assert time.pauses_s[2:] == pytest.approx([200.0, 200.0])
    assert sum(time.costs_s) <= 0.01 * sum(time.pauses_s)


def test_a_page_that_cannot_be_written_ends_nothing():
    time = FakeTime([200.0, 0.1])
    time.goes_on()
    assert time.num_pages == 2


def test_closing_does_not_wait_for_the_next_page():
    pages = []
    with in_a_thread(lambda closing: keep_writing(lambda: pages.append(1), closing.wait), name="report"):
        pass
    assert pages == []
