"""One logging set-up for a process: the rank in every line, a file per rank, the console for people."""

import logging
import sys
from pathlib import Path

_FORMAT = "%(asctime)s [rank {rank}] %(levelname)s %(message)s"
_CONSOLE_FORMAT = "[rank {rank}] %(message)s"


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
    console.setFormatter(logging.Formatter(_CONSOLE_FORMAT.format(rank=rank)))
    root.addHandler(console)


def add_log_file(path: Path, rank: int) -> None:
    """Also write this process's log lines, all of them, to ``path``, which is created with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(logging.Formatter(_FORMAT.format(rank=rank)))
    logging.getLogger("isaaclab_arena").addHandler(handler)
