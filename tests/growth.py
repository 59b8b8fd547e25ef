"""Whether work ends, and grows with its size and not its square, without bounds that a slower machine misses."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_time(cpu_s: float) -> Iterator[None]:
    """Interrupt what computes for too long, by the processor's time [s]; what waits for ever, pytest interrupts."""

    def late(*_: object) -> None:
        raise AssertionError(f"it did not end within {cpu_s} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def assert_grows_linearly(work: Callable[[int], object], *, size: int = 1_000) -> None:
    """Do work of one size and of ten times that size in this run, and compare the CPU time.

    The tenfold work takes about ten times as long where it is linear, and a hundred times where it is quadratic.

    Args:
        work: Does the work of a size; what it makes beforehand should be cheap beside it.
        size: The smaller size.
    """
    work(size)
    small_s, large_s = (min(_cpu_s(work, each) for _ in range(2)) for each in (size, 10 * size))
    assert large_s <= 30 * small_s, f"{large_s / small_s:.0f} times the CPU time for ten times the size"


def _cpu_s(work: Callable[[int], object], size: int) -> float:
    began_s = time.process_time()
    work(size)
    return time.process_time() - began_s
