"""Read this process's rank, and choose its device, from the launcher's environment variables."""

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from isaaclab_arena.distributed.devices.device_names import parse_count
from isaaclab_arena.distributed.devices.rank_device import choose_rank_device
from isaaclab_arena.distributed.devices.visible_gpus import visible_gpu_count
from isaaclab_arena.distributed.schedulers import rank_of_scheduler, variables_of_scheduler
from isaaclab_arena.errors import ConfigError

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_SHOWN = (*_REQUIRED, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NOWHERE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
_FAILURE_FILE = "TORCHELASTIC_ERROR_FILE"
_RUN_DIRECTORY_FILE = "ISAACLAB_ARENA_RUN_DIRECTORY_FILE"
_TORCHRUNX_LOG_DIR = "TORCHRUNX_LOG_DIR"
_SEARCH_PATH = "PYTHONPATH"
_SEARCH_PATH_BEFORE = "ISAACLAB_ARENA_PYTHONPATH_BEFORE"
_LOG_DIRECTORIES = ("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", _TORCHRUNX_LOG_DIR)


@dataclass(frozen=True, kw_only=True)
class DistributedContext:
    """This process among the ranks. Without a launcher: rank 0 of 1.

    Attributes:
        rank: Number of this process among all, from 0.
        local_rank: Number of this process on its machine, from 0.
        world_size: Number of processes.
        local_world_size: Number of processes on this machine.
        device: Device of this rank's simulation and, by default, its policy.
        device_reason: Why it is that device, for the log.
        visible_gpus: GPUs that this process can use.
        master_address: ``host:port`` where ranks find each other, None for a single process.
        attempt: Identifies this start of the ranks, so that a restart does not read the files of an earlier one.
        launched_by_torchrun: Whether torchrun is this process's parent.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_reason: str = "the default"
    visible_gpus: int = 0
    master_address: str | None = None
    attempt: str = "0"
    launched_by_torchrun: bool = False

    @property
    def is_distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.world_size > 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process reports for all ranks and merges their results."""
        return self.rank == 0

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, device: str | None = None, visible_gpus: int | None = None
    ) -> Self:
        """Read RANK, LOCAL_RANK and WORLD_SIZE, which belong together, and choose this rank's device.

        Does not initialise a GPU. Without these variables it is a single process; without LOCAL_WORLD_SIZE all ranks
        are on this node.

        Args:
            environ: Environment variables.
            device: ``--device`` as the user gave it, None for a GPU where there is one.
            visible_gpus: GPUs that this process can use; counted where None.

        Raises:
            ConfigError: If the variables are malformed or contradict each other, or the device does not exist.
        """
        world_size, rank, local_rank, local_world_size = _read_ranks(environ)
        gpus = visible_gpu_count() if visible_gpus is None else visible_gpus
        choice = choose_rank_device(
            device,
            local_rank=local_rank,
            local_world_size=local_world_size if world_size == 1 or "LOCAL_WORLD_SIZE" in environ else None,
            visible_gpus=gpus,
            environ=environ,
        )
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            device=choice.device,
            device_reason=choice.reason,
            visible_gpus=gpus,
            master_address=_read_master_address(environ) if world_size > 1 else None,
            attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            launched_by_torchrun="TORCHELASTIC_RUN_ID" in environ,
        )


