"""Decides when Python looks for garbage, and when the C library joins memory that was freed."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LARGEST_LEFT_APART = 1  # M_MXFAST of glibc's malloc.h.

_objects_are_frozen = threading.Event()


def collect_later() -> None:
    """Collect no garbage until `collect_from_now_on`. Only a program may call it, before its imports."""
    gc.disable()


def collect_from_now_on() -> None:
    """End the effect of `collect_later`, if there was any."""
    if gc.isenabled():
        return
    # Make all objects old, as if they had survived collections; otherwise Python searches them twice or more. A process
    # that has frozen objects wants to keep them so. Python counts them one by one, a tenth of a second for millions, so
    # the check happens only once in such a process.
    if not _objects_are_frozen.is_set():
        if gc.get_freeze_count() > 0:
            _objects_are_frozen.set()
        else:
            gc.freeze()
            gc.unfreeze()
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
            collect_from_now_on()


def join_freed_memory_at_once() -> None:
    """Make glibc join freed memory at once; a program calls it once. Without glibc it has no effect."""
    # glibc keeps small freed pieces apart, and joins all of them at a request for more than a kilobyte. After some
    # hundred control steps this takes 10 ms, for example at the end of an episode. Without it a control step of one
    # `cartpole` takes 8 % less time, and one of an arm 2 % less.
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_LARGEST_LEFT_APART, 0)
