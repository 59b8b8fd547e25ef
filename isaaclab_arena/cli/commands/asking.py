"""The question, tables, files and exit code that the commands that compare share."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isaaclab_arena.analysis.comparison import Question
from isaaclab_arena.analysis.comparison_files import TextTable
from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.logs import plain_text

NOT_COMPARABLE = 3
"""Exit code where nothing can be compared."""


def question_of(*, alpha: float, margin: float | None = None) -> Question:
    """Return what was asked on the command line.

    Raises:
        ConfigError: If a number is out of its range.
    """
    for name, value in (("alpha", alpha), ("margin", margin)):
        check_share(name, value)
    return Question(alpha=alpha, margin=margin)


def check_share(name: str, value: float | None) -> None:
    """Refuse an option that is not between 0 and 1.

    Raises:
        ConfigError: If it is not.
    """
    if value is not None and not 0.0 < value < 1.0:
        raise ConfigError(Problem(f"must be between 0 and 1, got {value:g}", key=f"--{name}"))


def kept(write: Callable[[], Path], *, way_out: str | None) -> Path | None:
    """Write an answer into its files; where the run that it is of takes none, say why on stderr.

    Args:
        write: Writes the files, and returns one of them.
        way_out: How they are written elsewhere; None where that was asked for, so that a failure is one.

    Returns:
        The file, None where nothing was written.

    Raises:
        StorageError: If it cannot be written, and ``way_out`` is None.
    """
    try:
        return write()
    except StorageError as error:
        if way_out is None:
            raise
        print(plain_text(f"nothing is kept of this: {error}; {way_out}"), file=sys.stderr)
        return None


def drawn(table: TextTable) -> Table:
    """Return a table for the console."""
    on_console = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for position, heading in enumerate(table.headings):
        on_console.add_column(heading, justify="left" if position == 0 else "right", overflow="fold")
    for row in table.rows:
        on_console.add_row(*(Text(plain_text(cell)) for cell in row))
    return on_console
