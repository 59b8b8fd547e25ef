"""This process among the ranks: its rank and device from the environment variables, its threads, and its end."""

import ctypes
import logging
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import torch

from isaaclab_arena.distributed.devices import choose_rank_device, parse_count, visible_gpu_count
from isaaclab_arena.errors import ConfigError

# Read a process's rank from the variables that SLURM's srun and MPI's mpirun set.

_PORTS = range(20_000, 30_000)
"""Below those that Linux hands out, so that no client sits on one by chance."""

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
    """One of the processes that a scheduler started together."""

    starter: str  # the program that started it
    variables: Mapping[str, str]  # its rank, as torch's variables
    num_nodes: int | None  # None if unknown and more than one
    master_address: str | None  # the node of rank 0, None if uncertain
    together: str | None  # a name that only these processes share, None if there is none


def take_rank_of_scheduler(
    environ: MutableMapping[str, str] = os.environ, typed: Sequence[str] = sys.orig_argv
) -> None:
    """Set torch's variables in a process of srun or mpirun; ConfigError if it is uncertain where ranks meet."""
    # Call this before any other code reads the variables; policies and other libraries do, too.
    # A shell of sbatch or salloc is one process, and so is a step with one task. RANK, LOCAL_RANK or WORLD_SIZE takes
    # precedence if set: ``WORLD_SIZE=1`` makes a task independent. The error message holds the command to type instead
    # (``typed`` is the command line).
    task = _task(environ)
    if task is None:
        return
    meeting = {name: environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
    if task.master_address is not None:
        meeting.setdefault("MASTER_ADDR", task.master_address)
    # All processes compute the same port from their common name, without a message.
    if task.together is not None:
        port = _PORTS[zlib.crc32(task.together.encode()) % len(_PORTS)]
        meeting.setdefault("MASTER_PORT", str(port))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in meeting]
    if not missing:
        environ.update({**task.variables, **meeting})
        return

    # The torchrun command for the typed one has <> around the values that the user must fill in.
    program = list(typed[1:])
    while program and program[0].startswith("-") and program[0] != "-m":
        program.pop(0)
    if program and Path(program[0]).name == "isaaclab-arena":
        program[:1] = ["-m", "isaaclab_arena.cli"]
    torchrun, shown, size = "python -m torch.distributed.run", shlex.join(program), task.variables["WORLD_SIZE"]
    if task.num_nodes == 1:
        command = f"once, without {task.starter.split()[0]}: {torchrun} --nproc_per_node={int(size)} {shown}"
    else:
        nodes = "<nodes>" if task.num_nodes is None else str(task.num_nodes)
        here = task.variables.get("LOCAL_WORLD_SIZE", "<processes per node>")
        command = (
            f"once on each node: {torchrun} --nnodes={nodes} --node_rank=<number of the node, from 0> "
            f"--master_addr=<name of node 0> --master_port=29500 --nproc_per_node={here} {shown}"
        )
    raise ConfigError(
        f"{task.starter} started this process {size} times, and the address where they meet is unknown: set "
        f"{' and '.join(missing)}, or type {command}"
    )


def _task(environ: Mapping[str, str]) -> _Task | None:
    if any(name in environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")):
        return None
    # An mpirun inside an allocation of SLURM starts its own helpers with srun, whose variables its processes inherit.
    for starter, (*names, namespace) in _MPIRUNS.items():
        values = [environ.get(str(name), "") for name in names]
        if not all(value.isdecimal() for value in values) or int(values[1]) < 2:
            continue
        is_one_node = values[1] == values[3]
        return _Task(
            starter=starter,
            variables=dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), values, strict=True)),
            num_nodes=1 if is_one_node else None,
            master_address="127.0.0.1" if is_one_node else None,
            together=environ.get(namespace) if namespace else None,
        )
    size = environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", ""))
    rank, local_rank, step = (environ.get(f"SLURM_{name}", "") for name in ("PROCID", "LOCALID", "STEP_ID"))
    if not step or not all(value.isdecimal() for value in (size, rank, local_rank)) or int(size) < 2:
        return None
    num_nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", ""))
    is_one_node = num_nodes == "1"

    # Rank 0 is on the first node, unless the user lists the hosts of the tasks one by one. A list of hosts may be
    # ``gpu[07-09,12],login1``; a malformed one names no first host.
    hosts = re.match(r"([\w.-]+)(?:\[(\d+)[^\[\]]*\]([\w.-]*))?(?:,|$)", environ.get("SLURM_STEP_NODELIST", ""))
    is_in_order = "arbitrary" not in environ.get("SLURM_DISTRIBUTION", "")
    first = "".join(part or "" for part in hosts.groups()) if hosts is not None and is_in_order else None

    # ``2(x3),1`` stands for nodes with 2, 2, 2 and 1 tasks. A malformed text gives no number.
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    found = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    on_each = [int(each[1]) for each in found if each for _ in range(int(each[2] or 1))] if all(found) else []

    node = environ.get("SLURM_NODEID", "")
    variables = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size}
    if is_one_node:
        variables["LOCAL_WORLD_SIZE"] = size
    elif node.isdecimal() and int(node) < len(on_each):
        variables["LOCAL_WORLD_SIZE"] = str(on_each[int(node)])
    job = environ.get("SLURM_JOB_ID")
    return _Task(
        starter="srun",
        variables=variables,
        num_nodes=int(num_nodes) if num_nodes.isdecimal() else None,
        master_address="127.0.0.1" if is_one_node else first,
        together=None if job is None else f"{job}.{step}",
    )


