"""What a rank leaves for whoever started it: which directory the run writes to, and why the rank fails, if it does.

The latter is the file that torchrun asks its ranks for, in torchrun's format, so torchrun's report shows the cause too.
"""

import json
import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.context import failure_file, run_directory_file
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """Why a rank failed.

    Attributes:
        rank: Which rank.
        message: The error, on one line or several.
        text: What a person should see: the traceback, or the message alone for an error that is raised on purpose.
        recorded_ns: When it was written, by the clock of the file system [ns].
    """

    rank: int
    message: str
    text: str
    recorded_ns: int

    @property
    def is_expected(self) -> bool:
        """Whether the error was raised on purpose, so that its message says everything."""
        return self.text == self.message


@contextmanager
def failures_recorded() -> Iterator[None]:
    """Leave a record of the error that ends the ``with`` block, and let it go on.

    Having stopped because another rank did is no failure of this one's.
    """
    try:
        yield
    except PeerStoppedError:
        raise
    except Exception as error:
        record_failure(error, failure_file())
        raise


def announce_run_directory(directory: Path) -> None:
    """Tell the launcher which directory the run writes to, so that its logs can go there too; rank 0 does so."""
    path = run_directory_file()
    if path is not None:
        _leave(path, str(directory))


def read_run_directory(path: Path) -> Path | None:
    """Return the directory that rank 0 has announced, None while it has not.

    Args:
        path: Where it was told to say so.
    """
    try:
        return Path(path.read_text(encoding="utf-8"))
    except OSError:
        return None


def record_failure(error: Exception, path: Path | None) -> None:
    """Write why this rank fails, as a whole file or not at all; nothing where nobody asks for it.

    Args:
        error: What ended it.
        path: Where the launcher looks, None without one.
    """
    if path is None:
        return
    kind = "" if isinstance(error, ArenaError) else f"{type(error).__name__}: "
    message = f"{kind}{error}"
    text = message if isinstance(error, ArenaError) else "".join(traceback.format_exception(error))
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    _leave(path, json.dumps({"message": {"message": message, "extraInfo": extra}}))


def leave_last_words(text: str) -> None:
    """Have torchrun end its report with these words, where it is torchrun that has started this rank.

    torchrun prints thirty lines of its own below whatever a rank has shown before it leaves with a failure, and ends
    them with what the first rank to fail has left. A launcher of ours prints nothing there, and needs no such words.
    """
    path = failure_file()
    if path is not None and run_directory_file() is None:
        extra = {"py_callstack": f"\n{text}", "timestamp": str(int(time.time()))}
        _leave(path, json.dumps({"message": {"message": text, "extraInfo": extra}}))


def read_failure(path: Path, *, rank: int) -> FailureRecord | None:
    """Return the record that a rank has left, None if there is none.

    Args:
        path: Where it was told to leave it.
        rank: Which rank that is.
    """
    try:
        recorded_ns = path.stat().st_mtime_ns
        content = json.loads(path.read_bytes())["message"]
        message, text = str(content["message"]), str(content["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return FailureRecord(rank=rank, message=message, text=text, recorded_ns=recorded_ns)


def _leave(path: Path, words: str) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        unfinished.write_text(words, encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        _LOG.debug("the launcher cannot be told", exc_info=True)
