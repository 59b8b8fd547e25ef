"""The question, files and exit code that the commands that compare share."""

import sys
from collections.abc import Callable
from pathlib import Path

from isaaclab_arena.analysis.comparison import Question
from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.logs import plain_text

NOT_COMPARABLE = 3
"""Exit code where nothing can be compared."""


def question_of(*, alpha: float, margin: float | None = None) -> Question:
    """Return the question of the command line; ConfigError if a number is out of range."""
    for name, value in (("alpha", alpha), ("margin", margin)):
        check_share(name, value)
    return Question(alpha=alpha, margin=margin)


def check_share(name: str, value: float | None) -> None:
    """Refuse by ConfigError an option that is not between 0 and 1."""
    if value is not None and not 0.0 < value < 1.0:
        raise ConfigError(f"must be between 0 and 1, got {value:g}", key=f"--{name}")


def kept(write: Callable[[], Path], *, way_out: str | None) -> Path | None:
    """Write an answer into files of its run; return one of them, None (and a hint on stderr) if not writable."""
    try:
        return write()
    except StorageError as error:
        # ``way_out`` is None if the user requested the file, so that its failure is an error.
        if way_out is None:
            raise
        print(plain_text(f"nothing is kept of this: {error}; {way_out}"), file=sys.stderr)
        return None