# Read this process's rank, and choose its device, from the launcher's environment variables.

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_SHOWN = (*_REQUIRED, "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SEARCH_PATH = "PYTHONPATH"
_SEARCH_PATH_BEFORE = "ISAACLAB_ARENA_PYTHONPATH_BEFORE"

FAILURE_FILE = "TORCHELASTIC_ERROR_FILE"
"""The variable with the file in which the launcher looks for the reason of this rank's failure."""
RUN_DIRECTORY_FILE = "ISAACLAB_ARENA_RUN_DIRECTORY_FILE"
"""The variable with the file in which the launcher looks for the run's directory."""
TORCHRUNX_LOG_DIR = "TORCHRUNX_LOG_DIR"
"""The variable with torchrunx's log directory; an empty text means no logs."""


@dataclass(frozen=True, kw_only=True)
class DistributedContext:
    """This process among the ranks. Without a launcher: rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    # The device of the simulation and, by default, the policy.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_reason: str = "the default"  # for the log
    master_address: str | None = None  # `host:port` where ranks meet, None for a single process
    # The number of this start of the ranks, so that a restart does not read the files of an earlier one.
    attempt: str = "0"
    launched_by_torchrun: bool = False  # True if torchrun is this process's parent

    @property
    def is_distributed(self) -> bool:
        """True if there are other ranks."""
        return self.world_size > 1

    @property
    def is_rank_zero(self) -> bool:
        """True for the process that reports for all ranks and merges their results."""
        return self.rank == 0

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, device: str | None = None, visible_gpus: int | None = None
    ) -> Self:
        """Read the launcher's variables and choose the device; ConfigError if inconsistent. Initialises no GPU."""
        # ``device`` is the user's ``--device``, None for a GPU if there is one. Without any of the variables it is a
        # single process, which may also set WORLD_SIZE alone. Without LOCAL_WORLD_SIZE all ranks are on this node.
        values = {name: parse_count(name, environ[name]) for name in _SHOWN[:4] if name in environ}
        if not values or values.get("WORLD_SIZE") == 1:
            values = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, **values}
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            required = ", ".join(_REQUIRED)
            raise _inconsistent(f"{' and '.join(missing)} not set; a launcher sets all of {required}", environ)
        rank, local_rank, world_size = (values[name] for name in _REQUIRED)
        local_world_size = values.get("LOCAL_WORLD_SIZE", world_size)
        for mistaken, problem in (
            (world_size < 1, "WORLD_SIZE must be at least 1"),
            (rank >= world_size, "RANK must be below WORLD_SIZE"),
            (not 1 <= local_world_size <= world_size, "LOCAL_WORLD_SIZE must be from 1 to WORLD_SIZE"),
            (local_rank >= local_world_size, "LOCAL_RANK must be below the number of processes on this machine"),
        ):
            if mistaken:
                raise _inconsistent(problem, environ)

        # Several ranks on a machine share its GPUs.
        chosen, reason = choose_rank_device(
            device,
            local_rank=local_rank,
            local_world_size=local_world_size if world_size == 1 or "LOCAL_WORLD_SIZE" in environ else None,
            visible_gpus=visible_gpu_count() if visible_gpus is None else visible_gpus,
            environ=environ,
        )

        # Several ranks need an address at which they meet.
        master_address = None
        if world_size > 1:
            missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
            if missing:
                raise _inconsistent(f"with WORLD_SIZE above 1, {' and '.join(missing)} must be set too", environ)
            port = parse_count("MASTER_PORT", environ["MASTER_PORT"])
            if not 0 < port < 2**16:
                raise _inconsistent("MASTER_PORT must be from 1 to 65535", environ)
            master_address = f"{environ['MASTER_ADDR']}:{port}"
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            device=chosen,
            device_reason=reason,
            master_address=master_address,
            attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            launched_by_torchrun="TORCHELASTIC_RUN_ID" in environ,
        )


