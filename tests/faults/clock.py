"""A clock that somebody sets back while a run goes on."""

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from itertools import count
from typing import Any, Self

_HOUR_S = 3600.0
_LOOKS_BETWEEN_JUMPS = 7


def set_clock_back_now_and_then() -> None:
    """Set the clock that this process reads back by an hour at every seventh look, for the rest of its life."""
    looks = count(1)
    read: Callable[[], float] = time.time

    def back_s() -> float:
        return next(looks) // _LOOKS_BETWEEN_JUMPS * _HOUR_S

    class JumpingDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - timedelta(seconds=back_s())

    time.time = lambda: read() - back_s()
    for name, module in list(sys.modules.items()):
        if name.startswith("isaaclab_arena") and getattr(module, "datetime", None) is datetime:
            changed: Any = module
            changed.datetime = JumpingDatetime
