"""The ranks of an evaluation that is called from Python: this process alone, a process group, or processes started."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from isaaclab_arena.distributed.context import DistributedContext, is_a_rank, variables_of_child, variables_of_group
from isaaclab_arena.distributed.devices.visible_gpus import selectable_gpu_count
from isaaclab_arena.distributed.process_group import initialise, ranks_of_one
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.results.freshness import TABLE as RESULTS_FILE

_MOST_TOLD = 4_000


def group_size() -> int | None:
    """Return the number of ranks of this process's group, None where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


@contextmanager
def ranks_here(*, device: str | None, alone: bool) -> Iterator[Ranks]:
    """Yield the ranks of the process group that exists, or this process alone, for the length of a ``with`` block.

    Args:
        device: Where to simulate, None for the rank's own choice.
        alone: Whether the others of a group take no part.

    Raises:
        ConfigError: If the process group does not match the launcher's environment variables.
    """
    size = group_size()
    if alone or size is None or size == 1:
        if device is None and torch.cuda.is_initialized():
            device = f"cuda:{torch.cuda.current_device()}"
        yield ranks_of_one(DistributedContext.from_environment({}, device=device))
        return
    variables = variables_of_group(dist.get_rank(), size)
    with initialise(DistributedContext.from_environment(variables, device=device)) as ranks:
        yield ranks


def run_on_ranks(
    arguments: Sequence[str], num_ranks: int, options: RunOptions, *, directory: Path, shows_progress: bool
) -> None:
    """Run the evaluation runner on several ranks, each a process of its own, and wait for them.

    Args:
        arguments: The runner's command line, without what starts ranks.
        num_ranks: How many ranks to start. Each gets a GPU where this machine has any and the options allow it.
        options: The options of the run.
        directory: The run's directory.
        shows_progress: Whether they show on stderr how they get on.

    Raises:
        ConfigError: If this process is one of several ranks already, or what is asked for cannot be done.
        ArenaError: If the run could not begin or go on, with the reason.
    """
    if is_a_rank() or group_size() is not None:
        message = "this process is one of several ranks already; leave num_ranks out, and all of them take part"
        raise ConfigError(Problem(message, key="num_ranks"))
    on_gpus = options.device != "cpu" and selectable_gpu_count() > 0
    launch = ["--gpu_ids", *map(str, range(num_ranks))] if on_gpus else ["--nproc_per_node", str(num_ranks)]
    if options.gpu_ids is not None or options.nproc_per_node is not None:
        raise ConfigError(Problem("excludes --gpu_ids and --nproc_per_node, which say the same", key="num_ranks"))
    command = [sys.executable, "-m", eval_runner.PROGRAM, *launch, *arguments]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # noqa: S603  this program itself
            command,
            stdout=subprocess.DEVNULL,
            stderr=None if shows_progress else stderr,
            env=variables_of_child(sys.path),
        )
        code = _ended(process)
        stderr.seek(0)
        told = stderr.read().decode(errors="replace")
    if code == 2:
        raise ConfigError(_reason(told))
    if code != 0 and not (directory / RESULTS_FILE).is_file():
        raise ArenaError(f"the ranks ended with exit code {code}: {_reason(told)}")


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process, which gets a Ctrl-C too; it comes out once the process has written what it had."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


def _reason(told: str) -> str:
    lines = told.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
    return "\n".join(lines[first:]).removeprefix("error: ")[-_MOST_TOLD:]
