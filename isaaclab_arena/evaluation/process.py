"""What runs leave of a process: signals, hanging steps, and all that jobs change of it."""

import contextlib
import faulthandler
import gc
import locale
import logging
import os
import random
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import numpy as np
import torch

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import ended_in
from isaaclab_arena.sim.threads import callbacks, set_callbacks

# Stop a run on a signal: the first one ends it after the current step, a second one at once.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_SAME_REQUEST_S = 0.5


class Interruption:
    """Whether this process was told to stop. The loop checks it before every step.

    Args:
        insist: Acts on a second signal. By default it ends the process at once.

    Attributes:
        signal_number: The signal that was received, None if none was.
    """

    def __init__(self, insist: Callable[[int, FrameType | None], None] | None = None) -> None:
        self.signal_number: int | None = None
        self._since = 0.0
        self._insist = insist or _leave

    def stop_requested(self) -> bool:
        """Whether to stop at the next boundary between two steps."""
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """The exit code of an interrupted process, otherwise 0.

        That is 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP and, on Linux, 138 for SIGUSR1.
        """
        return 0 if self.signal_number is None else 128 + self.signal_number

    def receive(self, signal_number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second one, the same or another, ends the process immediately, or does what was asked for.

        Schedulers and launchers often send the same signal to a process twice, directly and through its parent.
        Signals within half a second of the first count as the same request.
        """
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number = signal_number
            self._since = now
        elif now - self._since > _SAME_REQUEST_S:
            self._insist(signal_number, frame)


@contextmanager
def watch_for_interruption() -> Iterator[Interruption]:
    """Listen for SIGINT, SIGTERM, SIGHUP and SIGUSR1 for the length of a ``with`` block, in the main thread only.

    Enter it after the ranks have agreed on the plan. Before that no loop checks for a stop, so a signal should end the
    process. Clusters send SIGUSR1 some time before they end a job.

    Yields:
        The object that the loop checks. The earlier handlers are restored at the end.

    Raises:
        ValueError: If called outside the main thread, where Python delivers no signals.
    """
    with _listening(Interruption()) as interruption:
        yield interruption


@contextmanager
def _listening(interruption: Interruption) -> Iterator[Interruption]:
    # An ignored signal stays ignored, because nohup relies on this to let a run outlive its terminal.
    # What was not set from Python (None) cannot be restored by it.
    heard = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, interruption.receive) for number in heard}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def watch_as_guest() -> Iterator[Interruption]:
    """Listen as `watch_for_interruption` does, in somebody else's program.

    A second signal does what it did before. Outside the main thread nothing is listened for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Interruption()
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def insist(signal_number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, frame)
        else:
            _leave(signal_number, frame)

    with _listening(Interruption(insist)) as interruption:
        yield interruption


def _leave(signal_number: int, frame: FrameType | None) -> None:
    del frame
    # A live display hides the cursor, and now cannot show it again.
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
    os._exit(128 + signal_number)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let signals that come during a ``with`` block act at its end; for what must not be left half done.

    Only the main thread hears signals, so elsewhere nothing is held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    earlier = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


# End a process that hangs.
#
# No signal handler and no Python thread runs while native code holds the interpreter. Therefore `faulthandler` ends
# the process; it waits outside of the interpreter.

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 1.0
_LOOK_S = 0.2
_IDLE_S = 2.0
_EPISODE_MARGIN_S = 60.0


def allowed_silence_s(step_timeout_s: float, episode_timeout_s: float | None) -> float:
    """Return how long a job may go without a finished control step [s], 0 for no limit.

    Args:
        step_timeout_s: What the command line allows [s]; 0 turns the watchdog off.
        episode_timeout_s: How long an episode of the job may take [s]; it is checked only between two steps.
    """
    if step_timeout_s == 0 or episode_timeout_s is None:
        return step_timeout_s
    return episode_timeout_s + _EPISODE_MARGIN_S


class Watchdog:
    """Ends the process, with exit code 1, when a job makes no progress for too long.

    Before that it writes the job's name and the stack of each Python thread into a file. There is one watchdog in a
    process.

    Args:
        path: That file; existing content is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._silence_s = 0.0
        self._file: BinaryIO | None = None
        self._armed_s = 0.0
        self._step_s = 0.0
        self._complaint: str | None = None
        self._announcing = threading.Lock()
        self._is_announcing = False

    @contextmanager
    def watch(self, job: str, *, silence_s: float, missing: str = "has made no control step for") -> Iterator[None]:
        """Watch a job for the length of a ``with`` block, in which `step_finished` is called.

        Args:
            job: Its name, for the file.
            silence_s: How long it may go without a finished step [s], 0 for no limit.
            missing: What it has failed to do in that time, for the file.

        Raises:
            StorageError: If the file cannot be written.
        """
        if silence_s <= 0:
            yield
            return
        complaint = f"job '{job}' {missing} {silence_s:g} s"
        with self._last_words(f"{complaint}:") as file:
            self._file, self._silence_s = file, silence_s
            self._step_s = time.monotonic()
            self._complaint = complaint
            self._begin_to_announce()
            self._arm(file)
            try:
                with ended_in(lambda: self._step_s + self._silence_s - time.monotonic()):
                    yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                self._file = self._complaint = None

    def step_finished(self) -> None:
        """Say that the job goes on."""
        if self._file is None:
            return
        self._step_s = time.monotonic()
        # Arming takes as long as a small network's inference, so it is not done at every step.
        if self._step_s - self._armed_s >= _INTERVAL_S:
            self._arm(self._file)

    def _arm(self, file: BinaryIO) -> None:
        self._armed_s = time.monotonic()
        # The timer may be up to one interval old, and no step may be ended too early.
        faulthandler.dump_traceback_later(self._silence_s + _INTERVAL_S, exit=True, file=file.fileno())

    @contextmanager
    def _last_words(self, first_line: str) -> Iterator[BinaryIO]:
        """Write the job's name into the file in advance, because later may be too late; remove it if all went well."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("ab", buffering=0)
            begin = file.tell()
            file.write(f"{first_line}\n".encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error
        try:
            yield file
        finally:
            # A leftover line in this file must not make a job fail.
            with file, suppress(OSError):
                file.truncate(begin)
                if begin == 0:
                    self._path.unlink()

    def _begin_to_announce(self) -> None:
        """Have a thread look at the time, which goes on to do so for the watches that follow at once.

        One for each watch would take more CPU time than all else that a watch does.
        """
        with self._announcing:
            if not self._is_announcing:
                self._is_announcing = True
                threading.Thread(target=self._announce, daemon=True).start()

    def _announce(self) -> None:
        """Log that the process is about to be ended, if Python can still run; until nothing is watched any more."""
        idle_s, told = 0.0, None
        while True:
            time.sleep(_LOOK_S)
            complaint, late_s = self._complaint, time.monotonic() - self._step_s - self._silence_s
            if complaint is None or late_s < 0:
                told = None
            elif complaint != told:
                told = complaint
                where = "%s; process %d ends in a second, where it stood is in %s"
                _LOG.error(where, complaint, os.getpid(), self._path)
            idle_s = 0.0 if complaint is not None else idle_s + _LOOK_S
            with self._announcing:
                if idle_s > _IDLE_S and self._complaint is None:
                    self._is_announcing = False
                    return


# Leave what the whole process shares as it was: for the program that calls this package, and around every job.
#
# A policy that sets torch's default type sets it for every job after its own. So each job ends with the settings that
# it began with, and a line names what was changed and by whom. Policies and environments outlive their job if the
# next one asks for the same, so what their code has set is set again for as long as they are in use.

_OWN_LOGGER = "isaaclab_arena"
_STREAMS = ("the standard input", "the standard output", "the standard error")


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """One thing that belongs to the whole process.

    Attributes:
        name: What it is, in words.
        read: Returns its value; None where there is none to put back.
        write: Gives it a value that ``read`` has returned.
        repeat: Changes it once more as it was changed from one value to another; by default that writes the other.
        describe: Returns what changed, in words, given both values.
        is_runners: Whether it belongs to the program that runs jobs, and is put back before the job goes on.
        stays_on_import: Whether libraries that a module imports may need what was changed for as long as they live.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    repeat: Callable[[Any, Any], object] | None = None
    describe: Callable[[Any, Any], str] = lambda before, after: f"{before} to {after}"
    is_runners: bool = False
    stays_on_import: bool = False

    def change(self, before: Any, after: Any) -> str:
        """Return in words what has changed, with the values where these are short."""
        values = "" if self.is_runners else self.describe(before, after)
        return f"{self.name} ({values})" if 0 < len(values) <= _LONGEST_VALUES else self.name


_LONGEST_VALUES = 100
_CACHES = {b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR"}
_CUDNN = torch.backends.cudnn
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_SHARED_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCHLD, signal.SIGPIPE,
)  # fmt: skip


def _readable(read: Callable[[], Any]) -> Any:
    """Return a precision, "mixed" where torch refuses to say it because both of its interfaces were used."""
    try:
        return read()
    except RuntimeError:
        return "mixed"


def _write_precision(value: str) -> None:
    if value != "mixed":
        torch.set_float32_matmul_precision(value)


def _write_cudnn(value: tuple[bool, ...]) -> None:
    _CUDNN.enabled, _CUDNN.benchmark, _CUDNN.deterministic = value[:3]
    if value[3] != "mixed":
        _CUDNN.allow_tf32 = value[3]


def _write_attention(value: tuple[bool, ...]) -> None:
    for kind, enabled in zip(_ATTENTION, value, strict=True):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)


def _umask() -> int:
    # To ask the system for it means to set it for a moment, in which other threads may make files.
    with Path("/proc/self/status").open("rb", buffering=0) as status:
        found = re.search(rb"^Umask:\s*([0-7]+)", status.read(4096), re.MULTILINE)
    if found is None:
        raise OSError("this system does not say it")
    return int(found[1], 8)


def _variables() -> dict[bytes, bytes]:
    # torch writes down where it keeps compiled code when its compiler loads, and no result depends on it.
    return {name: value for name, value in os.environb.items() if name not in _CACHES}


def _changed_variables(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> list[bytes]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _change_variables(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> None:
    for name in _changed_variables(before, after):
        if name in after:
            os.environb[name] = after[name]
        else:
            os.environb.pop(name, None)


def _write_path(value: list[str]) -> None:
    sys.path[:] = value


def _repeat_path(before: list[str], after: list[str]) -> None:
    sys.path[:0] = [entry for entry in after if entry not in before and entry not in sys.path]


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SHARED_SIGNALS}


def _write_handlers(value: Mapping[int, Any]) -> None:
    # Only the main thread may set them; where this is another one, nothing else that runs in it could.
    if threading.current_thread() is threading.main_thread():
        for number, handler in value.items():
            # What was not set from Python (None) cannot be restored by it.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _disabled_loggers() -> frozenset[str]:
    every: dict[str, Any] = dict(logging.root.manager.loggerDict)
    return frozenset(name for name, logger in every.items() if getattr(logger, "disabled", False))


def _logging() -> tuple[Any, ...]:
    loggers = logging.getLogger(), logging.getLogger(_OWN_LOGGER)
    states = [(each.level, each.propagate, [*each.handlers]) for each in loggers]
    return logging.root.manager.disable, _disabled_loggers(), *states


def _write_logging(value: tuple[Any, ...]) -> None:
    level, disabled, *states = value
    logging.disable(level)
    # `logging.config` disables every logger that it finds, by default.
    for name in disabled ^ _disabled_loggers():
        logging.getLogger(name).disabled = name in disabled
    for logger, (own_level, propagates, handlers) in zip(
        (logging.getLogger(), logging.getLogger(_OWN_LOGGER)), states, strict=True
    ):
        logger.setLevel(own_level)
        logger.propagate, logger.handlers = propagates, [*handlers]


def _python_streams() -> tuple[Any, ...]:
    # While progress is displayed, its own streams stand before two of them.
    return tuple(getattr(each, "rich_proxied_file", each) for each in (sys.stdin, sys.stdout, sys.stderr))


def _write_python_streams(value: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = value


def _errors_for_warnings() -> list[Any]:
    # Other filters decide what is shown, and libraries add some when they are imported.
    return [each for each in warnings.filters if each[0] == "error"]


def _write_errors_for_warnings(value: list[Any]) -> None:
    filters: Any = warnings.filters
    filters[:] = [*value, *(each for each in filters if each[0] != "error")]


def _print_options() -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: Any = torch
    return dict(vars(tensors._tensor_str.PRINT_OPTS)), dict(np.get_printoptions())


def _write_print_options(value: tuple[dict[str, Any], dict[str, Any]]) -> None:
    torch.set_printoptions(**value[0])
    np.set_printoptions(**value[1])


_SHARED = (
    # First, because everything else may need the depth.
    _Shared(name="Python's recursion limit", read=sys.getrecursionlimit, write=sys.setrecursionlimit),
    _Shared(name="torch's default type", read=torch.get_default_dtype, write=torch.set_default_dtype),
    _Shared(
        name="torch's default device",
        read=lambda: torch.empty(0).device,
        # The CPU as a device of one's own would cost a little in every call of torch.
        write=lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    _Shared(
        name="torch's current GPU",
        read=lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        write=torch.cuda.set_device,
    ),
    _Shared(name="torch's gradients", read=torch.is_grad_enabled, write=torch.set_grad_enabled),
    _Shared(
        name="torch's detection of anomalies",
        read=lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        write=lambda value: torch.autograd.set_detect_anomaly(*value),
    ),
    _Shared(
        name="torch's autocast",
        read=lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        write=lambda value: [torch.set_autocast_enabled(*each) for each in zip(("cpu", "cuda"), value, strict=True)],
    ),
    _Shared(
        name="torch's precision of matrix products",
        read=lambda: _readable(torch.get_float32_matmul_precision),
        write=_write_precision,
    ),
    _Shared(
        name="torch's deterministic algorithms",
        read=lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        write=lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    _Shared(
        name="cuDNN's settings",
        read=lambda: (
            _CUDNN.enabled,
            _CUDNN.benchmark,
            _CUDNN.deterministic,
            _readable(lambda: _CUDNN.allow_tf32),
        ),
        write=_write_cudnn,
    ),
    _Shared(
        name="torch's kinds of attention",
        read=lambda: tuple(getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in _ATTENTION),
        write=_write_attention,
    ),
    _Shared(name="torch's threads", read=torch.get_num_threads, write=torch.set_num_threads),
    _Shared(
        name="the flushing of denormal numbers",
        read=lambda: sys.float_info.min / 2 == 0.0,
        write=torch.set_flush_denormal,
    ),
    _Shared(name="MuJoCo's callbacks", read=callbacks, write=set_callbacks, describe=lambda *_: ""),
    _Shared(name="NumPy's handling of errors", read=np.geterr, write=lambda value: np.seterr(**value)),
    _Shared(name="how arrays are printed", read=_print_options, write=_write_print_options),
    _Shared(
        name="the locale",
        read=lambda: locale.setlocale(locale.LC_ALL),
        write=lambda value: locale.setlocale(locale.LC_ALL, value),
    ),
    _Shared(name="the working directory", read=os.getcwd, write=os.chdir),
    _Shared(
        name="environment variables",
        read=_variables,
        write=lambda value: _change_variables(_variables(), value),
        repeat=_change_variables,
        describe=lambda before, after: ", ".join(map(os.fsdecode, _changed_variables(before, after))),
        stays_on_import=True,
    ),
    _Shared(name="sys.path", read=lambda: list(sys.path), write=_write_path, repeat=_repeat_path, stays_on_import=True),
    _Shared(
        name="warnings that are errors",
        read=_errors_for_warnings,
        write=_write_errors_for_warnings,
        describe=lambda *_: "",
    ),
    _Shared(
        name="Python's collection of garbage",
        read=lambda: (gc.isenabled(), gc.get_threshold()),
        write=lambda value: (gc.enable() if value[0] else gc.disable(), gc.set_threshold(*value[1])),
    ),
    _Shared(
        name="the time-out of sockets",
        read=lambda: (socket.getdefaulttimeout(),),
        write=lambda value: socket.setdefaulttimeout(*value),
    ),
    _Shared(
        name="the processors of this thread",
        read=lambda: os.sched_getaffinity(0),
        write=lambda value: os.sched_setaffinity(0, value),
    ),
    _Shared(name="the mask of new files (umask)", read=_umask, write=os.umask, is_runners=True),
    _Shared(
        name="sys.stdin, sys.stdout or sys.stderr", read=_python_streams, write=_write_python_streams, is_runners=True
    ),
    _Shared(name="handlers of signals", read=_handlers, write=_write_handlers, is_runners=True),
    _Shared(
        name="sys.excepthook",
        read=lambda: (sys.excepthook, threading.excepthook),
        write=lambda value: (setattr(sys, "excepthook", value[0]), setattr(threading, "excepthook", value[1])),
        is_runners=True,
    ),
    _Shared(name="logging", read=_logging, write=_write_logging, is_runners=True),
)

_LIMIT = _SHARED[0]
_Values = dict[str, Any]
_Changes = list[tuple[_Shared, Any, Any]]

_Set = dict[str, tuple[Any, Any]]

_SET_BY_IMPORT: dict[str, tuple[dict[str, Any], _Set]] = {}
"""What modules have set while they were imported, by whose they are: their specs, and the values before and after."""

_ENCLOSING: ContextVar[_Values | None] = ContextVar("what the block around this one began with", default=None)


@contextmanager
def put_back(by: str | None = None) -> Iterator[None]:
    """Put back at the end of a ``with`` block what the process shares, but for random numbers.

    Args:
        by: Whose code runs in it, in words, to name what it has set; None where `Settings.of` does.
    """
    before = _look()
    try:
        yield
    finally:
        changes = _changes(before)
        for each, value, _ in changes:
            _attempt(each.write, value)
        if by is not None:
            _tell(by, [each.change(value, now) for each, value, now in changes])


@contextmanager
def generators_put_back() -> Iterator[None]:
    """Put back at the end of a ``with`` block the state of all global generators of random numbers."""
    has_cuda = torch.cuda.is_initialized()
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if has_cuda else ()):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


@contextmanager
def left_alone() -> Iterator[None]:
    """Run a ``with`` block inside somebody else's program as in one of its own, and put back what it changes.

    What the program has set for its own tensors does not reach the block: it uses float32, the CPU and no gradients.
    """
    with ExitStack() as stack:
        stack.enter_context(generators_put_back())
        stack.enter_context(put_back())
        stack.enter_context(torch.no_grad())
        if torch.get_default_device().type != "cpu":
            # Costs a little in every call of torch, so only where it is needed.
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        _hear_everything()
        yield


class Settings:
    """What the code of the policies and environments of a run sets for the whole process, which lasts as they do."""

    def __init__(self) -> None:
        self._set_by: defaultdict[str, _Set] = defaultdict(dict)
        self._told: set[tuple[str, str]] = set()

    def has_any(self, key: str) -> bool:
        """Return whether code that `of` ran under a key has set something that lasts."""
        return bool(self._set_by.get(key))

    @contextmanager
    def of(self, by: str, key: str) -> Iterator[None]:
        """Run code of a policy or an environment in a ``with`` block, and name what it sets for the whole process.

        What it has set before is set again first. `put_back` around the job undoes all of it. What belongs to the
        program that runs jobs, such as its log, is put back at the end of the block already. A block in another one is
        one of other code.

        Args:
            by: Whose code it is, in words; see `Imports.settle`.
            key: Equal for objects that may be used in place of each other.
        """
        for known in (_imported_by(by), self._set_by.get(key, {})):
            _set_again(known)
        before = _look()
        enclosing = _ENCLOSING.get()
        token = _ENCLOSING.set(before)
        streams: list[str] = []
        try:
            with _streams_put_back(streams):
                yield
        finally:
            _ENCLOSING.reset(token)
            changes = _changes(before)
            for each, value, now in changes:
                if each.is_runners:
                    _attempt(each.write, value)
                else:
                    first, _ = self._set_by[key].get(each.name, (value, now))
                    self._set_by[key][each.name] = first, now
                    if enclosing is not None:
                        # The code around this is not to blame.
                        enclosing[each.name] = now
            new = [each.change(value, now) for each, value, now in changes] + streams
            _tell(by, [change for change in new if (by, change) not in self._told])
            self._told.update((by, change) for change in new)


class Imports:
    """Puts back what modules set for the whole process while they are imported, until jobs use them."""

    def __init__(self) -> None:
        self._before, self._modules = _look(), set(sys.modules)

    def settle(self, by: str) -> None:
        """Put it back after modules may have been imported, and name it; `Settings.of` sets it again for this ``by``.

        Args:
            by: Whose modules, in words.
        """
        if len(sys.modules) == len(self._modules):
            return
        changes = [change for change in _changes(self._before) if not change[0].stays_on_import]
        for each, value, _ in changes:
            _attempt(each.write, value)
        lasting = {each.name: (value, now) for each, value, now in changes if not each.is_runners}
        if lasting:
            new = {name: _spec(name) for name in sys.modules.keys() - self._modules}
            _SET_BY_IMPORT[by] = new, lasting
        _tell(by, [each.change(value, now) for each, value, now in changes])
        self._before, self._modules = _look(), set(sys.modules)


def _imported_by(by: str) -> _Set:
    """Return what modules have set while they were imported, unless one was imported once more since."""
    specs, found = _SET_BY_IMPORT.get(by, ({}, {}))
    return found if all(_spec(name) is spec for name, spec in specs.items()) else {}


def _spec(module: str) -> Any:
    return getattr(sys.modules.get(module), "__spec__", None)


def _set_again(known: _Set) -> None:
    for each in _SHARED:
        if each.name in known:
            before, after = known[each.name]
            _attempt(*((each.repeat, before, after) if each.repeat else (each.write, after)))


def _look() -> _Values:
    return {each.name: _attempt(each.read) for each in _SHARED}


def _changes(before: _Values) -> _Changes:
    """Return what differs from what it was, with both values; what could not be read is taken to be the same."""
    limit = sys.getrecursionlimit()
    # All that follows may need the depth.
    sys.setrecursionlimit(max(limit, before[_LIMIT.name]))
    after = {**_look(), _LIMIT.name: limit}
    sys.setrecursionlimit(limit)
    pairs = [(each, before[each.name], after[each.name]) for each in _SHARED]
    return [(each, value, now) for each, value, now in pairs if None not in (value, now) and value != now]


def _attempt(act: Callable[..., Any], *values: Any) -> Any:
    """Read or write a value; a working directory may be gone, and a processor out of reach."""
    try:
        return act(*values)
    except (OSError, ValueError, RuntimeError) as error:
        _LOG.debug("what the process shares cannot be read or put back: %s", error)
        return None


def _tell(by: str, changes: Sequence[str]) -> None:
    if changes:
        _LOG.warning("%s has set for the whole process: %s; other jobs do not see it", by, ", ".join(changes))


@contextmanager
def _streams_put_back(changed: list[str]) -> Iterator[None]:
    """Put back the standard streams at the end of a ``with`` block, and add the names of those that were changed."""
    copies: dict[int, int] = {}
    for number in range(len(_STREAMS)):
        with contextlib.suppress(OSError):
            copies[number] = os.dup(number)
    try:
        yield
    finally:
        for number, copy in copies.items():
            if not _is_same_file(number, copy):
                os.dup2(copy, number)
                changed.append(_STREAMS[number])
            os.close(copy)


def _is_same_file(descriptor: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(descriptor, other)
    except OSError:
        return False


def _hear_everything() -> None:
    """Let the files of a run have all lines, and those who heard this package before hear what they heard."""
    logger = logging.getLogger(_OWN_LOGGER)
    logger.handlers = [_AsBefore(logger.getEffectiveLevel(), [*logger.handlers], propagates=logger.propagate)]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


class _AsBefore(logging.Handler):
    """Hands lines to those who would have heard them."""

    def __init__(self, level: int, handlers: Sequence[logging.Handler], *, propagates: bool) -> None:
        super().__init__(level)
        self._handlers = handlers
        self._propagates = propagates

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self._propagates:
            logging.getLogger().callHandlers(record)
