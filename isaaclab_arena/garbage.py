"""Keeps Python from looking for garbage while nearly everything that is made stays, as during imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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


def _take_for_old() -> None:
    """Take what exists for old, as if it had been looked at: else Python looks through all of it, twice or more."""
    # Whoever has frozen objects wants to keep them so.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
