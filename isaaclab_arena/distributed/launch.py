"""Ranks that this program starts itself: the options that ask for them, their processes, and what a rank tells them."""

import importlib
import json
import logging
import os
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

# torch.distributed has TCPStore too, but only at run time, where a type checker does not see it.
from torch._C._distributed_c10d import TCPStore

from isaaclab_arena.distributed import devices
from isaaclab_arena.distributed.context import (
    FAILURE_FILE,
    RUN_DIRECTORY_FILE,
    TORCHRUNX_LOG_DIR,
    is_a_rank,
    leave_process,
)
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.garbage import collect_from_now_on
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import make_dated_directory

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsDest

_LOG = logging.getLogger(__name__)

# Start this program again as several ranks, if its command line asks for it.

MIN_MOST_PROCESSES = 64
PROCESSES_PER_CORE = 4


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


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program to start as ranks: its command line, their number, and the directory for their output."""

    module: str  # started as `python -m <module>`; its `main(arguments)` does the same
    arguments: tuple[str, ...]
    num_processes: int
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables that differ from this process's
    # Directory for the ranks' output; None for ``launcher/`` in the directory that rank 0 announces.
    log_directory: Path | None = None
    waits_for_run: bool = True  # True to make it only after the ranks have made its parent
    wants_files: bool = True


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
    start: Callable[[Launch], int] | None = None,
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
    add = "has no effect on one rank; add --gpu_ids or --nproc_per_node"
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
        collect_from_now_on()
        start = run_ranks_over_torchrunx if options.launcher == "torchrunx" else run_ranks
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


# Find the failure that caused the others, from the ranks' files.

_TOLD_BY_ITSELF = frozenset({1, 2})
"""Exit codes of programs that have printed the reason."""

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
"""Signals after which programs end in good order, with exit code 128 + their number."""

_ORDERLY = _TOLD_BY_ITSELF | {128 + signal.SIGINT, 128 + signal.SIGTERM}
"""Exit codes that a rank may also have because another one failed."""


_SIGNAL_NAMES = {each.value: each.name for each in signal.Signals}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one rank, with the reason that the rank recorded, if it did."""

    rank: int
    message: str | None = None
    text: str | None = None  # for the user: the traceback, or only the message of an `ArenaError`
    recorded_ns: int = 0  # the time of the record, by the clock of the file system [ns]
    # The exit code, or minus the number of the signal that killed it; None while it runs.
    exit_code: int | None = None

    @property
    def is_expected(self) -> bool:
        """True if the error was raised on purpose, so that its message is enough, or if nothing was recorded."""
        return self.text == self.message

    def report(self, *, world_size: int, log_file: Path | None, unseen_lines: Sequence[str]) -> str:
        """Return the report for the user, empty if rank 0 has already shown its own failure."""
        if self.rank == 0 and self.is_expected and self.exit_code in _TOLD_BY_ITSELF:
            return ""
        if self.exit_code is None:
            how = "failed"
        elif self.exit_code < 0:
            how = f"was killed by {_SIGNAL_NAMES.get(-self.exit_code, f'signal {-self.exit_code}')}"
        elif self.exit_code - 128 in _STOPPING:
            how = f"was ended by {_SIGNAL_NAMES[self.exit_code - 128]}"
        else:
            how = f"failed with exit code {self.exit_code}"
        where = "" if log_file is None else f"; its output is in {log_file}"
        lines = [f"rank {self.rank} of {world_size} {how}{where}"]
        if self.rank != 0:
            # ``unseen_lines`` are the last lines of the rank's output that the terminal has not shown.
            shown = unseen_lines if self.text is None else self.text.splitlines()
            lines += [f"[rank {self.rank}] {line}" for line in shown]
        return plain_text("\n".join(lines), keep_lines=True) + "\n"


