"""Warp as this package uses it: its kernels compiled once for all ranks, and launched as graphs."""

import fcntl
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from threading import Condition
from typing import IO, Any, Protocol, Self

import torch
import warp

from isaaclab_arena.distributed.devices import gpu_address, visible_gpu_count
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.replayed import Capture, capture_on
from isaaclab_arena.sim.warp.kernel_times import KERNELS, KernelTimes, module_times

# Warp as this package uses it: quiet, on the device that a caller names, its kernels compiled once for all ranks.

_LOG = logging.getLogger(__name__)
_LOCK_FILE = "isaaclab_arena.lock"
_TURN = threading.RLock()
_NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"


def warp_device(device: torch.device) -> warp.Device:
    """Return Warp's name for a device of torch, Warp started quietly.

    Raises:
        EnvironmentBuildError: If Warp cannot use the GPU's driver, or if that is another GPU than torch's.
    """
    _start_warp()
    if device.type == "cuda":
        check_driver(warp.get_cuda_toolkit_version(), warp.get_cuda_driver_version())
    found = warp.device_from_torch(device)
    if device.type == "cuda":
        check_same_gpu(device, gpu_address(device), str(found.pci_bus_id))
        _LOG.info("worlds live on %s, which Warp calls %s, at PCI %s", device, found.alias, found.pci_bus_id)
    return found


def check_driver(toolkit: tuple[int, int] | None, driver: tuple[int, int] | None) -> None:
    """Refuse a driver with which Warp finds no GPU, although torch may.

    Args:
        toolkit: Version of CUDA that Warp was built with, None if without.
        driver: Version of CUDA that the driver supports, None if Warp finds no driver.

    Raises:
        EnvironmentBuildError: If Warp cannot use the driver.
    """
    way_out = "or use the backend 'mujoco'"
    if toolkit is None:
        raise EnvironmentBuildError(f"this Warp is built without CUDA; install another wheel of warp-lang, {way_out}")
    needed = f"Warp {warp.__version__} needs a driver for CUDA {toolkit[0]}.0 or newer"
    if driver is None:
        raise EnvironmentBuildError(f"{needed}, and finds none; install one, {way_out}")
    if driver < (toolkit[0], 0):
        raise EnvironmentBuildError(f"{needed}, and this one is for CUDA {driver[0]}.{driver[1]}; update it, {way_out}")


def trim_graph_memory(device: warp.Device) -> None:
    """Give the memory of graphs that are gone back to the GPU, where torch cannot use it otherwise.

    Args:
        device: Warp's name for the GPU; on the CPU nothing is done.
    """
    if device.is_cuda:
        # Warp binds this function of CUDA and gives it no public name.
        device.runtime.core.wp_cuda_device_graph_mem_trim(device.ordinal)


def check_same_gpu(device: torch.device, torch_address: str, warp_address: str) -> None:
    """Refuse to simulate on another GPU than networks run on.

    Args:
        device: Its name in torch.
        torch_address: Where on the PCI bus torch sees it.
        warp_address: Where Warp sees the one that has the same index.

    Raises:
        EnvironmentBuildError: If these are two.
    """
    if torch_address.upper() != warp_address.upper():
        raise EnvironmentBuildError(
            f"torch's {device} is the GPU at PCI {torch_address}, and Warp's the one at {warp_address}: they count "
            "GPUs differently; set CUDA_DEVICE_ORDER=PCI_BUS_ID, and CUDA_VISIBLE_DEVICES to one GPU for each rank"
        )


@contextmanager
def warp_turn(device: warp.Device | str) -> Iterator[None]:
    """Let this thread use Warp on a device while other threads of the process wait.

    Warp's current device, and the current stream of each device, belong to the whole process. On a GPU the turn is
    short: it takes only as long as telling the device what to do.
    """
    with _TURN, warp.ScopedDevice(device):
        yield


def cpu_turn() -> AbstractContextManager[None]:
    """Let this thread use Warp on the CPU: at the same time as others where there is no GPU, else see `warp_turn`."""
    return warp_turn("cpu") if warp.is_cuda_available() else _CPU_USERS.one_of_many()


def capture_turn() -> AbstractContextManager[None]:
    """Let this thread capture a graph, while no thread is in a `cpu_turn`.

    Warp has one capture for the whole process. It records what this thread launches, but threads that launch on the
    CPU meanwhile add the arrays that they use to the same list, without a lock.
    """
    return _CPU_USERS.alone()


