"""Set up logging for a process: the rank in every line, a file per rank, the console for the user."""

import logging
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isaaclab_arena.errors import StorageError

_FORMAT = "%(asctime)s [rank {rank}] %(levelname)s %(message)s"
_CONSOLE_FORMAT = "[rank {rank}] %(message)s"
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The two that join letters or keep them apart: scripts and emoji need them, and they steer nothing.
_JOINERS = frozenset("\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}")
_LAYOUT = frozenset("\n\t")


def plain_text(text: object, *, keep_lines: bool = False) -> str:
    """Return text without what could steer a terminal, turn its lines around or not be encoded.

    Args:
        text: What a name, a message or an exception says.
        keep_lines: Whether line breaks and tabs stay.
    """
    kept = _JOINERS | _LAYOUT if keep_lines else _JOINERS
    words = str(text)
    if words.isascii() and words.isprintable():
        return words
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) in _STEERING and character not in kept
        else character
        for character in words
    )


class _PlainFormatter(logging.Formatter):
    """Writes log lines that hold what users and their code said, and that steer nothing."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record), keep_lines=True)


class _LogFile(logging.FileHandler):
    """A log file; that it cannot be written is no reason to end a run, nor to say so at every line."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the name is logging's
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._tell_once(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file. Some file systems write only now, and say only now that they cannot."""
        try:
            super().close()
        except OSError as error:
            self._tell_once(error)

    def _tell_once(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            sys.stderr.write(plain_text(f"cannot write {self.baseFilename}: {error.strerror}") + "\n")


def set_up_console_logging(rank: int, *, level: int = logging.INFO) -> None:
    """Send this process's log lines to stderr, with its rank in front.

    Calling it again replaces the earlier set-up. Ranks other than 0 show warnings and errors only.

    Args:
        rank: This process's rank.
        level: Lowest level that rank 0 shows.
    """
    root = logging.getLogger("isaaclab_arena")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level if rank == 0 else max(level, logging.WARNING))
    console.setFormatter(_PlainFormatter(_CONSOLE_FORMAT.format(rank=rank)))
    root.addHandler(console)


@contextmanager
def log_file(path: Path, rank: int) -> Iterator[None]:
    """Also write this process's log lines, all of them, to ``path``, for the length of a ``with`` block.

    The file is created with its directory, or added to. It also gets the traceback of an error that ends
    the block.

    Raises:
        StorageError: If it cannot be created. Later failures are told once on the screen, and stop nothing.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_PlainFormatter(_FORMAT.format(rank=rank)))
    logger = logging.getLogger("isaaclab_arena")
    logger.addHandler(handler)
    try:
        yield
    except Exception:
        logger.debug("this is what ended it", exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()
