"""Work that is captured once and replayed: the same values, in the same places."""

import logging
from threading import Thread

import pytest
import torch

from isaaclab_arena.sim.backend import Capture, Replayed, _graph_of, capture_on
from tests.sim.tape import tape

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


class Counters:
    """Keeps tensors, some of which it replaces."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.given = torch.zeros(3, device=device)
        self.sum = torch.zeros(3, device=device)
        self.newest = torch.zeros(3, device=device)
        self.second_newest = torch.zeros(3, device=device)

    def add(self) -> torch.Tensor:
        self.sum = self.sum + self.given
        self.second_newest, self.newest = self.newest, self.given * 1.0
        return self.sum * 10


class Counting:
    """Adds numbers up, replayed or not."""

    def __init__(self, capture: Capture | None, device: torch.device = CPU) -> None:
        self.counters = Counters(device)
        self.replayed = Replayed(self.counters.add, capture, keeper=self.counters, name="the sum")

    def add(self, number: float) -> list[list[float]]:
        """Answer, and all remembered values."""
        self.counters.given.fill_(number)
        given = self.replayed().clone()
        kept = self.counters.sum, self.counters.newest, self.counters.second_newest
        return [tensor.tolist() for tensor in (given, *kept)]


@pytest.mark.parametrize(("is_other_thread", "num_done"), [(False, 3), (True, 6)])
def test_the_work_is_done_twice_then_captured_and_never_done_again_but_by_another_thread(is_other_thread, num_done):
    done = []
    replayed = Replayed(lambda: done.append("work"), tape, name="nothing")
    thread = Thread(target=lambda: [replayed() for _ in range(6)])
    if is_other_thread:
        thread.start()
        thread.join()
    else:
        thread.run()
    assert len(done) == num_done


def test_replays_give_what_the_work_gives_in_the_same_places_also_of_what_is_changed_in_place_meanwhile():
    plain, replayed = Counting(None), Counting(tape)
    places = []
    for number in (1.0, 5.0, 2.0, 7.0, 3.0, 4.0, 6.0, 0.0):
        for each in (plain, replayed):
            each.counters.sum[1] = number
        assert replayed.add(number) == plain.add(number)
        places.append([tensor.data_ptr() for tensor in vars(replayed.counters).values()])
    assert places[3:] == [places[3]] * 5


def count_and_read(counters: Counters, capture: Capture | None) -> Replayed:
    """Return work that waits for the device."""

    def work() -> float:
        counters.sum = counters.sum + 1
        return float(counters.sum[0])

    return Replayed(work, capture, keeper=counters, name="the first number")


def lengthen(counters: Counters) -> Replayed:
    """Return work whose memory changes its shape."""

    def work() -> int:
        counters.sum = torch.cat((counters.sum, counters.given))
        return len(counters.sum)

    return Replayed(work, tape, keeper=counters, name="a list")


def never(work):
    raise RuntimeError("there are no graphs")


@pytest.mark.parametrize(
    ("replayed", "expected", "said"),
    [
        (count_and_read(Counters(), tape), [1.0, 2.0, 3.0, 4.0, 5.0], "aten._local_scalar_dense.default"),
        (lengthen(Counters()), [6, 9, 12, 15, 18], "'sum' is torch.float32 of shape (12,)"),
        (Replayed(lambda: 1.0, never, name="one"), [1.0] * 5, "there are no graphs"),
    ],
    ids=["waits for the device", "changes its shape", "cannot be captured"],
)
def test_work_that_cannot_be_replayed_is_done_step_by_step_for_ever_and_that_is_said_once(
    replayed, expected, said, caplog
):
    with caplog.at_level(logging.INFO):
        assert [replayed() for _ in range(5)] == expected
    (message,) = caplog.messages
    assert said in message
    assert capture_on(CPU) is None, "a CPU has no graphs"


NUMBERS, MASK = torch.arange(3.0), torch.tensor([True, False, True])


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.tensor([1.0]) + 1,
        lambda: NUMBERS[MASK],
        lambda: torch.nonzero(MASK),
        lambda: torch.unique(NUMBERS),
        lambda: NUMBERS.clone().index_put_((MASK,), torch.zeros(())),
    ],
    ids=["sends a constant", "chooses by a mask", "looks where", "looks how many", "writes by a mask"],
)
def test_work_that_makes_a_gpu_wait_is_never_captured(work):
    captured = []
    replayed = Replayed(work, lambda work: captured.append(work) or work, name="work")
    for _ in range(4):
        assert torch.equal(replayed(), work())
    assert captured == []


def test_a_tensor_that_somebody_else_replaces_ends_the_replays(caplog):
    plain, replayed = Counting(None), Counting(tape)
    with caplog.at_level(logging.INFO):
        for number in range(8):
            if number == 5:
                for each in (plain, replayed):
                    each.counters.sum = torch.full((3,), 100.0)
            assert replayed.add(1.0) == plain.add(1.0)
    assert "'sum'" in caplog.text


def test_after_the_tensors_that_it_reads_are_others_the_work_is_captured_anew():
    numbers = [torch.tensor([1.0, 2.0])]
    entries = torch.tensor([1, 0])
    replayed = Replayed(lambda: numbers[0][entries] * 2, tape, name="the double")
    assert [replayed().tolist() for _ in range(4)] == [[4.0, 2.0]] * 4
    numbers[0] = torch.tensor([3.0, 5.0])
    assert replayed().tolist() == [4.0, 2.0]
    replayed.forget()
    assert [replayed().tolist() for _ in range(4)] == [[10.0, 6.0]] * 4


@pytest.mark.gpu
def test_a_gpu_replays_what_single_kernels_do():
    plain, replayed = Counting(None, GPU), Counting(capture_on(GPU), GPU)
    for number in (1.0, 5.0, 2.0, 7.0, 3.0, 4.0):
        assert replayed.add(number) == plain.add(number)


@pytest.mark.gpu
def test_a_gpu_goes_on_kernel_by_kernel_where_work_waits_for_it(caplog):
    counters = Counters(GPU)
    replayed = count_and_read(counters, capture_on(GPU))
    with caplog.at_level(logging.INFO):
        assert [replayed() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert "is not replayed" in caplog.text
    assert counters.sum.tolist() == [5.0] * 3


@pytest.mark.gpu
def test_a_gpu_draws_random_numbers_after_a_capture_that_failed():
    numbers = torch.ones(1, device=GPU)

    def read() -> None:
        numbers.fill_(float(numbers + 1))

    with pytest.raises(RuntimeError):
        _graph_of(GPU, read)
    assert torch.cuda.current_stream(GPU) == torch.cuda.default_stream(GPU)
    assert torch.rand(3, device=GPU).max() < 1
