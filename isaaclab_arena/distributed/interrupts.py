"""Ctrl-C while a program starts, before it can stop in an orderly way."""

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a program that Ctrl-C ended."""


def leave_on_ctrl_c() -> None:
    """End this process at Ctrl-C with one line and exit code 130, until `raise_on_ctrl_c`; for programs only."""
    # An exception in the middle of an import shows a traceback, gets lost, or aborts a library written in C++. nohup
    # relies on an ignored signal.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_on_ctrl_c() -> None:
    """End the effect of `leave_on_ctrl_c`, if there was any."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def report_interruption() -> None:
    """Write the line of an interrupted start; one rank writes it for all."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"interrupted\n")


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    report_interruption()
    os._exit(INTERRUPTED)
