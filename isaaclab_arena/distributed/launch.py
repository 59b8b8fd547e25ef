"""Start the running program again as several ranks, on GPUs or on the CPU, if its command line asks for it."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from isaaclab_arena.distributed import devices
from isaaclab_arena.distributed.context import is_a_rank, launcher_log_variable
from isaaclab_arena.distributed.launch_options import Launch, LaunchOptions, without_launch_options
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.garbage import collect_from_now_on

MIN_MOST_PROCESSES = 64
PROCESSES_PER_CORE = 4

_LOG = logging.getLogger(__name__)


def launch_if_asked(
    options: LaunchOptions,
    *,
    module: str,
    arguments: Sequence[str],
    log_directory: Path | None = None,
    start: Callable[[Launch], int] | None = None,
) -> int | None:
    """Start this program once per rank if its options say so; return the exit code, None to continue here."""
    # Call this right after reading the command line, before any access to a GPU. With one device, this process
    # continues with that GPU alone. Ranks run ``python -m <module>`` with the same command line without the options of
    # `LaunchOptions`, and with torchrun's environment variables.
    # ``log_directory`` receives ``<date>/rank<r>.log``; None for ``launcher/`` in the directory of
    # `announce_run_directory`. ISAACLAB_ARENA_LAUNCHER_LOG_DIR, TORCHRUNX_LOG_DIR and ``--launcher_log_dir`` take
    # precedence, in this order; an empty value means no files.
    # ConfigError: options contradict each other or existing ranks, or a GPU or the launcher is missing.
    _refuse_contradictions(options)
    if options.gpu_ids is None and options.nproc_per_node is None:
        return None
    selection, num_processes = devices.GpuSelection(ids=()), options.nproc_per_node or 1
    if options.gpu_ids is not None:
        selection = devices.select_gpus(
            options.gpu_ids, mask=devices.visible_devices(), visible_gpus=devices.selectable_gpu_count()
        )
        num_processes = max(1, len(selection.ids))
        if selection.note is not None:
            _LOG.info("--gpu_ids %s: %s", options.gpu_ids, selection.note)
    shown_gpus = ",".join(selection.ids)
    if num_processes == 1:
        devices.narrow_gpus(shown_gpus)
        return None

    # The environment decides before the command line about the log directory. An empty text means no files.
    own_arguments = without_launch_options(arguments)
    variable = launcher_log_variable()
    key, wanted = ("--launcher_log_dir", options.launcher_log_dir) if variable is None else variable
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
    launch = Launch(
        module=module,
        arguments=tuple(own_arguments),
        num_processes=num_processes,
        variables=variables,
        log_directory=Path(wanted).absolute() if wanted else log_directory,
        waits_for_run=not wanted,
        wants_files=wanted != "",
    )
    if start is None:
        # Most runs start no ranks, so they should not import torch's launcher.
        from isaaclab_arena.distributed.rank_processes import (  # noqa: PLC0415  slow to load
            run_ranks,
            run_ranks_over_torchrunx,
        )

        collect_from_now_on()
        start = run_ranks_over_torchrunx if options.launcher == "torchrunx" else run_ranks
    return start(launch)


def _refuse_contradictions(options: LaunchOptions) -> None:
    asked = [
        (f"--{name}", value) for name in ("gpu_ids", "nproc_per_node") if (value := getattr(options, name)) is not None
    ]
    if len(asked) > 1:
        raise ConfigError("excludes --gpu_ids: it starts ranks on the CPU", key="--nproc_per_node")
    # Each rank on the CPU loads torch.
    most, number = max(MIN_MOST_PROCESSES, PROCESSES_PER_CORE * (os.cpu_count() or 1)), options.nproc_per_node
    if number is not None and not 1 <= number <= most:
        message = f"{number} ranks are more than this machine can hold; at most {most} are started"
        raise ConfigError(message if number > most else f"must be at least 1, got {number}", key="--nproc_per_node")
    if asked and is_a_rank():
        way_out = "use CUDA_VISIBLE_DEVICES to choose GPUs for them, or this option in one process"
        because = "RANK or LOCAL_RANK is set, or srun or mpirun started several"
        raise ConfigError(f"{because}, so this is one of several ranks already; {way_out}", key=asked[0][0])
    if options.launcher != "torch" and not asked:
        raise ConfigError("says how to start several ranks; add --gpu_ids or --nproc_per_node", key="--launcher")
