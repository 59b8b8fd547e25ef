"""Decides when Python looks for garbage, and when the C library joins memory that was freed."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LARGEST_LEFT_APART = 1  # M_MXFAST of glibc's malloc.h.

_objects_are_frozen = threading.Event()


def collect_later() -> None:
    """Collect no garbage until `collect_from_now_on`; a program says so before its imports, and nobody else does."""
    gc.disable()


def collect_from_now_on() -> None:
    """End what `collect_later` began, if it did."""
    if not gc.isenabled():
        _take_for_old()
        gc.enable()


@contextmanager
def without_collecting() -> Iterator[None]:
    """Collect no garbage within a ``with`` block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _take_for_old()
            gc.enable()


def join_freed_memory_at_once() -> None:
    """Leave no freed pieces of memory lying apart; a program says so once, and does nothing without glibc.

    glibc keeps small pieces that were freed apart from one another, and joins all of them when somebody asks for more
    than a kilobyte. Some hundred control steps leave so many that this takes 10 ms, at the end of an episode say:
    without it a control step of one `cartpole` takes 8 % less time, and one of an arm 2 % less.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_LARGEST_LEFT_APART, 0)


def _take_for_old() -> None:
    """Take what exists for old, as if it had been looked at: else Python looks through all of it, twice or more."""
    # Whoever has frozen objects wants to keep them so. Python counts them one by one, which takes a tenth of a second
    # where millions are frozen, so that is done only once in such a process.
    if _objects_are_frozen.is_set():
        return
    if gc.get_freeze_count() > 0:
        _objects_are_frozen.set()
        return
    gc.freeze()
    gc.unfreeze()
