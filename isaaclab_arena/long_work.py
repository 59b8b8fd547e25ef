"""Saying now and then how far something long has come."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 2.0

Item = TypeVar("Item")


def told(
    items: Collection[Item],
    doing: str,
    *,
    interval_s: float = _INTERVAL_S,
    now_s: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = _LOG.info,
) -> Iterator[Item]:
    """Yield items, and say every now and then how many of them are done; of what is over soon nothing is said.

    Args:
        items: What is gone through.
        doing: What is done with them, such as ``checking job 'lift'``, to which ``4,000 of 12,000 episodes`` is added.
        interval_s: Time between two lines [s].
        now_s: Tells the time [s].
        say: Takes a line.
    """
    last_s = now_s()
    for number, item in enumerate(items):
        if now_s() - last_s >= interval_s:
            last_s = now_s()
            say(f"{doing}: {number:,} of {len(items):,} episodes")
        yield item
