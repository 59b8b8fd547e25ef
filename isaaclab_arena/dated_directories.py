"""Make directories named after the current time, each name only once."""

from datetime import datetime
from itertools import count
from pathlib import Path


def make_dated_directory(parent: Path, *, suffix: str = "", now: datetime | None = None) -> Path:
    """Make a directory ``<parent>/<YYYY-mm-dd_HH-MM-SS><suffix>`` that did not exist, with a number behind if need be.

    Args:
        parent: An existing directory, which several programs may use at the same moment.
        suffix: What follows the time in its name.
        now: The time, local; the present by default.

    Raises:
        OSError: If it cannot be made.
    """
    name = (now or datetime.now().astimezone()).strftime("%Y-%m-%d_%H-%M-%S") + suffix
    for attempt in count(1):
        path = parent / (name if attempt == 1 else f"{name}_{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
