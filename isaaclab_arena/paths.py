"""Paths that people give, plain files, dated directories, and the time as a run's files write it."""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import count, islice
from pathlib import Path
from typing import Any


def now(*, local: bool = False) -> str:
    """Return the time as ISO 8601 to the millisecond, in UTC or in this node's time zone (`local`)."""
    time = datetime.now(UTC)
    return (time.astimezone() if local else time).isoformat(timespec="milliseconds")


# The one rule for paths from the user: a leading ``~`` is a home directory, and all else, ``$`` too, stays.


def expanded(given: Any) -> Any:
    """Expand the leading ``~`` of texts and paths, also within mappings, lists and tuples."""
    # No text but a path begins with ``~/``, so the caller need not know which texts are paths. As in a shell, ``~name``
    # stays if there is no user of that name.
    if isinstance(given, str):
        return os.path.expanduser(given) if given.startswith("~") else given  # noqa: PTH111  pathlib changes other texts
    if isinstance(given, os.PathLike):
        return given_path(os.fspath(given))
    if isinstance(given, Mapping):
        return {name: expanded(value) for name, value in given.items()}
    if type(given) in {list, tuple}:
        return type(given)(expanded(value) for value in given)
    return given


def given_path(path: "str | os.PathLike[str]") -> Path:
    """Return a path with its leading ``~`` expanded."""
    return Path(expanded(os.fspath(path)))


def typed_words(argv: Sequence[str] | None) -> list[str]:
    """Return a command line's words `expanded`, also after the first ``=`` as in ``--output=~/x``."""
    # None stands for the words of this process, after the program's name.
    words = sys.argv[1:] if argv is None else argv
    parts = (word.partition("=") for word in words)
    return [f"{expanded(name)}{equals}{expanded(value)}" for name, equals, value in parts]


_KINDS = (
    (stat.S_ISDIR, "is a directory, not a file"),
    (stat.S_ISFIFO, "is a pipe, not a file; save what comes through it as a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
)


def not_a_plain_file(path: Path) -> str | None:
    """Return the reason why a path (links followed) is not a plain file, None if it is. Opens nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"there is no such file{beside(path)}"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"cannot be read: {reason}"
    if stat.S_ISREG(mode):
        return None
    return next((message for is_kind, message in _KINDS if is_kind(mode)), "is no plain file")


def beside(path: Path) -> str:
    """Return ``"; did you mean 'x'?"`` for a path beside one that does not exist, empty if no name is near."""
    names: list[str] = []
    with suppress(OSError):
        names = [entry.name for entry in islice(os.scandir(path.parent), 1_000)]
    # Names of one or two letters are near to each other without being mistaken for each other.
    close = get_close_matches(path.name, names, n=1, cutoff=0.8) if 2 < len(path.stem) <= 255 else []
    return f"; did you mean '{path.with_name(close[0])}'?" if close else ""


def make_dated_directory(parent: Path, *, suffix: str = "", now: datetime | None = None) -> Path:
    """Make a new directory ``<parent>/<YYYY-mm-dd_HH-MM-SS><suffix>``, numbered if taken; OSError if that fails."""
    # Several programs may use the parent at the same moment, so only `mkdir` decides. The time is local.
    name = (now or datetime.now().astimezone()).strftime("%Y-%m-%d_%H-%M-%S") + suffix
    for attempt in count(1):
        path = parent / (name if attempt == 1 else f"{name}_{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
