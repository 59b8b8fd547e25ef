"""Start the running program again as several ranks if its command line asks for it; what a rank tells its launcher."""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from isaaclab_arena.distributed import devices
from isaaclab_arena.distributed.context import FAILURE_FILE, RUN_DIRECTORY_FILE, TORCHRUNX_LOG_DIR, is_a_rank
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.garbage import collect_from_now_on

if TYPE_CHECKING:
    from isaaclab_arena.distributed.rank_processes import Launch

MIN_MOST_PROCESSES = 64
PROCESSES_PER_CORE = 4

_LOG = logging.getLogger(__name__)


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
    return without_options(devices.joined_gpu_ids(arguments), {option.name for option in fields(LaunchOptions)})


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


def launch_if_asked(
    options: LaunchOptions,
    *,
    module: str,
    arguments: Sequence[str],
    log_directory: Path | None = None,
    start: "Callable[[Launch], int] | None" = None,
) -> int | None:
    """Start this program once per rank if its options say so; return the exit code, None to continue here."""
    # Call this right after reading the command line, before any access to a GPU. With one device, this process
    # continues with that GPU alone. Ranks run ``python -m <module>`` with the same command line without the options of
    # `LaunchOptions`, and with torchrun's environment variables.
    # ``log_directory`` receives ``<date>/rank<r>.log``; None for ``launcher/`` in the run's directory, which rank 0
    # tells. ISAACLAB_ARENA_LAUNCHER_LOG_DIR, TORCHRUNX_LOG_DIR and ``--launcher_log_dir`` take precedence, in this
    # order; an empty value means no files.
    # ConfigError: options contradict each other or existing ranks, or a GPU or the launcher is missing.
    asked = [f"--{name}" for name in ("gpu_ids", "nproc_per_node") if getattr(options, name) is not None]
    # Each rank on the CPU loads torch.
    most, number = max(MIN_MOST_PROCESSES, PROCESSES_PER_CORE * (os.cpu_count() or 1)), options.nproc_per_node or 0
    way_out = "use CUDA_VISIBLE_DEVICES to choose GPUs for them, or this option in one process"
    because = "RANK or LOCAL_RANK is set, or srun or mpirun started several"
    too_many = f"{number} ranks are more than this machine can hold; at most {most} are started"
    add = "says how to start several ranks; add --gpu_ids or --nproc_per_node"
    for is_wrong, message, key in (
        (len(asked) > 1, "excludes --gpu_ids: it starts ranks on the CPU", "--nproc_per_node"),
        (options.nproc_per_node is not None and number < 1, f"must be at least 1, got {number}", "--nproc_per_node"),
        (number > most, too_many, "--nproc_per_node"),
        (asked and is_a_rank(), f"{because}, so this is one of several ranks already; {way_out}", "".join(asked)),
        (options.launcher != "torch" and not asked, add, "--launcher"),
    ):
        if is_wrong:
            raise ConfigError(message, key=key)
    if not asked:
        return None
    gpus: tuple[str, ...] = ()
    if options.gpu_ids is not None:
        gpus, note = devices.select_gpus(
            options.gpu_ids, mask=os.environ.get(devices.VISIBLE_DEVICES), visible_gpus=devices.selectable_gpu_count()
        )
        if note is not None:
            _LOG.info("--gpu_ids %s: %s", options.gpu_ids, note)
    num_processes, shown_gpus = options.nproc_per_node or max(1, len(gpus)), ",".join(gpus)
    if num_processes == 1:
        # CUDA has not started yet, and reads the variable only once.
        os.environ[devices.VISIBLE_DEVICES] = shown_gpus
        return None

    # The environment decides before the command line about the log directory. An empty text means no files.
    own_arguments = without_launch_options(arguments)
    key, wanted = "--launcher_log_dir", options.launcher_log_dir
    for name in (TORCHRUNX_LOG_DIR, "ISAACLAB_ARENA_LAUNCHER_LOG_DIR"):
        key, wanted = (name, os.environ[name]) if name in os.environ else (key, wanted)
    if wanted:
        try:
            Path(wanted).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make '{wanted}': {error.strerror}", key=key) from error

    # Ranks write into pipes, so they need the width of the terminal. Without a stdout there is no terminal either.
    variables = {devices.VISIBLE_DEVICES: shown_gpus}
    with suppress(AttributeError, OSError, ValueError):
        if sys.stdout.isatty():
            variables["COLUMNS"] = str(os.get_terminal_size(sys.stdout.fileno()).columns)
    # Most runs start no ranks, so they should not import torch's launcher.
    from isaaclab_arena.distributed import rank_processes  # noqa: PLC0415  slow to load

    launch = rank_processes.Launch(
        module=module,
        arguments=tuple(own_arguments),
        num_processes=num_processes,
        variables=variables,
        log_directory=Path(wanted).absolute() if wanted else log_directory,
        waits_for_run=not wanted,
        wants_files=wanted != "",
    )
    if start is None:
        collect_from_now_on()
        over_torchrunx = options.launcher == "torchrunx"
        start = rank_processes.run_ranks_over_torchrunx if over_torchrunx else rank_processes.run_ranks
    return start(launch)


# Files that a rank leaves for its launcher: the directory of the run, and the reason of a failure.
# The file with the reason has torchrun's format and path, so that torchrun's report shows the cause too.


@contextmanager
def failures_recorded() -> Iterator[None]:
    """Record the error that ends the ``with`` block, unless another rank caused it, and raise it again."""
    try:
        yield
    except PeerStoppedError:
        raise
    except Exception as error:
        if os.environ.get(FAILURE_FILE):
            kind = "" if isinstance(error, ArenaError) else f"{type(error).__name__}: "
            message = f"{kind}{error}"
            text = message if kind == "" else "".join(traceback.format_exception(error))
            extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
            leave_for_launcher(FAILURE_FILE, json.dumps({"message": {"message": message, "extraInfo": extra}}))
        raise


def has_started_this_rank() -> bool:
    """Whether this project's launcher, and no other, started this process as a rank."""
    return bool(os.environ.get(RUN_DIRECTORY_FILE))


def leave_last_words(text: str) -> None:
    """Make torchrun end its report with this text, if torchrun started this rank."""
    # After a failure torchrun prints thirty lines below the ranks' output, and ends them with the record of the first
    # failed rank. This project's launcher prints no such lines.
    if not has_started_this_rank():
        extra = {"py_callstack": f"\n{text}", "timestamp": str(int(time.time()))}
        leave_for_launcher(FAILURE_FILE, json.dumps({"message": {"message": text, "extraInfo": extra}}))


def leave_for_launcher(variable: str, words: str) -> None:
    """Write words into the file that a variable names, such as `RUN_DIRECTORY_FILE`, if the launcher has set it."""
    if not os.environ.get(variable):
        return
    path = Path(os.environ[variable])
    # Rename a complete file, so that the launcher never reads a part.
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        unfinished.write_text(words, encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        _LOG.debug("the launcher cannot be told", exc_info=True)
