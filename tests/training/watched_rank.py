"""The trainer on a rank that notes the files it writes, and cannot read the one that FAILING_NAME names on rank 1."""

import errno
import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

from rsl_rl.utils import wandb_log_writer

RANK = os.environ.get("RANK", "0")
LOG = os.open(os.environ["SPY_FILE"] + RANK, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and RANK == "1" and str(arguments[0]).endswith(os.environ.get("FAILING_NAME", "//")):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(LOG, f"{arguments[0]}\n".encode())
    elif event == "os.rename":
        os.write(LOG, f"{arguments[1]}\n".encode())


def said(*_: Any, **__: Any) -> None:
    os.write(LOG, b"wandb\n")


if __name__ == "__main__":
    wandb_log_writer.wandb = SimpleNamespace(config=SimpleNamespace(update=said), init=said, log=said, finish=said)
    sys.addaudithook(note)
    runpy.run_module("isaaclab_arena.training.train", run_name="__main__", alter_sys=True)