def read_failure(path: Path, *, rank: int) -> Failure | None:
    """Return the failure that a rank recorded, None if there is none."""
    try:
        recorded_ns = path.stat().st_mtime_ns
        content = json.loads(path.read_bytes())["message"]
        message, text = str(content["message"]), str(content["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Failure(rank=rank, message=message, text=text, recorded_ns=recorded_ns)


def first_failure(ended: Mapping[int, int], records: Sequence[Failure]) -> Failure | None:
    """Return the failure that caused the others, None if no rank failed or it is too early to tell."""
    # ``ended`` is in the order of observation; a code is minus the number of a signal.
    # If a rank dies without a record, its peers fail and record that. The reverse does not happen before the ranks are
    # stopped. So a rank without a record takes precedence, then the earliest record.
    failed = {rank: code for rank, code in ended.items() if code}
    by_rank = {record.rank: record for record in records}
    for rank, code in failed.items():
        if rank not in by_rank and code not in _ORDERLY:
            return Failure(rank=rank, exit_code=code)
    if (first := min(by_rank.values(), key=lambda record: record.recorded_ns, default=None)) is not None:
        own = by_rank.get(0)
        if own is not None and first.is_expected and own.message == first.message:
            # All ranks find the same mistake, and rank 0 reports it.
            first = own
        # A failure may be reported before its process ends, but rank 0 reports its own at this moment.
        if first.rank in failed or (first.rank != 0 and (failed or not first.is_expected)):
            return replace(first, exit_code=failed.get(first.rank))
        return None
    return next((Failure(rank=rank, exit_code=code) for rank, code in failed.items()), None)


# Start ranks as processes of this machine with torch's elastic launcher, watch them, and stop them together.
# torch's own agent reports a failure only when the last rank has ended, which may be half a minute later, and always
# exits with 1. So this module checks the ranks before torch collects them. The output of each rank goes to a file, and
# rank 0's to the launcher's terminal too.

_CHUNK = 1 << 16
_LOOK_INTERVAL_S = 0.2
_MOST_KEPT = 1 << 20
_LAST_LINES = 60
_STDOUT, _STDERR = "stdout", "stderr"
_POLL_INTERVAL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_GRACES_S = (30, 5)
_SAME_MISTAKE_S = 5.0
_HANGS_AFTER_S = 10.0


def run_ranks(launch: Launch) -> int:
    """Run the ranks; return 0, the first failing rank's exit code, or 128 + the number of the fatal signal."""
    # The first failure is reported on stderr with its reason; the other ranks get SIGTERM and 30 s. SIGINT, SIGTERM,
    # SIGHUP, SIGQUIT and SIGUSR1 are passed on, and ranks have 30 s to react; a second signal shortens that.

    # This module reports ended ranks itself, earlier than torch and in one place.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False

    with tempfile.TemporaryDirectory(prefix="isaaclab_arena_launch_") as directory:
        # The launcher holds the store, as torchrun does. So no other program can take the port, and the ranks may start
        # in any order.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return _RankProcesses(launch, directory=Path(directory), port=store.port).run()


@dataclass(kw_only=True)
class _Output:
    """One rank's output."""

    # Output from before the log directory existed; None once it exists, or if there will be none.
    early: bytearray | None
    file: BinaryIO | None = None
    # The last lines that the terminal has not shown.
    unseen: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    # The incomplete last line of each stream.
    begun: dict[str, bytes] = field(default_factory=lambda: {_STDOUT: b"", _STDERR: b""})


class _RankProcesses:
    """The ranks of one launch: their processes, and the thread that reads their output while they run."""

    def __init__(self, launch: Launch, *, directory: Path, port: int) -> None:
        # Most runs start no ranks. torch's launcher refuses to load for some values of LOGLEVEL, such as ``debug``.
        from torch.distributed.elastic import multiprocessing  # noqa: PLC0415

        self._torch = multiprocessing
        self._launch = launch
        self._directory = directory
        self._ended: dict[int, int] = {}
        self._first_failed_at: float | None = None
        self._reported: Failure | None = None
        self._reported_at = 0.0

        # torch expects file names for the output; in this process such a name is the write end of a pipe.
        ranks = range(launch.num_processes)
        self._outputs = [_Output(early=bytearray() if launch.wants_files else None) for _ in ranks]
        self._log_directory: Path | None = None
        self._waits_for_directory = launch.wants_files
        self._selector = selectors.DefaultSelector()
        self._write_ends: dict[tuple[str, int], int] = {}
        for rank in ranks:
            for stream in (_STDOUT, _STDERR):
                read_end, self._write_ends[stream, rank] = os.pipe()
                os.set_blocking(read_end, False)
                self._selector.register(read_end, selectors.EVENT_READ, (rank, stream))
        # The byte streams behind the text streams, None if the process has no such stream.
        self._screens: dict[str, BinaryIO | None] = {
            _STDOUT: getattr(sys.stdout, "buffer", None),
            _STDERR: getattr(sys.stderr, "buffer", None),
        }
        self._finishing = threading.Event()

        # The environment variables of each rank, as torchrun would set them. The port is that of the launcher's store.
        run_id, world_size = uuid.uuid4().hex, str(launch.num_processes)
        envs = {
            rank: {
                **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
                **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), world_size),
                **dict.fromkeys(("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"),
                "GROUP_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": run_id,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                FAILURE_FILE: str(directory / f"rank{rank}.json"),
                RUN_DIRECTORY_FILE: str(directory / "run_directory"),
                **launch.variables,
            }
            for rank in ranks
        }
        self._processes = self._torch.SubprocessContext(
            name="rank",
            entrypoint=sys.executable,
            args=dict.fromkeys(envs, ("-u", "-m", launch.module, *launch.arguments)),
            envs=envs,
            # torch only calls `reify`.
            logs_specs=cast("Any", self),
        )

    def reify(self, envs: dict[int, dict[str, str]]) -> "LogsDest":
        """Return the output destinations of each rank; torch calls this."""
        stdouts, stderrs = (
            {rank: f"/dev/fd/{end}" for (of, rank), end in self._write_ends.items() if of == stream}
            for stream in (_STDOUT, _STDERR)
        )
        # torch reads the error files after a rank has ended, for a report that is not shown.
        return self._torch.LogsDest(stdouts=stdouts, stderrs=stderrs, error_files=dict.fromkeys(envs, os.devnull))

    def run(self) -> int:
        """Start the ranks, watch them and stop them together; return the exit code."""
        reading = threading.Thread(target=self._take_in, name="rank-output", daemon=True)
        reading.start()
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            name = signal.Signals(number)
            raise self._torch.SignalException(f"got {name.name}", name)

        try:
            try:
                self._processes.start()
                # torch has set its handlers by now. Ignored signals stay ignored: nohup relies on this to let a run
                # outlive its terminal.
                for number, handler in before.items():
                    signal.signal(number, handler if handler == signal.SIG_IGN else stop)
                code = self._watch()
            except self._torch.SignalException as stopped:
                # Pass the signal on, and wait for the ranks to end; a second signal shortens the wait.
                passed_on, code = stopped.sigval, 128 + stopped.sigval
                for grace_s in _GRACES_S:
                    try:
                        self._processes.close(death_sig=passed_on, timeout=grace_s)
                    except self._torch.SignalException as again:
                        passed_on = again.sigval
                    else:
                        break
                else:
                    with suppress(self._torch.SignalException):
                        self._processes.close(death_sig=signal.SIGKILL, timeout=1)
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        finally:
            # Read the remaining output, without a wait for processes that a rank left behind.
            self._finishing.set()
            reading.join()
            for descriptor in (*self._write_ends.values(), *(key.fd for key in self._selector.get_map().values())):
                os.close(descriptor)
            self._selector.close()
            for output in self._outputs:
                if output.file is not None:
                    output.file.close()
        return code

    def _take_in(self) -> None:
        """Read the output of the ranks for as long as they run, show it, and write their log files."""
        while True:
            finishing = self._finishing.is_set()
            if self._waits_for_directory:
                self._open_files()
            ready = self._selector.select(timeout=0.0 if finishing else _LOOK_INTERVAL_S)
            for key, _ in ready:
                rank, stream = key.data
                output, chunk = self._outputs[rank], os.read(key.fd, _CHUNK)
                if output.file is not None:
                    self._write(output, chunk)
                elif output.early is not None:
                    output.early += chunk
                    del output.early[:-_MOST_KEPT]

                # Rank 0's output is shown at once, that of others line by line if it is a logged warning or error.
                shown = chunk
                if rank != 0:
                    *lines, output.begun[stream] = (output.begun[stream] + chunk).split(b"\n")
                    logged = b"[rank %d] " % rank
                    shown = b"".join(line + b"\n" for line in lines if line.startswith(logged))
                    output.unseen.extend(line for line in lines if not line.startswith(logged))
                screen = self._screens[stream]
                if shown and screen is not None:
                    try:
                        screen.write(shown)
                        screen.flush()
                    except (OSError, ValueError):
                        # The reader has closed the stream. The ranks continue, and their files have the whole output.
                        self._screens[stream] = None
            if finishing and not ready:
                return

    def _open_files(self) -> None:
        """Make this launch's directory once its place is known, and write the output so far into its files."""
        place = self._launch.log_directory
        if place is None:
            # Rank 0 announces the directory of the run.
            with suppress(OSError):
                place = Path((self._directory / "run_directory").read_text(encoding="utf-8")) / "launcher"
        elif self._launch.waits_for_run and not place.parent.is_dir():
            place = None
        if place is None:
            return
        self._waits_for_directory = False
        try:
            # Several launches may share the directory.
            place.mkdir(parents=True, exist_ok=True)
            self._log_directory = make_dated_directory(place)
            for rank, output in enumerate(self._outputs):
                output.file = (self._log_directory / f"rank{rank}.log").open("wb", buffering=0)
                self._write(output, bytes(output.early or b""))
        except OSError as error:
            _LOG.warning("cannot write the ranks' output to %s: %s", place, error.strerror)
        for output in self._outputs:
            output.early = None

    def _write(self, output: _Output, chunk: bytes) -> None:
        if output.file is None:
            return
        try:
            output.file.write(chunk)
        except OSError as error:
            _LOG.warning("cannot write %s: %s", output.file.name, error.strerror)
            output.file = None

    def _watch(self) -> int:
        """Wait until all ranks have ended, or one has failed and the others were stopped; return the exit code."""
        while True:
            # Note the ranks that have ended, without collecting their processes; torch does that. A rank that torch has
            # collected ended well, because torch stops all ranks when one fails.
            at_work = {rank: pid for rank, pid in self._processes.pids().items() if rank not in self._ended}
            for rank, pid in at_work.items() if hasattr(os, "waitid") else ():
                with suppress(ChildProcessError):
                    if (state := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                        exited = state.si_code == os.CLD_EXITED
                        self._ended[rank] = state.si_status if exited else -state.si_status
            if self._first_failed_at is None and any(self._ended.values()):
                self._first_failed_at = time.monotonic()
            # Rank 0 may still find the same mistake in the command, so that it is reported once.
            failed = {code for code in self._ended.values() if code}
            age_s = time.monotonic() - (self._first_failed_at or 0.0)
            is_waiting = failed == {2} and 0 not in self._ended and age_s < _SAME_MISTAKE_S
            if not is_waiting:
                self._report_first_failure()
            # Some libraries wait for their peers for ever, so a rank that has failed may not exit by itself.
            failure, hung_s = self._reported, time.monotonic() - self._reported_at
            if failure is not None and failure.rank not in self._ended and hung_s > _HANGS_AFTER_S:
                with suppress(ProcessLookupError):
                    os.kill(self._processes.pids()[failure.rank], signal.SIGKILL)
            if not is_waiting and (result := self._processes.wait(0)) is not None:
                break
            time.sleep(_POLL_INTERVAL_S)
        codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        if not codes:
            return 0
        if self._reported is None:
            # Not every system can report a process before it is collected.
            self._ended = codes
            self._report_first_failure()

        # A rank that failed and then had to be killed ends with 1.
        reported = self._reported
        if reported is not None and reported.exit_code is None and codes.get(reported.rank, -1) < 0:
            return 1
        code = next(iter(codes.values())) if reported is None else codes[reported.rank]
        return code if code >= 0 else 128 - code

    def _report_first_failure(self) -> None:
        if self._reported is not None:
            return
        ranks = range(self._launch.num_processes)
        records = [read_failure(self._directory / f"rank{rank}.json", rank=rank) for rank in ranks]
        failure = first_failure(self._ended, [record for record in records if record is not None])
        if failure is None:
            return
        self._reported, self._reported_at = failure, time.monotonic()
        directory, unseen = self._log_directory, list(self._outputs[failure.rank].unseen)
        report = failure.report(
            world_size=self._launch.num_processes,
            log_file=None if directory is None else directory / f"rank{failure.rank}.log",
            unseen_lines=[line.decode(errors="replace") for line in unseen],
        )
        # The process may have no stderr, or its reader may be gone.
        if report and sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(report)
                sys.stderr.flush()


_MISTAKE = 2
_HAND_OVER_S = 0.5


def run_ranks_over_torchrunx(launch: Launch) -> int:
    """Run the ranks with torchrunx; return 0, 2 for a user's mistake, else 1. ConfigError if it is not installed."""
    # Unlike `run_ranks`, torchrunx checks its ranks every five seconds, does not report which one failed, and calls
    # ``main`` of the module in processes of its own.
    try:
        torchrunx = importlib.import_module("torchrunx")
    except ImportError as error:
        missing = (
            "torchrunx is not installed, and no part of this package, because it is under the GPL-3; "
            "install it with: pip install torchrunx==0.4.0, or leave the option out"
        )
        raise ConfigError(missing, key="--launcher") from error
    wants_files = launch.wants_files and launch.log_directory is not None
    os.environ[TORCHRUNX_LOG_DIR] = str(launch.log_directory) if wants_files else ""

    # Show rank 0's output, which torchrunx turns into log records, unchanged and on its own stream.
    logger = logging.getLogger("torchrunx")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for stream, wanted in (
        (sys.stdout, lambda level: level < logging.WARNING),
        (sys.stderr, lambda level: level >= logging.WARNING),
    ):
        handler = logging.StreamHandler(stream)
        handler.addFilter(lambda record, wanted=wanted: wanted(record.levelno))
        logger.addHandler(handler)

    launcher = torchrunx.Launcher(
        hostnames=["localhost"],
        workers_per_host=launch.num_processes,
        backend=None,
        # Ranks end with their launcher only if torchrun's variable names the launch.
        extra_env_vars={
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
            **launch.variables,
        },
    )
    try:
        codes = launcher.run(call_main, launch.module, launch.arguments).results["localhost"]
    except Exception as error:  # noqa: BLE001  torchrunx raises whatever a rank raised
        reason = error.args[0] if error.args else type(error).__name__
        _LOG.error("a rank failed: %s", reason["message"] if isinstance(reason, dict) else reason)
        return 1
    return next((code for code in codes if code), 0)


def call_main(module: str, arguments: Sequence[str]) -> int:
    """Run ``main(arguments)`` of a module as one rank in a torchrunx process, and return its exit code."""
    sys.argv = [module, *arguments]
    try:
        code = importlib.import_module(module).main(list(arguments))
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:  # noqa: BLE001  torchrunx would hold on to the process
        traceback.print_exc()
        code = 1
    if code not in {0, _MISTAKE}:
        # torchrunx keeps the process of a failed rank alive, so the others would wait for it in a collective. Therefore
        # the process ends at once.
        time.sleep(_HAND_OVER_S)
        leave_process(code)
    return code
