"""Options that start a program as several ranks, and the command line that each rank gets."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from isaaclab_arena.distributed.devices.gpu_ids import joined_gpu_ids


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program to start as ranks: its command line, their number, and the directory for their output.

    Attributes:
        module: Started as ``python -m <module>``; its ``main(arguments)`` does the same.
        arguments: The program's command line.
        num_processes: Number of ranks.
        variables: Environment variables that differ from this process's.
        log_directory: Directory for the ranks' output, None for ``launcher/`` in the directory that rank 0 announces.
        waits_for_run: Whether to make ``log_directory`` only after the ranks have made its parent.
        wants_files: Whether to write log files.
    """

    module: str
    arguments: tuple[str, ...]
    num_processes: int
    variables: Mapping[str, str] = field(default_factory=dict)
    log_directory: Path | None = None
    waits_for_run: bool = True
    wants_files: bool = True


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of programs that can start themselves on several GPUs, or as several ranks on the CPU."""

    gpu_ids: str | None = None
    """GPUs of this machine, one rank each: 0 1, all or none; indices count what CUDA_VISIBLE_DEVICES shows."""
    nproc_per_node: int | None = None
    """Start this many ranks on this machine's CPU; excludes --gpu_ids."""
    launcher: Literal["torch", "torchrunx"] = "torch"
    """The launcher of several ranks; torchrunx (GPL-3) must be installed separately."""
    launcher_log_dir: str | None = None
    """Directory for the output of each rank; '' for none. By default launcher/ in the run's directory."""


def without_launch_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options of `LaunchOptions`, for the ranks.

    Args:
        arguments: What was typed after the program's name.
    """
    return without_options(joined_gpu_ids(arguments), {option.name for option in fields(LaunchOptions)})


def without_options(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return a command line without some options and their values.

    Args:
        arguments: What was typed after the program's name.
        names: The options, with underscores and without dashes in front; each takes one value.
    """
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
