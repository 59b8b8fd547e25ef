"""The process around runs: its exit code and consoles, its signals, its hanging steps, and its settings."""

import atexit
import faulthandler
import gc
import io
import locale
import logging
import os
import random
import re
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import numpy as np
import torch
from rich.console import Console

from isaaclab_arena.distributed.context import DistributedContext, claimed_rank
from isaaclab_arena.distributed.interrupts import INTERRUPTED, raise_on_ctrl_c, report_interruption
from isaaclab_arena.distributed.launch import failures_recorded
from isaaclab_arena.distributed.ranks import PeerStoppedError
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.logs import ended_in, open_missing_streams, plain_text, set_up_console_logging
from isaaclab_arena.storage.atomic import storage_errors

_LOG = logging.getLogger(__name__)

# Stop a run on a signal: the first one ends it after the current step, a second one at once.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(eq=False)
class Interruption:
    """The stop request of this process, which the loop checks before every step."""

    insist: Callable[[int, FrameType | None], None] | None = None  # called with a second signal; None ends the process
    signal_number: int | None = field(default=None, init=False)  # the first signal received
    _since: float = field(default=0.0, init=False)

    def stop_requested(self) -> bool:
        """Whether to stop at the next boundary between two steps."""
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number if interrupted (130 for SIGINT, 143 for SIGTERM), else 0."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    def receive(self, signal_number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second one ends the process at once, or calls `insist`."""
        # Schedulers and launchers often send a signal twice, directly and through the parent: within half a second of
        # the first, a signal counts as the same request.
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number = signal_number
            self._since = now
        elif now - self._since > 0.5:
            (self.insist or _leave)(signal_number, frame)


