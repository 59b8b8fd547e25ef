"""Has the C library join freed memory as it is freed, and not all of it at some later moment."""

import ctypes

_LARGEST_LEFT_APART = 1  # M_MXFAST of glibc's malloc.h.


def join_freed_memory_at_once() -> None:
    """Leave no freed pieces of memory lying apart; a program says so once, and does nothing without glibc.

    glibc keeps small pieces that were freed apart from one another, and joins all of them when somebody asks for more
    than a kilobyte. Some hundred control steps leave so many that this takes 10 ms, at the end of an episode say:
    without it a control step of one `cartpole` takes 8 % less time, and one of an arm 2 % less.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_LARGEST_LEFT_APART, 0)
