"""Stop a run on a signal: the first one ends it after the current step, a second one at once."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_SAME_REQUEST_S = 0.5


class Interruption:
    """Whether this process was told to stop. The loop checks it before every step.

    Args:
        insist: Acts on a second signal. By default it ends the process at once.

    Attributes:
        signal_number: The signal that was received, None if none was.
    """

    def __init__(self, insist: Callable[[int, FrameType | None], None] | None = None) -> None:
        self.signal_number: int | None = None
        self._since = 0.0
        self._insist = insist or _leave

    def stop_requested(self) -> bool:
        """Whether to stop at the next boundary between two steps."""
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """The exit code of an interrupted process, otherwise 0.

        That is 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP and, on Linux, 138 for SIGUSR1.
        """
        return 0 if self.signal_number is None else 128 + self.signal_number

    def receive(self, signal_number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second one, the same or another, ends the process immediately, or does what was asked for.

        Schedulers and launchers often send the same signal to a process twice, directly and through its parent.
        Signals within half a second of the first count as the same request.
        """
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number = signal_number
            self._since = now
        elif now - self._since > _SAME_REQUEST_S:
            self._insist(signal_number, frame)


@contextmanager
def watch_for_interruption() -> Iterator[Interruption]:
    """Listen for SIGINT, SIGTERM, SIGHUP and SIGUSR1 for the length of a ``with`` block, in the main thread only.

    Enter it after the ranks have agreed on the plan. Before that no loop checks for a stop, so a signal should end the
    process. Clusters send SIGUSR1 some time before they end a job.

    Yields:
        The object that the loop checks. The earlier handlers are restored at the end.

    Raises:
        ValueError: If called outside the main thread, where Python delivers no signals.
    """
    with _listening(Interruption()) as interruption:
        yield interruption


@contextmanager
def _listening(interruption: Interruption) -> Iterator[Interruption]:
    # An ignored signal stays ignored, because nohup relies on this to let a run outlive its terminal.
    # What was not set from Python (None) cannot be restored by it.
    heard = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, interruption.receive) for number in heard}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def watch_as_guest() -> Iterator[Interruption]:
    """Listen as `watch_for_interruption` does, in somebody else's program.

    A second signal does what it did before. Outside the main thread nothing is listened for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Interruption()
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def insist(signal_number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, frame)
        else:
            _leave(signal_number, frame)

    with _listening(Interruption(insist)) as interruption:
        yield interruption


def _leave(signal_number: int, frame: FrameType | None) -> None:
    del frame
    # A live display hides the cursor, and now cannot show it again.
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
    os._exit(128 + signal_number)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let signals that come during a ``with`` block act at its end; for what must not be left half done.

    Only the main thread hears signals, so elsewhere nothing is held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    earlier = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
