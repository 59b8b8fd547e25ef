"""A program that starts itself as several ranks, as a test tells it: ``python -m tests.distributed.rank_program``.

Its command line is the launch options, then what to do and the directory to leave words in.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import tyro

from isaaclab_arena.distributed.context import (
    RUN_DIRECTORY_FILE,
    DistributedContext,
    die_with_parent,
    take_rank_of_scheduler,
)
from isaaclab_arena.distributed.devices import joined_gpu_ids, visible_gpu_count
from isaaclab_arena.distributed.launch import LaunchOptions, launch_if_asked, leave_for_launcher
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.process import program, watch_for_interruption

PROGRAM = "tests.distributed.rank_program"


def main(argv: Sequence[str]) -> int:
    with program() as ended:
        take_rank_of_scheduler()
        options, (what, directory) = tyro.cli(LaunchOptions, args=joined_gpu_ids(argv), return_unknown_args=True)
        launched = launch_if_asked(options, module=PROGRAM, arguments=argv, log_directory=None)
        if launched is not None:
            return launched
        context = DistributedContext.from_environment()
        if context.launched_by_torchrun:
            die_with_parent()
        return _DEEDS[what](context, Path(directory))
    return ended.code


def _tell_variables(context: DistributedContext, directory: Path) -> int:
    """Leave what this rank sees, and its command line."""
    seen = {
        "variables": dict(os.environ),
        "arguments": sys.argv[1:],
        "device": str(context.device),
        "visible_gpus": visible_gpu_count(),
    }
    (directory / f"rank{context.rank}.json").write_text(json.dumps(seen))
    if context.is_rank_zero:
        (directory / "run").mkdir(exist_ok=True)
        leave_for_launcher(RUN_DIRECTORY_FILE, str(directory / "run"))
        time.sleep(0.5)
    sys.stdout.write(f"rank {context.rank} on stdout\n")
    sys.stderr.write(f"rank {context.rank} on stderr\n")
    return 0


def _raise_while_others_wait(context: DistributedContext, _: Path) -> int:
    """Rank 1 fails while rank 0 waits for it in a collective, and would go on waiting after a signal."""
    with initialise(context):
        if context.rank == 1:
            raise ValueError("rank 1 has had enough")
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            time.sleep(1.5)
            raise
    return 0


def _linger_after_failing(context: DistributedContext, _: Path) -> int:
    """Rank 1 fails, but something in it goes on; rank 0 works on."""
    if context.rank == 1:
        threading.Thread(target=time.sleep, args=(100,)).start()
        raise ValueError("rank 1 stays all the same")
    time.sleep(100)
    return 0


def _be_killed_while_others_wait(context: DistributedContext, _: Path) -> int:
    with initialise(context):
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
    return 0


def _find_a_mistake(context: DistributedContext, _: Path) -> int:
    """Every rank finds it, rank 0 last."""
    if context.is_rank_zero:
        time.sleep(0.5)
    raise ConfigError("agent.gamma: must be below 1, got 7")


def _save_when_told(context: DistributedContext, directory: Path) -> int:
    """Work until a signal comes, then take half a second to save."""
    with watch_for_interruption() as interruption:
        (directory / f"rank{context.rank}.pid").write_text(str(os.getpid()))
        while not interruption.stop_requested():
            time.sleep(0.05)
        time.sleep(0.5)
        (directory / f"rank{context.rank}.saved").touch()
    return interruption.exit_code


_DEEDS = {
    "variables": _tell_variables,
    "raise": _raise_while_others_wait,
    "linger": _linger_after_failing,
    "killed": _be_killed_while_others_wait,
    "mistake": _find_a_mistake,
    "save": _save_when_told,
}

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
