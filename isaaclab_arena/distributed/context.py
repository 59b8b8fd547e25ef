"""This process's rank and device, from the environment variables of launchers and schedulers."""

import os
import re
import shlex
import sys
import zlib
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from isaaclab_arena.distributed.devices import choose_rank_device, parse_count, visible_gpu_count
from isaaclab_arena.errors import ConfigError

# Read which rank a process is from what SLURM's srun and MPI's mpirun tell their processes.

_PORTS = range(20_000, 30_000)
"""Below those that Linux hands out, so that no client sits on one by chance."""

_SRUN = "srun"
_MPIRUNS = {
    # PMIX_NAMESPACE is the name of the job, the same in all of its processes.
    "mpirun of Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    "mpirun of MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", None),
}


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One of the processes that a scheduler started together.

    Attributes:
        starter: What started it.
        variables: Its rank, as torch's variables.
        num_nodes: On how many nodes they are, None where nothing says so and it is more than one.
        master_address: The node of rank 0, None where that is not certain.
        together: What names these processes and no others, None where nothing does.
    """

    starter: str
    variables: Mapping[str, str]
    num_nodes: int | None
    master_address: str | None
    together: str | None


def variables_of_scheduler(environ: Mapping[str, str], typed: Sequence[str] = sys.orig_argv) -> Mapping[str, str]:
    """Return the variables that torch reads, none unless srun or mpirun started this process as one of several.

    A shell of sbatch or salloc is one process, and so is a step with one task. RANK,
    LOCAL_RANK and WORLD_SIZE have precedence if any is set: ``WORLD_SIZE=1`` makes a task a process of its own.

    Args:
        environ: The variables that the process was started with.
        typed: Its command line, for the message.

    Raises:
        ConfigError: If it is not certain where the ranks meet. The message holds the command to type instead.
    """
    task = _task(environ)
    if task is None:
        return {}
    meeting = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    if task.master_address is not None:
        meeting.setdefault("MASTER_ADDR", task.master_address)
    if task.together is not None:
        port = _PORTS[zlib.crc32(task.together.encode()) % len(_PORTS)]
        meeting.setdefault("MASTER_PORT", str(port))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in meeting]
    if missing:
        raise ConfigError(
            f"{task.starter} started this process {task.variables['WORLD_SIZE']} times, and where they meet is not "
            f"certain: set {' and '.join(missing)}, or type {_command(task, typed)}"
        )
    return {**task.variables, **meeting}


def rank_of_scheduler(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process among those that srun or mpirun started, None if it is alone."""
    task = _task(environ)
    return None if task is None else int(task.variables["RANK"])


def _task(environ: Mapping[str, str]) -> _Task | None:
    if any(name in environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")):
        return None
    # An mpirun inside an allocation of SLURM starts its own helpers with srun, whose variables its processes inherit.
    return next(filter(None, (_of_mpirun(starter, environ) for starter in _MPIRUNS)), None) or _of_srun(environ)


def _of_mpirun(starter: str, environ: Mapping[str, str]) -> _Task | None:
    *names, namespace = _MPIRUNS[starter]
    values = [environ.get(str(name), "") for name in names]
    if not all(value.isdecimal() for value in values) or int(values[1]) < 2:
        return None
    rank, size, local_rank, local_size = values
    is_one_node = size == local_size
    together = environ.get(namespace) if namespace else None
    return _Task(
        starter=starter,
        variables=_variables(rank, local_rank, size, local_size),
        num_nodes=1 if is_one_node else None,
        master_address="127.0.0.1" if is_one_node else None,
        together=together,
    )


def _of_srun(environ: Mapping[str, str]) -> _Task | None:
    size = environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", ""))
    rank, local_rank, step = (environ.get(f"SLURM_{name}", "") for name in ("PROCID", "LOCALID", "STEP_ID"))
    if not step or not all(value.isdecimal() for value in (size, rank, local_rank)) or int(size) < 2:
        return None
    num_nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", ""))
    is_one_node = num_nodes == "1"
    # Rank 0 is on the first node, unless the user lists the hosts of the tasks one by one.
    is_in_order = "arbitrary" not in environ.get("SLURM_DISTRIBUTION", "")
    first = _first_host(environ.get("SLURM_STEP_NODELIST", "")) if is_in_order else None
    on_each = _tasks_on_each_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = environ.get("SLURM_NODEID", "")
    here = on_each[int(node)] if node.isdecimal() and int(node) < len(on_each) else None
    job = environ.get("SLURM_JOB_ID")
    return _Task(
        starter=_SRUN,
        variables=_variables(rank, local_rank, size, size if is_one_node else here),
        num_nodes=int(num_nodes) if num_nodes.isdecimal() else None,
        master_address="127.0.0.1" if is_one_node else first,
        together=None if job is None else f"{job}.{step}",
    )


def _variables(rank: str, local_rank: str, size: str, local_size: "str | int | None") -> dict[str, str]:
    variables = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size}
    return variables if local_size is None else {**variables, "LOCAL_WORLD_SIZE": str(local_size)}


def _first_host(hosts: str) -> str | None:
    """Return the first name of a list of SLURM's, such as ``gpu[07-09,12],login1``; None where it cannot be told."""
    found = re.match(r"([\w.-]+)(?:\[(\d+)[^\[\]]*\]([\w.-]*))?(?:,|$)", hosts)
    return None if found is None else "".join(part or "" for part in found.groups())


def _tasks_on_each_node(text: str) -> list[int]:
    """Return the number of tasks of each node: 2, 2, 2, 1 for ``2(x3),1``; an empty list if malformed."""
    found = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    return [int(each[1]) for each in found if each for _ in range(int(each[2] or 1))] if all(found) else []


def _command(task: _Task, typed: Sequence[str]) -> str:
    """Return the command that does with torchrun what was typed, with what the user has to fill in in <>."""
    program = list(typed[1:])
    while program and program[0].startswith("-") and program[0] != "-m":
        program.pop(0)
    if program and Path(program[0]).name == "isaaclab-arena":
        program[:1] = ["-m", "isaaclab_arena.cli"]
    torchrun, shown = "python -m torch.distributed.run", shlex.join(program)
    size = int(task.variables["WORLD_SIZE"])
    if task.num_nodes == 1:
        return f"once, without {task.starter.split()[0]}: {torchrun} --nproc_per_node={size} {shown}"
    nodes = "<nodes>" if task.num_nodes is None else str(task.num_nodes)
    here = task.variables.get("LOCAL_WORLD_SIZE", "<processes per node>")
    return (
        f"once on each node: {torchrun} --nnodes={nodes} --node_rank=<number of the node, from 0> "
        f"--master_addr=<name of node 0> --master_port=29500 --nproc_per_node={here} {shown}"
    )


# Read this process's rank, and choose its device, from the launcher's environment variables.

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