@contextmanager
def signals_handled(handle: Callable[[int, FrameType | None], object], numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals within a `with` block of the main thread, and put back the earlier handlers at its end."""
    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def watch_for_interruption(insist: Callable[[int, FrameType | None], None] | None = None) -> Iterator[Interruption]:
    """Listen for SIGINT, SIGTERM, SIGHUP and SIGUSR1 within a `with` block, in the main thread only."""
    # Enter it after the ranks have agreed on the plan: before that no loop checks for a stop, so a signal should end
    # the process. Clusters send SIGUSR1 some time before they end a job. `insist`: see `Interruption`.
    interruption = Interruption(insist)
    # An ignored signal stays ignored: nohup relies on it to let a run outlive its terminal.
    # Python cannot restore a handler that was set outside of it (None).
    heard = [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with signals_handled(interruption.receive, heard):
        yield interruption


def watch_as_guest() -> AbstractContextManager[Interruption]:
    """Listen as `watch_for_interruption` does, within another program; outside the main thread do not listen."""
    if threading.current_thread() is not threading.main_thread():
        return nullcontext(Interruption())
    # A second signal calls the handler of the program.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers = {int(number): handler if callable(handler) else _leave for number, handler in before.items()}
    return watch_for_interruption(lambda number, frame: handlers[number](number, frame))


def _leave(signal_number: int, frame: FrameType | None) -> None:
    del frame
    # A live display hides the cursor, and now cannot show it again.
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
    os._exit(128 + signal_number)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Delay signals until the end of a `with` block that must not be interrupted halfway."""
    # Python delivers signals to the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    try:
        with signals_handled(lambda number, _: came.append(number), _SIGNALS):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


# End a process that hangs.
#
# No signal handler and no Python thread runs while native code holds the interpreter. Therefore `faulthandler` ends the
# process; it waits outside of the interpreter.

_INTERVAL_S = 1.0


@dataclass(eq=False)
class Watchdog:
    """Ends the process with exit code 1 if a job makes no progress for too long; one in a process."""

    path: Path  # before the end, the job's name and all Python stacks are appended to this file
    _silence_s: float = field(default=0.0, init=False)
    _file: BinaryIO | None = field(default=None, init=False)
    _armed_s: float = field(default=0.0, init=False)
    _step_s: float = field(default=0.0, init=False)

    @contextmanager
    def guard(self, name: str, *, silence_s: float, missing: str = "has made no control step for") -> Iterator[None]:
        """Guard a job within a `with` block, which calls `step_finished`. `silence_s` 0 is no limit [s]."""
        if silence_s <= 0:
            yield
            return
        # The line goes into the file in advance, as later may be too late. `missing`: the failure of the job, in words.
        complaint = f"job '{name}' {missing} {silence_s:g} s"
        with storage_errors("write", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("ab", buffering=0)
            begin = file.tell()
            file.write(f"{complaint}:\n".encode())
        try:
            self._file, self._silence_s = file, silence_s
            self._armed_s = float("-inf")
            self.step_finished()
            is_over = threading.Event()
            threading.Thread(target=self._announce, args=(complaint, is_over), daemon=True).start()
            try:
                with ended_in(self._left_s):
                    yield
            finally:
                is_over.set()
                faulthandler.cancel_dump_traceback_later()
                self._file = None
        finally:
            # After a normal end the line is removed. If it is left over, it must not make the job fail.
            with file, suppress(OSError):
                file.truncate(begin)
                if begin == 0:
                    self.path.unlink()

    def step_finished(self) -> None:
        """Record that the job goes on."""
        if self._file is None:
            return
        self._step_s = time.monotonic()
        # Arming takes as long as the inference of a small network, so it is not done at every step.
        if self._step_s - self._armed_s >= _INTERVAL_S:
            self._armed_s = time.monotonic()
            # The timer may be up to one interval old, and must not end a step too early.
            faulthandler.dump_traceback_later(self._silence_s + _INTERVAL_S, exit=True, file=self._file.fileno())

    def _left_s(self) -> float:
        return self._step_s + self._silence_s - time.monotonic()

    def _announce(self, complaint: str, is_over: threading.Event) -> None:
        """Log once that the process is about to end, if Python can still run."""
        while not is_over.wait(0.2):
            if self._left_s() <= 0:
                where = "%s; process %d ends in a second, where it stood is in %s"
                _LOG.error(where, complaint, os.getpid(), self.path)
                return


# Save and restore MuJoCo's callbacks, which are global to the process. No batch steps while one of them is a Python
# function.

_MUJOCO_CALLBACKS = ("passive", "control", "contactfilter", "sensor", "time", "act_dyn", "act_gain", "act_bias")


def callbacks() -> tuple[Callable[..., Any] | None, ...]:
    """Return the installed callbacks, in the order of `_MUJOCO_CALLBACKS`; MuJoCo is not imported for it."""
    mujoco = sys.modules.get("mujoco")
    # A module that another thread is still importing has none of its functions yet.
    return tuple(getattr(mujoco, f"get_mjcb_{name}", lambda: None)() for name in _MUJOCO_CALLBACKS)


def set_callbacks(installed: Sequence[Callable[..., Any] | None]) -> None:
    """Install the callbacks that `callbacks` returned."""
    mujoco = sys.modules.get("mujoco")
    for name, callback in zip(_MUJOCO_CALLBACKS, installed, strict=True):
        getattr(mujoco, f"set_mjcb_{name}", lambda _: None)(callback)


# Restore the process-wide settings: for the program that calls this package, and around every job.
#
# A policy that sets torch's default type sets it for every job after its own. So each job ends with the settings that
# it began with, and a line names each change and its origin. Policies and environments outlive their job if the next
# one asks for the same, so their settings are applied again while they are in use.

_OWN_LOGGER = "isaaclab_arena"


@dataclass(frozen=True)
class _Shared:
    """One setting of the whole process."""

    name: str  # in words
    read: Callable[[], Any]  # None: nothing to put back
    write: Callable[[Any], object]  # takes a value that `read` returned
    # Repeats a change, given both values; by default it writes the second value.
    repeat: Callable[[Any, Any], object] | None = None
    # Describes a change in words, given both values.
    describe: Callable[[Any, Any], str] = lambda before, after: f"{before} to {after}"
    # Whether it belongs to the program that runs jobs, and is put back before the job goes on.
    is_runners: bool = False
    # Whether imported libraries may need the change for as long as they live.
    stays_on_import: bool = False

    def change(self, before: Any, after: Any) -> str:
        """Describe a change in words, with both values if these are short."""
        values = "" if self.is_runners else self.describe(before, after)
        return f"{self.name} ({values})" if 0 < len(values) <= 100 else self.name


_CUDNN = torch.backends.cudnn
_TENSORS: Any = vars(torch)["_tensor_str"]
_WARNINGS: Any = warnings  # its list of filters may be another one later
_OF_CUDNN = ("enabled", "benchmark", "deterministic", "allow_tf32")
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
# torch sets the first two when its compiler loads, Gymnasium the third; no result depends on them.
_OF_LIBRARIES = frozenset({b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR", b"PYGAME_HIDE_SUPPORT_PROMPT"})
_MORE_SIGNALS = (signal.SIGQUIT, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)


def _readable(read: Callable[[], Any]) -> Any:
    """Read a precision; "mixed" if torch refuses because both of its interfaces were used."""
    try:
        return read()
    except RuntimeError:
        return "mixed"


def _umask() -> int:
    # `os.umask` reads the mask by setting it, and other threads may make files in that moment.
    with Path("/proc/self/status").open("rb", buffering=0) as status:
        found = re.search(rb"^Umask:\s*([0-7]+)", status.read(4096), re.MULTILINE)
    if found is None:
        raise OSError("this system does not say it")
    return int(found[1], 8)


def _change_variables(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> None:
    for name in sorted({*before, *after} - _OF_LIBRARIES):
        if name in after and before.get(name) != after[name]:
            os.environb[name] = after[name]
        elif name not in after:
            os.environb.pop(name, None)


def _disabled_loggers() -> frozenset[str]:
    every: dict[str, Any] = dict(logging.root.manager.loggerDict)
    return frozenset(name for name, logger in every.items() if getattr(logger, "disabled", False))


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


_SHARED = (
    # First, because everything else may need the recursion depth.
    _Shared("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Shared("torch's default type", torch.get_default_dtype, torch.set_default_dtype),
    _Shared(
        "torch's default device",
        lambda: torch.empty(0).device,
        # Setting the CPU explicitly would slow down every call of torch a little.
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    _Shared(
        "torch's current GPU",
        lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        torch.cuda.set_device,
    ),
    _Shared("torch's gradients", torch.is_grad_enabled, torch.set_grad_enabled),
    _Shared(
        "torch's detection of anomalies",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.autograd.set_detect_anomaly(*value),
    ),
    _Shared(
        "torch's autocast",
        lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        lambda value: [torch.set_autocast_enabled(*each) for each in zip(("cpu", "cuda"), value, strict=True)],
    ),
    _Shared(
        "torch's precision of matrix products",
        lambda: _readable(torch.get_float32_matmul_precision),
        lambda value: None if value == "mixed" else torch.set_float32_matmul_precision(value),
    ),
    _Shared(
        "torch's deterministic algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    _Shared(
        "cuDNN's settings",
        lambda: tuple(_readable(lambda name=name: getattr(_CUDNN, name)) for name in _OF_CUDNN),
        lambda value: [
            setattr(_CUDNN, name, each) for name, each in zip(_OF_CUDNN, value, strict=True) if each != "mixed"
        ],
    ),
    _Shared(
        "torch's kinds of attention",
        lambda: tuple(getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in _ATTENTION),
        lambda value: [
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)
            for kind, enabled in zip(_ATTENTION, value, strict=True)
        ],
    ),
    _Shared("torch's threads", torch.get_num_threads, torch.set_num_threads),
    _Shared("the flushing of denormal numbers", lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal),
    _Shared("MuJoCo's callbacks", callbacks, set_callbacks, describe=lambda *_: ""),
    _Shared("NumPy's handling of errors", np.geterr, lambda value: np.seterr(**value)),
    _Shared(
        "how arrays are printed",
        lambda: (dict(vars(_TENSORS.PRINT_OPTS)), dict(np.get_printoptions())),
        lambda value: (torch.set_printoptions(**value[0]), np.set_printoptions(**value[1])),
    ),
    _Shared(
        "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    ),
    _Shared("the working directory", os.getcwd, os.chdir),
    _Shared(
        "environment variables",
        lambda: {name: value for name, value in os.environb.items() if name not in _OF_LIBRARIES},
        lambda value: _change_variables(os.environb, value),
        repeat=_change_variables,
        describe=lambda before, after: ", ".join(
            os.fsdecode(name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)
        ),
        stays_on_import=True,
    ),
    _Shared(
        "sys.path",
        lambda: list(sys.path),
        lambda value: sys.path.__setitem__(slice(None), value),
        repeat=lambda before, after: sys.path.__setitem__(
            slice(0), [entry for entry in after if entry not in before and entry not in sys.path]
        ),
        stays_on_import=True,
    ),
    _Shared(
        "warnings that are errors",
        # Other filters only decide which warnings are shown, and libraries add some when they are imported.
        lambda: [each for each in warnings.filters if each[0] == "error"],
        lambda value: _WARNINGS.filters.__setitem__(
            slice(None), [*value, *(each for each in warnings.filters if each[0] != "error")]
        ),
        describe=lambda *_: "",
    ),
    _Shared(
        "Python's collection of garbage",
        lambda: (gc.isenabled(), gc.get_threshold()),
        lambda value: (gc.enable() if value[0] else gc.disable(), gc.set_threshold(*value[1])),
    ),
    _Shared(
        "the time-out of sockets", lambda: (socket.getdefaulttimeout(),), lambda value: socket.setdefaulttimeout(*value)
    ),
    _Shared(
        "the processors of this thread", lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value)
    ),
    _Shared("the mask of new files (umask)", _umask, os.umask, is_runners=True),
    _Shared(
        "sys.stdin, sys.stdout or sys.stderr",
        # The progress display replaces two streams by its own while it is shown.
        lambda: [getattr(each, "rich_proxied_file", each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        lambda value: [
            setattr(sys, name, stream) for name, stream in zip(("stdin", "stdout", "stderr"), value, strict=True)
        ],
        is_runners=True,
    ),
    _Shared(
        "handlers of signals",
        lambda: {number: signal.getsignal(number) for number in (*_SIGNALS, *_MORE_SIGNALS)},
        # Only the main thread may set handlers, so code in another thread cannot have changed them. Python cannot
        # restore a handler that was set outside of it (None).
        lambda value: [
            signal.signal(number, handler)
            for number, handler in (value if threading.current_thread() is threading.main_thread() else {}).items()
            if handler is not None and signal.getsignal(number) is not handler
        ],
        is_runners=True,
    ),
    _Shared(
        "sys.excepthook",
        lambda: (sys.excepthook, threading.excepthook),
        lambda value: (setattr(sys, "excepthook", value[0]), setattr(threading, "excepthook", value[1])),
        is_runners=True,
    ),
    _Shared(
        "logging",
        lambda: (
            logging.root.manager.disable,
            _disabled_loggers(),
            *(
                (each.level, each.propagate, [*each.handlers])
                for each in (logging.getLogger(), logging.getLogger(_OWN_LOGGER))
            ),
        ),
        _write_logging,
        is_runners=True,
    ),
)

_Values = dict[str, Any]
_Changes = list[tuple[_Shared, Any, Any]]

_Set = dict[str, tuple[Any, Any]]

_SET_BY_IMPORT: dict[str, tuple[dict[str, Any], _Set]] = {}
"""Changes by imported modules, by the owner: the specs of the modules, and the values before and after."""

_ENCLOSING: ContextVar[_Values | None] = ContextVar("what the block around this one began with", default=None)


def _look() -> _Values:
    return {each.name: _attempt(each.read) for each in _SHARED}


@contextmanager
def put_back(by: str | None = None) -> Iterator[None]:
    """Put back all process-wide settings at the end of a `with` block, except for random generators."""
    # `by` names the owner of the code in the log; None if `Settings.of` does.
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
    """Put back the state of all global random generators at the end of a `with` block."""
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
    """Run a `with` block with default settings inside another program, and put back its changes."""
    # The program's own settings do not reach the block: it uses float32, the CPU and no gradients.
    with generators_put_back(), put_back(), torch.no_grad(), ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            # It slows down every call of torch a little, so set it only if needed.
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        # The run's files get every line, while earlier handlers get the lines that they got before.
        logger = logging.getLogger(_OWN_LOGGER)
        logger.handlers = [_AsBefore(logger.getEffectiveLevel(), [*logger.handlers], propagates=logger.propagate)]
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        yield


@dataclass(eq=False)
class Settings:
    """The process-wide settings of a run's policies and environments, which last as long as these do."""

    # Lasting changes by the code that `of` ran, by key and by setting: the values before and after.
    set_by: defaultdict[str, _Set] = field(default_factory=partial(defaultdict, dict), init=False)
    _told: set[tuple[str, str]] = field(default_factory=set, init=False)

    @contextmanager
    def of(self, by: str, key: str) -> Iterator[None]:
        """Run a policy's or environment's code in a `with` block, and log its changes of the process."""
        # `by`: owner of the code in words, see `Imports.settle`. `key`: equal for objects that are interchangeable.
        # Its earlier changes come first. Those by imports count only until one of the modules is imported again.
        specs, by_imports = _SET_BY_IMPORT.get(by, ({}, {}))
        if any(getattr(sys.modules.get(name), "__spec__", None) is not spec for name, spec in specs.items()):
            by_imports = {}
        for known in (by_imports, self.set_by.get(key, {})):
            for each in [each for each in _SHARED if each.name in known]:
                values = known[each.name]
                _attempt(*((each.repeat, *values) if each.repeat else (each.write, values[1])))

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
                # The runner's own settings, such as its log, are put back at once; `put_back` around the job undoes the
                # others.
                if each.is_runners:
                    _attempt(each.write, value)
                else:
                    first, _ = self.set_by[key].get(each.name, (value, now))
                    self.set_by[key][each.name] = first, now
                    if enclosing is not None:
                        # Do not blame the enclosing block's code for this change.
                        enclosing[each.name] = now
            new = [each.change(value, now) for each, value, now in changes] + streams
            _tell(by, [change for change in new if (by, change) not in self._told])
            self._told.update((by, change) for change in new)


@dataclass(eq=False)
class Imports:
    """Puts back the process-wide changes of imported modules, until jobs use them."""

    _before: _Values = field(default_factory=_look, init=False)
    _modules: set[str] = field(default_factory=lambda: set(sys.modules), init=False)

    def settle(self, by: str) -> None:
        """Put back the changes of modules that were imported; `Settings.of` with the same `by` applies them again."""
        if len(sys.modules) == len(self._modules):
            return
        changes = [change for change in _changes(self._before) if not change[0].stays_on_import]
        for each, value, _ in changes:
            _attempt(each.write, value)
        lasting = {each.name: (value, now) for each, value, now in changes if not each.is_runners}
        if lasting:
            new = sys.modules.keys() - self._modules
            _SET_BY_IMPORT[by] = {name: getattr(sys.modules[name], "__spec__", None) for name in new}, lasting
        _tell(by, [each.change(value, now) for each, value, now in changes])
        self._before, self._modules = _look(), set(sys.modules)


def _changes(before: _Values) -> _Changes:
    """Return the settings that differ, with both values; an unreadable value counts as unchanged."""
    limit, name_of_limit = sys.getrecursionlimit(), _SHARED[0].name
    # The calls below may need the recursion depth.
    sys.setrecursionlimit(max(limit, before[name_of_limit]))
    after = {**_look(), name_of_limit: limit}
    sys.setrecursionlimit(limit)
    pairs = [(each, before[each.name], after[each.name]) for each in _SHARED]
    return [(each, value, now) for each, value, now in pairs if None not in (value, now) and value != now]


def _attempt(act: Callable[..., Any], *values: Any) -> Any:
    """Read or write a value; None on an error, such as a working directory that is gone."""
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
    """Put back the standard streams at the end of a `with` block, and append the names of changed ones."""
    copies: dict[int, int] = {}
    for number in range(3):
        with suppress(OSError):
            copies[number] = os.dup(number)
    try:
        yield
    finally:
        for number, copy in copies.items():
            is_same = False
            with suppress(OSError):
                is_same = os.path.sameopenfile(number, copy)
            if not is_same:
                os.dup2(copy, number)
                changed.append(("the standard input", "the standard output", "the standard error")[number])
            os.close(copy)


class _AsBefore(logging.Handler):
    """Passes lines to the handlers that would have received them before."""

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


# Show results on stdout and mistakes on stderr, each once for all ranks.

FILE_COLUMNS = 10_000
"""Width of a table in a file: no row is folded and no column left out, because the reader can scroll."""


class _ResultsConsole(Console):
    """A console that raises if its reader has gone, instead of rich's exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled at the call."""
        raise  # noqa: PLE0704  called from rich's except clause


def results_console() -> Console:
    """Return the console for results: stdout, as wide as its terminal; whole rows in a file and a pipe."""
    # COLUMNS is the width of the terminal at the other end of a pipe; a launcher sets it for its ranks.
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((FILE_COLUMNS, 0)).columns
    return _ResultsConsole(file=sys.stdout, highlight=False, width=width)


def show_results(show: Callable[[Console], None]) -> None:
    """Show results on stdout. A closed stdout does not fail the run, because the results are in its files."""
    # A process may have been started without stdout.
    if not isinstance(sys.stdout, io.TextIOBase):
        return
    try:
        show(results_console())
        sys.stdout.flush()
    except OSError as error:
        _LOG.warning("cannot show the results: %s", error.strerror)
        # Python flushes stdout once more at exit, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class ExitCode:
    """The exit code of a program, filled in by `program`."""

    code: int = 0


@contextmanager
def program() -> Iterator[ExitCode]:
    """Run a program in the ``with`` block. Report an error of the user, and yield the place of its exit code."""
    # 2: an error in the request. 1: ranks cannot find each other, or a file cannot be written. 130: Ctrl-C. Only rank 0
    # reports an error that every rank finds.
    raise_on_ctrl_c()
    open_missing_streams()
    # Python collects cycles once more at exit, which takes half a second with all imports of a run.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    set_up_console_logging(claimed_rank())
    ended, message = ExitCode(), None
    try:
        with failures_recorded():
            yield ended
    except PeerStoppedError as error:
        _LOG.debug("%s", error)
        ended.code = 1
    except KeyboardInterrupt:
        # Before the jobs run, no other handler is installed.
        ended.code = INTERRUPTED
        report_interruption()
    except ArenaError as error:
        ended.code = 2 if isinstance(error, ConfigError) else 1
        # Rank 0 reports a mistake of the user for all, or each rank if its number is unknown.
        is_told = True
        with suppress(ConfigError):
            is_told = ended.code == 1 or DistributedContext.from_environment(device="cpu", visible_gpus=0).is_rank_zero
        if is_told:
            message = plain_text(error, keep_lines=True)
    except OSError as error:
        # A disk may fail at any moment, even if only a file's name was requested.
        if error.filename is None:
            raise
        _LOG.debug("a file could not be used", exc_info=True)
        ended.code, message = 1, plain_text(f"cannot use {error.filename}: {error.strerror}", keep_lines=True)
    if message is not None:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"error: {message}")