def take_rank_of_scheduler(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set torch's variables in a process that srun or mpirun started as one of several; leave any other as it is.

    Call it before anything reads them; policies and other libraries do, too.

    Raises:
        ConfigError: If it is not certain where the ranks meet.
    """
    environ.update(variables_of_scheduler(environ))


def claimed_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return the rank unchecked, 0 if it is missing or malformed. It decides which process reports early errors."""
    text = environ.get("RANK", str(rank_of_scheduler(environ) or 0))
    return int(text) if text.isdecimal() else 0


def is_a_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether something has started this process as one of several ranks, or as the only one of them."""
    return "RANK" in environ or "LOCAL_RANK" in environ or rank_of_scheduler(environ) is not None


def variables_of_rank(
    rank: int,
    *,
    world_size: int,
    port: int,
    run_id: str,
    directory: Path,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the environment variables of one of several ranks on this machine, as torchrun would set them.

    Args:
        rank: The rank.
        world_size: Number of ranks, all on this machine.
        port: Port of the launcher's store, through which the ranks meet.
        run_id: Names this launch.
        directory: Directory for files that ranks leave for the launcher; see `failure_file` and `run_directory_file`.
        environ: The launcher's own variables.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **thread_variables(environ),
        _FAILURE_FILE: str(directory / f"rank{rank}.json"),
        _RUN_DIRECTORY_FILE: str(directory / "run_directory"),
    }


def variables_of_group(rank: int, world_size: int, environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment variables of one of the ranks of a process group that somebody else has opened.

    Args:
        rank: The rank in that group.
        world_size: Number of ranks of that group.
        environ: The launcher's variables. Where there was no launcher, all ranks are taken to be on one machine.
    """
    if "RANK" in environ:
        return environ
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    # Nobody connects there: the group exists.
    return {**environ, **{name: str(number) for name, number in ranks.items()}, **_NOWHERE}


def variables_of_child(search_path: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of another Python program that can import what this one can.

    Args:
        search_path: Where this one looks for modules.
        environ: Its own variables.
    """
    before = environ.get(_SEARCH_PATH_BEFORE, environ.get(_SEARCH_PATH, ""))
    path = os.pathsep.join(path or os.curdir for path in search_path)
    return {**environ, _SEARCH_PATH: path, _SEARCH_PATH_BEFORE: before}


def variables_of_worker(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of a program of another interpreter, which has packages of its own.

    A process that got its search path from `variables_of_child` would make it import this interpreter's packages.

    Args:
        environ: This process's variables.
    """
    variables = dict(environ)
    before = variables.pop(_SEARCH_PATH_BEFORE, None)
    if before is None:
        return variables
    variables.pop(_SEARCH_PATH, None)
    return {**variables, _SEARCH_PATH: before} if before else variables


def thread_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables for the ranks' threads: the user's, or else one thread each."""
    return {"OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1")}


def failure_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file in which this rank's launcher looks for the reason of a failure, None if it looks for none."""
    return Path(environ[_FAILURE_FILE]) if environ.get(_FAILURE_FILE) else None


def run_directory_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file in which this rank's launcher looks for the run's directory, None if it looks for none."""
    return Path(environ[_RUN_DIRECTORY_FILE]) if environ.get(_RUN_DIRECTORY_FILE) else None


def launcher_log_variable(environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the environment variable that names the launcher's log directory, and its value; None if none is set."""
    return next(((name, environ[name]) for name in _LOG_DIRECTORIES if name in environ), None)


def set_torchrunx_log_directory(directory: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set torchrunx's log directory for this process; an empty text means no logs."""
    environ[_TORCHRUNX_LOG_DIR] = directory


def _read_ranks(environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    if not any(name in environ for name in (*_REQUIRED, "LOCAL_WORLD_SIZE")):
        return 1, 0, 0, 1
    values = {name: parse_count(name, environ[name]) for name in _SHOWN[:4] if name in environ}
    world_size = values.get("WORLD_SIZE")
    if world_size == 1:
        values = {"RANK": 0, "LOCAL_RANK": 0, **values}
    missing = [name for name in _REQUIRED if name not in values]
    if world_size is None or missing:
        raise _inconsistent(f"{' and '.join(missing)} not set; a launcher sets all of {', '.join(_REQUIRED)}", environ)
    rank, local_rank = values["RANK"], values["LOCAL_RANK"]
    local_world_size = values.get("LOCAL_WORLD_SIZE", world_size)
    for mistaken, what in (
        (world_size < 1, "WORLD_SIZE must be at least 1"),
        (rank >= world_size, "RANK must be below WORLD_SIZE"),
        (not 1 <= local_world_size <= world_size, "LOCAL_WORLD_SIZE must be from 1 to WORLD_SIZE"),
        (local_rank >= local_world_size, "LOCAL_RANK must be below the number of processes on this machine"),
    ):
        if mistaken:
            raise _inconsistent(what, environ)
    return world_size, rank, local_rank, local_world_size


def _read_master_address(environ: Mapping[str, str]) -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise _inconsistent(f"with WORLD_SIZE above 1, {' and '.join(missing)} must be set too", environ)
    port = parse_count("MASTER_PORT", environ["MASTER_PORT"])
    if not 0 < port < 2**16:
        raise _inconsistent("MASTER_PORT must be from 1 to 65535", environ)
    return f"{environ['MASTER_ADDR']}:{port}"


def _inconsistent(what: str, environ: Mapping[str, str]) -> ConfigError:
    seen = ", ".join(f"{name}={environ[name]!r}" for name in _SHOWN if name in environ) or "none"
    return ConfigError(f"inconsistent environment variables: {what} (seen: {seen})")
