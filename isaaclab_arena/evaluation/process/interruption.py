"""Stop a run on a signal: the first one ends it after the current step, a second one at once."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_SAME_REQUEST_S = 0.5


class Interruption:
    """Whether this process was told to stop. The loop checks it before every step.

    Attributes:
        signal_number: The signal that was received, None if none was.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = 0.0

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
        """Record a signal; a second one, the same or another, ends the process immediately.

        Schedulers and launchers often send the same signal to a process twice, directly and through its parent.
        Signals within half a second of the first count as the same request.
        """
        del frame
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number = signal_number
            self._since = now
        elif now - self._since > _SAME_REQUEST_S:
            _show_cursor()
            os._exit(128 + signal_number)


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
    interruption = Interruption()
    # An ignored signal stays ignored, because nohup relies on this to let a run outlive its terminal.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, interruption.receive) for number in heard}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show_cursor() -> None:
    # A live display hides the cursor, and now cannot show it again.
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
