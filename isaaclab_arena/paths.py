"""Paths that people give, plain files, dated directories, and the time as a run's files write it."""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import ConfigError, Problem

# Return the current time in the format of a run's files.


def now(*, local: bool = False) -> str:
    """Return the time as ISO 8601 with time zone, to the millisecond.

    Args:
        local: Whether it is that of this node's time zone, not UTC.
    """
    time = datetime.now(UTC)
    return (time.astimezone() if local else time).isoformat(timespec="milliseconds")


# The one rule for paths that people give: a ``~`` in front is a home directory, and all else, ``$`` too, stays.


def expanded(given: Any) -> Any:
    """Return a value with the home directory in place of each ``~`` that begins a text or a path.

    It need not be known which of the texts are paths: no other begins with ``~/``. As in a shell, ``~name`` stays where
    there is no user of that name.

    Args:
        given: A text, a path, or mappings, lists and tuples of them; anything else is returned as it is.
    """
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
    """Return a path with the home directory in place of a ``~`` that begins it."""
    return Path(expanded(os.fspath(path)))


def typed_words(argv: Sequence[str] | None) -> list[str]:
    """Return the words of a command line, `expanded`, also what stands behind the first ``=`` as in ``--output=~/x``.

    Args:
        argv: The words after the program's name; None for those of this process.
    """
    words = sys.argv[1:] if argv is None else argv
    parts = (word.partition("=") for word in words)
    return [f"{expanded(name)}{equals}{expanded(value)}" for name, equals, value in parts]


# Check that a path names a plain file, because opening a pipe waits for ever, and a device may never end.

_KINDS = (
    (stat.S_ISDIR, "is a directory, not a file"),
    (stat.S_ISFIFO, "is a pipe, not a file; save what comes through it as a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
)


def not_a_plain_file(path: Path) -> str | None:
    """Return why what lies at a path, links followed, is no plain file; None where it is one. Nothing is opened.

    Args:
        path: What the user named, or what a file of the user's names.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "there is no such file"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"cannot be read: {reason}"
    if stat.S_ISREG(mode):
        return None
    return next((message for is_kind, message in _KINDS if is_kind(mode)), "is no plain file")


def refuse_unless_plain(path: Path, *, key: str | None = None) -> None:
    """Refuse what is no plain file, before anything opens it.

    Args:
        path: What the user named.
        key: The option that named it.

    Raises:
        ConfigError: With the file, and the key.
    """
    wrong = not_a_plain_file(path)
    if wrong is not None:
        raise ConfigError(Problem(wrong, file=str(path), key=key))


# Make directories named after the current time, each name only once.


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
