"""Show results on stdout and mistakes on stderr, each once for all ranks."""

import atexit
import gc
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.console import Console

from isaaclab_arena.distributed.context import DistributedContext, claimed_rank
from isaaclab_arena.distributed.launch import failures_recorded
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.logs import open_missing_streams, plain_text, set_up_console_logging

_LOG = logging.getLogger(__name__)
FILE_COLUMNS = 10_000
"""Width of a table in a file: no row is folded and no column left out, because the reader can scroll."""


class _ResultsConsole(Console):
    """A console that raises if its reader has gone, instead of rich's exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled at the call."""
        raise  # noqa: PLE0704  called from rich's except clause


def results_console() -> Console:
    """Return the console for results: stdout, as wide as its terminal; whole rows in a file and a pipe."""
    # COLUMNS is the width of the terminal at the other end of a pipe; a launcher sets it for its ranks.
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((FILE_COLUMNS, 0)).columns
    return _ResultsConsole(file=sys.stdout, highlight=False, width=width)


def show_results(show: Callable[[Console], None]) -> None:
    """Show results on stdout. A closed stdout does not fail the run, because the results are in its files."""
    # A process may have been started without stdout.
    if not isinstance(sys.stdout, io.TextIOBase):
        return
    try:
        show(results_console())
        sys.stdout.flush()
    except OSError as error:
        _LOG.warning("cannot show the results: %s", error.strerror)
        # Python flushes stdout once more at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class ExitCode:
    """The exit code of a program, filled in by `program`."""

    code: int = 0


@contextmanager
def program() -> Iterator[ExitCode]:
    """Run a program in the ``with`` block. Report an error of the user, and yield the place of its exit code."""
    # 2: an error in the request. 1: ranks cannot find each other, or a file cannot be written. 130: Ctrl-C. Only rank 0
    # reports an error that every rank finds.
    open_missing_streams()
    # Python collects cycles once more at exit, which takes half a second with all imports of a run.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    set_up_console_logging(claimed_rank())
    ended, message = ExitCode(), None
    try:
        with failures_recorded():
            yield ended
    except PeerStoppedError as error:
        _LOG.debug("%s", error)
        ended.code = 1
    except KeyboardInterrupt:
        # Before the jobs run, no other handler is installed.
        ended.code = 128 + signal.SIGINT
    except ArenaError as error:
        ended.code = 2 if isinstance(error, ConfigError) else 1
        # Rank 0 reports a mistake of the user for all, or each rank if its number is unknown.
        is_told = True
        with suppress(ConfigError):
            is_told = ended.code == 1 or DistributedContext.from_environment(device="cpu", visible_gpus=0).is_rank_zero
        if is_told:
            message = plain_text(error, keep_lines=True)
    except OSError as error:
        # A disk may fail at any moment, even if only a file's name was requested.
        if error.filename is None:
            raise
        _LOG.debug("a file could not be used", exc_info=True)
        ended.code, message = 1, plain_text(f"cannot use {error.filename}: {error.strerror}", keep_lines=True)
    if message is not None:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"error: {message}")