def claimed_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return the unchecked rank, 0 if missing or malformed. It decides which process reports early errors."""
    task = _task(environ)
    text = environ.get("RANK", "0" if task is None else task.variables["RANK"])
    return int(text) if text.isdecimal() else 0


def is_a_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher or a scheduler started this process as a rank, even as the only one."""
    return "RANK" in environ or "LOCAL_RANK" in environ or _task(environ) is not None


def variables_of_group(rank: int, world_size: int, environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the environment variables of a rank of a process group that another program opened."""
    # Without a launcher, all ranks are assumed to be on one machine.
    if "RANK" in environ:
        return environ
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    # No rank connects to this address, because the group exists.
    nowhere = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    return {**environ, **{name: str(number) for name, number in ranks.items()}, **nowhere}


def variables_of_child(search_path: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of another Python program with this program's module search path."""
    before = environ.get(_SEARCH_PATH_BEFORE, environ.get(_SEARCH_PATH, ""))
    path = os.pathsep.join(path or os.curdir for path in search_path)
    return {**environ, _SEARCH_PATH: path, _SEARCH_PATH_BEFORE: before}


def variables_of_worker(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of a program of another interpreter, which has its own packages."""
    # A search path from `variables_of_child` would make it import this interpreter's packages.
    variables = dict(environ)
    before = variables.pop(_SEARCH_PATH_BEFORE, None)
    if before is None:
        return variables
    variables.pop(_SEARCH_PATH, None)
    return {**variables, _SEARCH_PATH: before} if before else variables


def _inconsistent(problem: str, environ: Mapping[str, str]) -> ConfigError:
    seen = ", ".join(f"{name}={environ[name]!r}" for name in _SHOWN if name in environ) or "none"
    return ConfigError(f"inconsistent environment variables: {problem} (seen: {seen})")


_PR_SET_PDEATHSIG = 1
_LOOK_INTERVAL_S = 0.2
_GRACE_S = 3.5


def die_with_parent(*, grace_s: float = _GRACE_S) -> bool:
    """Send SIGTERM to this process when its parent dies, and end it `grace_s` [s] later; False if not supported."""
    # Otherwise the ranks of a killed launcher would continue writing while the user starts again. Only Linux can
    # signal. A thread ends the process immediately after ``grace_s``, with exit code 143. Native
    # code that holds Python's lock delays that.
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    arranged = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0
    # The parent may have died before the call took effect; then no signal ever comes. A process that adopts orphans is
    # no launcher, which is always a Python program.
    launcher_was_there = True
    with suppress(OSError):
        command = Path(f"/proc/{parent}/cmdline").read_bytes()
        name = Path(f"/proc/{parent}/comm").read_text(encoding="utf-8", errors="replace").strip()
        is_python = b"python" in command or b"torchrun" in command
        launcher_was_there = is_python or (parent != 1 and name != "systemd")
    if os.getppid() != parent or not launcher_was_there:
        os.kill(os.getpid(), signal.SIGTERM)

    def leave() -> None:
        while launcher_was_there and os.getppid() == parent:
            time.sleep(_LOOK_INTERVAL_S)
        time.sleep(grace_s)
        # No clean-up, because the main thread may never return. Files are consistent at any moment.
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=leave, daemon=True).start()
    return arranged


def process_start_ticks(pid: int) -> int | None:
    """Return the start of a process [clock ticks since boot], None if it is not running (or a zombie)."""
    # Number and start time together identify a process even after its number was used again.
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may contain blanks and parentheses.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


def process_age_s() -> float | None:
    """Return the age of this process, to a hundredth [s]; None if the system does not show it."""
    ticks = process_start_ticks(os.getpid())
    if ticks is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def process_is_running(pid: int, start_ticks: int | None) -> bool:
    """True if the process with this number and start time still runs; None compares only the number."""
    if start_ticks is not None:
        return process_start_ticks(pid) == start_ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def machine_identity() -> str:
    """Return an identity of this machine; process numbers are comparable only if it is equal."""
    parts = [socket.gethostname()]
    for path in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text(encoding="ascii").strip())
        except OSError:
            parts.append("")
    return "/".join(parts)


def leave_process(code: int) -> NoReturn:
    """Flush the output streams and end this process at once."""
    # For processes in which gradients went through a process group: at exit Python may wait for ever for gloo's
    # threads, which wait for Python's lock (torch 2.13).
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe must not prevent the exit.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def leave_process_on_error() -> None:
    """Make an uncaught error end this process as `leave_process` does, after its traceback."""

    def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        leave_process(1)

    sys.excepthook = leave
