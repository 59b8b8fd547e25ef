"""Check that a path names a plain file, because opening a pipe waits for ever, and a device may never end."""

import stat
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem

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
