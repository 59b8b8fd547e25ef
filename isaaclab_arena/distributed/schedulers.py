"""Read which rank a process is from what SLURM's srun and MPI's mpirun tell their processes."""

import re
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ConfigError

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
