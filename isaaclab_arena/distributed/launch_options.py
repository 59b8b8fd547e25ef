"""Options that start a program as several ranks, and the files that a rank leaves for its launcher."""

import json
import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from isaaclab_arena.distributed.context import failure_file, run_directory_file
from isaaclab_arena.distributed.devices import joined_gpu_ids
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program to start as ranks: its command line, their number, and the directory for their output."""

    module: str  # started as `python -m <module>`; its `main(arguments)` does the same
    arguments: tuple[str, ...]
    num_processes: int
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables that differ from this process's
    # Directory for the ranks' output; None for ``launcher/`` in the directory that rank 0 announces.
    log_directory: Path | None = None
    waits_for_run: bool = True  # True to make it only after the ranks have made its parent
    wants_files: bool = True


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of programs that can start themselves on several GPUs, or as several ranks on the CPU."""

    gpu_ids: str | None = None
    """GPUs of this machine, one rank each: 0 1, all or none; indices count the GPUs of CUDA_VISIBLE_DEVICES."""
    nproc_per_node: int | None = None
    """Start this many ranks on this machine's CPU; excludes --gpu_ids."""
    launcher: Literal["torch", "torchrunx"] = "torch"
    """The launcher of several ranks; torchrunx (GPL-3) must be installed separately."""
    launcher_log_dir: str | None = None
    """Directory for the output of each rank; '' for none. By default launcher/ in the run's directory."""


def without_launch_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options of `LaunchOptions`, for the ranks."""
    return without_options(joined_gpu_ids(arguments), {option.name for option in fields(LaunchOptions)})


def with_empty_resume(arguments: Sequence[str], *, is_run: Callable[[str], bool]) -> list[str]:
    """Give ``--resume`` an empty value if no run follows it, because the next word may be another argument."""
    completed: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=False):
        completed += [argument, ""] if argument == "--resume" and not is_run(following) else [argument]
    return completed


def without_options(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return a command line without options `names` (underscores, no dashes); each takes one value."""
    kept: list[str] = []
    is_value = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if is_value:
            is_value = False
        elif name.startswith("--") and name.removeprefix("--").replace("-", "_") in names:
            is_value = not equals
        else:
            kept.append(argument)
    return kept


# Files that a rank leaves for its launcher: the directory of the run, and the reason of a failure.
# The file with the reason has torchrun's format and path, so that torchrun's report shows the cause too.

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """The failure of a rank."""

    rank: int
    message: str
    text: str  # for the user: the traceback, or only the message of an `ArenaError`
    recorded_ns: int  # the time of the record, by the clock of the file system [ns]

    @property
    def is_expected(self) -> bool:
        """True if the error was raised on purpose, so that its message is enough."""
        return self.text == self.message


@contextmanager
def failures_recorded() -> Iterator[None]:
    """Record the error that ends the ``with`` block, unless another rank caused it, and raise it again."""
    try:
        yield
    except PeerStoppedError:
        raise
    except Exception as error:
        if (path := failure_file()) is not None:
            kind = "" if isinstance(error, ArenaError) else f"{type(error).__name__}: "
            message = f"{kind}{error}"
            _leave_reason(path, message, message if kind == "" else "".join(traceback.format_exception(error)))
        raise


def announce_run_directory(directory: Path) -> None:
    """Announce the run's directory to the launcher, so that its logs go there too. Rank 0 only."""
    if (path := run_directory_file()) is not None:
        _leave(path, str(directory))


def read_run_directory(path: Path) -> Path | None:
    """Return the directory that rank 0 has announced in the file, None if there is none yet."""
    try:
        return Path(path.read_text(encoding="utf-8"))
    except OSError:
        return None


def leave_last_words(text: str) -> None:
    """Make torchrun end its report with this text, if torchrun started this rank."""
    # After a failure torchrun prints thirty lines below the ranks' output, and ends them with the record of the first
    # failed rank. This project's launcher prints no such lines.
    path = failure_file()
    if path is not None and run_directory_file() is None:
        _leave_reason(path, text, f"\n{text}")


def read_failure(path: Path, *, rank: int) -> FailureRecord | None:
    """Return the failure record of a rank, None if there is none."""
    try:
        recorded_ns = path.stat().st_mtime_ns
        content = json.loads(path.read_bytes())["message"]
        message, text = str(content["message"]), str(content["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return FailureRecord(rank=rank, message=message, text=text, recorded_ns=recorded_ns)


def _leave_reason(path: Path, message: str, text: str) -> None:
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    _leave(path, json.dumps({"message": {"message": message, "extraInfo": extra}}))


def _leave(path: Path, words: str) -> None:
    # Rename a complete file, so that the launcher never reads a part.
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        unfinished.write_text(words, encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        _LOG.debug("the launcher cannot be told", exc_info=True)