class _CpuUsers:
    """How many threads use Warp on the CPU without a turn."""

    def __init__(self) -> None:
        self._number = 0
        self._changed = Condition()

    @contextmanager
    def one_of_many(self) -> Iterator[None]:
        with self._changed:
            self._number += 1
        try:
            yield
        finally:
            with self._changed:
                self._number -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        # Nobody begins as long as this thread holds the lock, and it gives it up while it waits.
        with self._changed:
            self._changed.wait_for(lambda: self._number == 0)
            yield


_CPU_USERS = _CpuUsers()


def one_compiler_at_a_time() -> AbstractContextManager[None]:
    """Let one process of this machine compile Warp's kernels while the others wait and then take what it compiled.

    Within such a block another one changes nothing.
    """
    _start_warp()
    return _COMPILERS.one_at_a_time(Path(str(warp.config.kernel_cache_dir)) / _LOCK_FILE)


class _Compilers:
    """Who may compile: one thread of one process."""

    def __init__(self) -> None:
        self._depth = 0
        self._has_waited = False

    @contextmanager
    def one_at_a_time(self, path: Path) -> Iterator[None]:
        # The same lock as that of Warp's turn: with two, two threads could each hold one and wait for the other.
        with _TURN:
            self._depth += 1
            try:
                # Who holds a lock on a file and asks for it once more waits for itself.
                with self._locked(path) if self._depth == 1 else nullcontext():
                    yield
            finally:
                self._depth -= 1

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        with ExitStack() as held:
            try:
                lock = held.enter_context(path.open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._wait_for(lock)
            except OSError as error:
                # Home directories lie on file systems without locks, or on read-only ones.
                _LOG.debug("no lock on Warp's kernels, so ranks may compile them several times: %s", error)
            yield

    def _wait_for(self, lock: IO[str]) -> None:
        # The first time may take minutes; later ones are short, for the kernels are there.
        _LOG.log(
            logging.DEBUG if self._has_waited else logging.INFO,
            "waiting until another process has compiled or loaded its kernels",
        )
        self._has_waited = True
        began = time.perf_counter()
        fcntl.flock(lock, fcntl.LOCK_EX)
        KERNELS.add(KernelTimes(wait_s=time.perf_counter() - began))


_COMPILERS = _Compilers()


class _Listener:
    """Warp's log: it goes into this package's, and what it says of kernels is counted."""

    def debug(self, message: str) -> None:
        _LOG.debug("%s", message)

    def info(self, message: str) -> None:
        times = module_times(message)
        KERNELS.add(times)
        if not times.load_s:
            _LOG.debug("%s", message)

    def warning(self, message: str, category: type[Warning] | None = None, stacklevel: int = 1) -> None:
        del category, stacklevel
        _LOG.debug("%s", message)

    def error(self, message: str) -> None:
        _LOG.error("Warp: %s", message)


def _start_warp() -> None:
    # On this level Warp tells how long each module of kernels took, and whether it was compiled.
    warp.config.log_level = warp.LOG_INFO
    warp.set_logger(_Listener())
    with _TURN:
        _initialise()


@cache
def _initialise() -> None:
    # Where torch sees a GPU, a driver that Warp does not find is worth a line.
    with nullcontext() if visible_gpu_count() else stderr_without(_NO_DRIVER):
        warp.init()


@contextmanager
def stderr_without(words: bytes) -> Iterator[None]:
    """Leave lines out that native code writes to stderr; whatever else is written meanwhile is shown at the end.

    Args:
        words: What the lines hold.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        said = TemporaryFile()  # noqa: SIM115  it is closed once stderr is itself again
        screen = os.dup(2)
    except OSError:
        # Without a stderr there is nothing to leave out, and without room for what it says, that is shown.
        yield
        return
    os.dup2(said.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        with said:
            said.seek(0)
            os.write(2, b"".join(line for line in said if words not in line))


# Launching Warp's work on streams of its own, and what always does the same as one graph.


class Stream(Protocol):
    """What is asked of Warp's streams here."""

    def wait_stream(self, other_stream: Any) -> None:
        """Begin nothing further before another stream has done all that it was told so far."""


class GpuStreams:
    """The two streams in which Warp works on a GPU, after what torch was told before and before what it is told next.

    Warp gives temporary memory back as soon as a launch has been told, in the order of the GPU's default stream. So
    launches have a stream that takes turns with that one, as Warp's own streams do. A graph keeps its memory, and must
    not take turns: the default stream, where another thread's network computes, would have to rest while a graph is
    captured, and to wait while it is replayed.

    Args:
        blocking: A stream that takes turns with the default stream.
        independent: One that does not.
        of_torch: Returns torch's current stream.
        entered: Makes a stream Warp's current one.
    """

    def __init__(
        self,
        blocking: Stream,
        independent: Stream,
        *,
        of_torch: Callable[[], Stream],
        entered: Callable[[Any], AbstractContextManager[Any]],
    ) -> None:
        self._blocking, self._independent = blocking, independent
        self._of_torch, self._entered = of_torch, entered

    @classmethod
    def on(cls, device: torch.device) -> Self:
        """Return streams of a GPU."""
        # Torch's streams are independent. It hands out a few of each priority in turn, and all others that are asked
        # for here have the usual priority, so this one is nobody else's.
        independent = torch.cuda.Stream(device, priority=-1)
        return cls(
            warp.Stream(warp.device_from_torch(device)),
            warp.stream_from_torch(independent),
            of_torch=lambda: warp.stream_from_torch(torch.cuda.current_stream(device)),
            entered=partial(warp.ScopedStream, sync_enter=False),
        )

    def for_launches(self) -> AbstractContextManager[None]:
        """Let Warp launch kernels one by one."""
        return self._ordered(self._blocking)

    def for_graphs(self) -> AbstractContextManager[None]:
        """Let Warp capture and replay graphs."""
        return self._ordered(self._independent)

    @contextmanager
    def _ordered(self, stream: Stream) -> Iterator[None]:
        torch_stream = self._of_torch()
        stream.wait_stream(torch_stream)
        with self._entered(stream):
            yield
        torch_stream.wait_stream(stream)


class Launcher:
    """Launches Warp's kernels on one device.

    Args:
        device: ``cuda:<index>``, or ``cpu``.
        streams: Where they run on a GPU; by default streams of its own. On the CPU there are none.
        capture: Captures what torch does there between them; by default as a graph of a GPU.

    Attributes:
        warp_device: Warp's name for it.
        capture: The same, None if nothing is to be captured.
    """

    def __init__(
        self, device: torch.device, *, streams: GpuStreams | None = None, capture: Capture | None = None
    ) -> None:
        self.warp_device = warp_device(device)
        self.capture = self._in_turn(capture or capture_on(device))
        self._streams = GpuStreams.on(device) if streams is None and self.warp_device.is_cuda else streams
        self._graphs: dict[str, warp.Graph | None] = {}

    @contextmanager
    def work(self) -> Iterator[None]:
        """Let Warp work on the device, after what torch was told before and before what it is told next."""
        streams = self._streams
        with warp_turn(self.warp_device), nullcontext() if streams is None else streams.for_launches():
            yield

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Let Warp work on the device while other ranks wait, as kernels may be compiled."""
        with one_compiler_at_a_time(), self.work():
            yield

    def replay(self, kind: str, launch: Callable[[], None]) -> None:
        """Launch kernels that always do the same, from the second time on as one graph.

        The first time compiles what is needed, which a graph under capture could not.

        Args:
            kind: What the kernels do.
            launch: Launches them.
        """
        if kind not in self._graphs:
            with self.compiling():
                launch()
            self._graphs[kind] = None
            return
        streams = self._streams
        with warp_turn(self.warp_device), nullcontext() if streams is None else streams.for_graphs():
            graph = self._graphs[kind] = self._graphs[kind] or self._captured(launch)
            warp.capture_launch(graph)

    def _in_turn(self, capture: Capture | None) -> Capture | None:
        """Return what captures torch's work while no other thread captures Warp's.

        Torch waits for the whole GPU before it captures, and while something is captured nothing may wait for that.
        """
        if capture is None:
            return None

        def captured(work: Callable[[], None]) -> Callable[[], None]:
            with warp_turn(self.warp_device):
                return capture(work)

        return captured

    def forget_graphs(self) -> None:
        """Forget all graphs, before arrays that they know are made anew, and give back their memory."""
        with warp_turn(self.warp_device):
            # What a graph still does with those arrays has to end before they are gone.
            warp.synchronize_device(self.warp_device)
            self._graphs.clear()
            trim_graph_memory(self.warp_device)

    def _captured(self, launch: Callable[[], None]) -> Any:
        with capture_turn(), warp.ScopedCapture(device=self.warp_device) as capture:
            launch()
        return capture.graph
