"""Show results on stdout and mistakes on stderr, each once for all ranks."""

import atexit
import gc
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable

from rich.console import Console

from isaaclab_arena.distributed.context import DistributedContext, claimed_rank, take_rank_of_scheduler
from isaaclab_arena.distributed.launch_options import failures_recorded
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.logs import open_missing_streams, plain_text, set_up_console_logging

_LOG = logging.getLogger(__name__)
_FILE_COLUMNS = 10_000
"""In a file no row is folded and no column left out: whoever reads it can scroll."""

_LEAST_COLUMNS = 20


class _ResultsConsole(Console):
    """A console that says when its reader has gone, where rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        """Let the error out, which is being handled when this is called."""
        raise  # noqa: PLE0704  called from rich's except clause


def results_console() -> Console:
    """Return where results are shown: stdout, as wide as its terminal; a file and a pipe hold whole rows.

    COLUMNS says how wide the terminal at a pipe's other end is; a launcher sets it for its ranks.
    """
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((_FILE_COLUMNS, 0)).columns
    return _ResultsConsole(file=sys.stdout, highlight=False, width=width)


def as_text(show: Callable[[Console], None]) -> str:
    """Return what is shown on stdout as plain text, narrower by an indentation of two."""
    text = io.StringIO()
    shown = results_console() if isinstance(sys.stdout, io.TextIOBase) else Console(width=_FILE_COLUMNS)
    show(Console(file=text, highlight=False, width=max(shown.width - 2, _LEAST_COLUMNS), color_system=None))
    return text.getvalue().rstrip()


def show_results(show: Callable[[Console], None]) -> None:
    """Show results on stdout. That nobody can read them is no failure of the run: they are in its files."""
    # A process that was started without a stdout has none.
    if not isinstance(sys.stdout, io.TextIOBase):
        return
    try:
        show(results_console())
        sys.stdout.flush()
    except OSError as error:
        _LOG.warning("cannot show the results: %s", error.strerror)
        # Python flushes stdout once more at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_of(run: Callable[[], int]) -> int:
    """Run a command and turn what the user can mend into one message and an exit code.

    A mistake that every rank finds is told by rank 0 alone.

    Returns:
        What ``run`` returns; 2 for a mistake in what was asked for; 1 if the ranks cannot find each other or a file
        cannot be written; 130 after Ctrl-C.
    """
    open_missing_streams()
    # Python looks for cycles once more as it ends, which takes half a second with all that a run imports.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    set_up_console_logging(claimed_rank())
    try:
        with failures_recorded():
            take_rank_of_scheduler()
            return run()
    except PeerStoppedError as error:
        _LOG.debug("%s", error)
        return 1
    except KeyboardInterrupt:
        # Before the jobs run, nobody else listens for it.
        return 128 + signal.SIGINT
    except ArenaError as error:
        code = 2 if isinstance(error, ConfigError) else 1
        if code == 1 or speaks_for_all():
            _tell(error)
        return code
    except OSError as error:
        # A disk may fail at any moment, also where only a file's name was asked for.
        if error.filename is None:
            raise
        _LOG.debug("a file could not be used", exc_info=True)
        _tell(f"cannot use {error.filename}: {error.strerror}")
        return 1


def _tell(error: object) -> None:
    message = f"error: {plain_text(error, keep_lines=True)}"
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(message)


def speaks_for_all() -> bool:
    """Whether this is rank 0, or cannot tell which rank it is."""
    try:
        return DistributedContext.from_environment(device="cpu", visible_gpus=0).is_rank_zero
    except ConfigError:
        return True
