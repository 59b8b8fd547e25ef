"""Which stream Warp works in, and graphs: captured and replayed on the CPU, in streams that only take notes."""

from collections.abc import Callable
from threading import Thread

import pytest
import torch
import warp

from isaaclab_arena.sim.warp_kernels import Launcher, cpu_turn
from tests.sim.warp.fake_streams import between, fake_streams

CPU = torch.device("cpu")


@warp.kernel
def double(numbers: warp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]  Warp's own way to say it
    index = warp.tid()
    numbers[index] = 2.0 * numbers[index]


class Worker:
    """Doubles numbers in fake streams.

    Attributes:
        notes: What happened, in order.
        numbers: What is doubled.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.numbers = warp.ones(2, dtype=float, device="cpu")
        self.launcher = Launcher(CPU, streams=fake_streams(self.notes))

    def launch(self) -> None:
        self.notes.append("launch")
        warp.launch(double, dim=2, inputs=[self.numbers], device="cpu")

    def noted(self, call: Callable[[], object]) -> list[str]:
        """Events during a call."""
        self.notes.clear()
        call()
        return list(self.notes)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_the_first_time_is_launched_where_warp_may_free_what_it_needs_for_a_moment(worker):
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("blocking", "launch")
    assert worker.numbers.numpy().tolist() == [2.0, 2.0]


def test_a_graph_is_captured_and_replayed_where_no_other_thread_is_in_its_way(worker):
    worker.launcher.replay("double", worker.launch)
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("independent", "launch")
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("independent")
    assert worker.numbers.numpy().tolist() == [8.0, 8.0]


def test_what_may_be_compiled_is_ordered_with_torch_too(worker):
    def compile_and_launch() -> None:
        with worker.launcher.compiling():
            worker.launch()

    assert worker.noted(compile_and_launch) == between("blocking", "launch")


def test_graphs_that_are_forgotten_are_launched_again_with_the_new_arrays(worker):
    for _ in range(3):
        worker.launcher.replay("double", worker.launch)
    worker.launcher.forget_graphs()
    worker.numbers = warp.ones(2, dtype=float, device="cpu")
    assert worker.noted(lambda: worker.launcher.replay("double", worker.launch)) == between("blocking", "launch")
    worker.launcher.replay("double", worker.launch)
    assert worker.numbers.numpy().tolist() == [4.0, 4.0]


def test_each_kind_of_work_has_a_graph_of_its_own(worker):
    others = warp.ones(2, dtype=float, device="cpu")
    for _ in range(3):
        worker.launcher.replay("double", worker.launch)
        worker.launcher.replay("double others", lambda: warp.launch(double, dim=2, inputs=[others], device="cpu"))
    assert worker.numbers.numpy().tolist() == others.numpy().tolist() == [8.0, 8.0]


def test_a_capture_waits_for_threads_that_use_warp_on_the_cpu(worker):
    worker.launcher.replay("double", worker.launch)
    capture = Thread(target=worker.launcher.replay, args=("double", worker.launch))
    with cpu_turn():
        capture.start()
        capture.join(0.2)
        assert capture.is_alive()
    capture.join()
    assert worker.numbers.numpy().tolist() == [4.0, 4.0]


def test_torchs_work_is_captured_while_no_other_thread_works_with_warp():
    captured: list[str] = []
    launcher = Launcher(CPU, capture=lambda work: captured.append("captured") or work)
    assert launcher.capture is not None
    capture = Thread(target=launcher.capture, args=(lambda: None,))
    with launcher.work():
        capture.start()
        capture.join(0.2)
        assert capture.is_alive()
        assert captured == []
    capture.join()
    assert captured == ["captured"]


def test_a_launcher_of_the_cpu_captures_nothing_of_torch():
    assert Launcher(CPU).capture is None
