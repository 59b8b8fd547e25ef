"""Warp as this package uses it: its kernels compiled once for all ranks, and launched as graphs."""

import fcntl
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from threading import Condition
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import warp

from isaaclab_arena.distributed.devices import gpu_address, visible_gpu_count
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.logs import KERNELS, KernelTimes, module_times
from isaaclab_arena.sim.backend import Capture, capture_on

_LOG = logging.getLogger(__name__)
_TURN = threading.RLock()
_NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"


def warp_device(device: torch.device) -> warp.Device:
    """Return Warp's device for a torch device; EnvironmentBuildError if the driver fails or the GPUs differ."""
    _start_warp()
    if device.type == "cuda":
        check_driver(warp.get_cuda_toolkit_version(), warp.get_cuda_driver_version())
    found = warp.device_from_torch(device)
    if device.type == "cuda":
        check_same_gpu(device, gpu_address(device), str(found.pci_bus_id))
        _LOG.info("worlds live on %s, which Warp calls %s, at PCI %s", device, found.alias, found.pci_bus_id)
    return found


def check_driver(toolkit: tuple[int, int] | None, driver: tuple[int, int] | None) -> None:
    """Raise EnvironmentBuildError if Warp finds no GPU with this driver, although torch may."""
    # ``toolkit`` is the CUDA version of Warp's build (None: no CUDA), ``driver`` that of the driver (None: no driver).
    way_out = "or use the backend 'mujoco'"
    if toolkit is None:
        raise EnvironmentBuildError(f"this Warp is built without CUDA; install another wheel of warp-lang, {way_out}")
    needed = f"Warp {warp.__version__} needs a driver for CUDA {toolkit[0]}.0 or newer"
    if driver is None:
        raise EnvironmentBuildError(f"{needed}, and finds none; install one, {way_out}")
    if driver < (toolkit[0], 0):
        raise EnvironmentBuildError(f"{needed}, and this one is for CUDA {driver[0]}.{driver[1]}; update it, {way_out}")


def check_same_gpu(device: torch.device, torch_address: str, warp_address: str) -> None:
    """Raise EnvironmentBuildError if torch and Warp see different PCI addresses for one device index."""
    if torch_address.upper() != warp_address.upper():
        way_out = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, and CUDA_VISIBLE_DEVICES to one GPU for each rank"
        seen = f"torch's {device} is the GPU at PCI {torch_address}, and Warp's the one at {warp_address}"
        raise EnvironmentBuildError(f"{seen}: they count GPUs differently; {way_out}")


@contextmanager
def warp_turn(device: warp.Device | str) -> Iterator[None]:
    """Give this thread exclusive use of Warp, on a device, in this process."""
    # Warp's current device and each device's current stream are global to the process. On a GPU the turn is short: only
    # as long as the launches, not the work.
    with _TURN, warp.ScopedDevice(device):
        yield


_CPU_USERS = SimpleNamespace(number=0, changed=Condition())
"""The ``number`` of threads that use Warp's CPU without a turn; a thread that holds ``changed`` keeps others out."""


@contextmanager
def cpu_turn() -> Iterator[None]:
    """Give this thread use of Warp on the CPU: shared if the machine has no GPU, else a `warp_turn`."""
    if warp.is_cuda_available():
        with warp_turn("cpu"):
            yield
        return
    with _CPU_USERS.changed:
        _CPU_USERS.number += 1
    try:
        yield
    finally:
        with _CPU_USERS.changed:
            _CPU_USERS.number -= 1
            _CPU_USERS.changed.notify_all()


_COMPILING = SimpleNamespace(depth=0, has_waited=False, is_possible=False)
"""The number of nested blocks of this process with the right to compile, True if one had to wait for it, and True if
Warp is initialised."""


@contextmanager
def one_compiler_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile Warp's kernels; others wait and load the results. Reentrant."""
    _start_warp()
    # The same lock as Warp's turn: with two locks, two threads could each hold one and wait for the other.
    with _TURN, ExitStack() as held:
        _COMPILING.depth += 1
        try:
            try:
                # A second lock of the same file in one process would wait for itself.
                if _COMPILING.depth == 1:
                    lock = held.enter_context(Path(str(warp.config.kernel_cache_dir), "isaaclab_arena.lock").open("a"))
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        # The first wait may take minutes; later ones are short, because the kernels are cached.
                        level = logging.DEBUG if _COMPILING.has_waited else logging.INFO
                        _LOG.log(level, "waiting until another process has compiled or loaded its kernels")
                        _COMPILING.has_waited = True
                        began = time.perf_counter()
                        fcntl.flock(lock, fcntl.LOCK_EX)
                        KERNELS.add(KernelTimes(wait_s=time.perf_counter() - began))
            except OSError as error:
                # Some home directories are on file systems without locks, or read-only.
                _LOG.debug("no lock on Warp's kernels, so ranks may compile them several times: %s", error)
            yield
        finally:
            _COMPILING.depth -= 1


class _Listener:
    """Warp's logger: forwards to this package's log, and counts kernel times."""

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
    # At this level Warp logs how long each module of kernels took, and if it was compiled.
    warp.config.log_level = warp.LOG_INFO
    warp.set_logger(_Listener())
    with _TURN:
        if not _COMPILING.is_possible:
            # If torch sees a GPU, a driver that Warp cannot find is worth a line.
            with nullcontext() if visible_gpu_count() else stderr_without(_NO_DRIVER):
                warp.init()
            _COMPILING.is_possible = True


@contextmanager
def stderr_without(words: bytes) -> Iterator[None]:
    """Drop lines with ``words`` that native code writes to stderr; other lines appear when the block ends."""
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        said = TemporaryFile()  # noqa: SIM115  it is closed once stderr is itself again
        screen = os.dup(2)
    except OSError:
        # Without a stderr there is nothing to filter. Without room for a file the output is shown unfiltered.
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


Stream: TypeAlias = Any  # one of Warp's; only `wait_stream` is used


@dataclass(frozen=True)
class GpuStreams:
    """Warp's two streams on a GPU, ordered after earlier torch work and before later torch work."""

    # Warp frees temporary memory as soon as a launch is queued, in the order of the GPU's default stream. So single
    # launches use a stream that synchronises with that one, as Warp's own streams do.
    blocking: Stream
    # A graph keeps its memory and must not synchronise. Else the default stream, where another thread's network runs,
    # would stop during a capture, and wait during a replay.
    independent: Stream
    of_torch: Callable[[], Stream]  # torch's current stream
    entered: Callable[[Any], AbstractContextManager[Any]]  # makes a stream Warp's current one

    @contextmanager
    def ordered(self, stream: Stream) -> Iterator[None]:
        """Let Warp work in one of the streams."""
        torch_stream = self.of_torch()
        stream.wait_stream(torch_stream)
        with self.entered(stream):
            yield
        torch_stream.wait_stream(stream)


class Launcher:
    """Launches Warp's kernels on one device (``cuda:<index>`` or ``cpu``)."""

    def __init__(
        self, device: torch.device, *, streams: GpuStreams | None = None, capture: Capture | None = None
    ) -> None:
        # On the CPU there are no streams. ``capture`` is for torch's work between the kernels, by default as a GPU
        # graph; None if nothing can be captured.
        self.warp_device = warp_device(device)
        capture = capture or capture_on(device)

        # Torch waits for the whole GPU before it captures, and no wait for the GPU is allowed during a capture. So no
        # other thread may capture Warp's work meanwhile.
        def in_turn(capture: Capture, work: Callable[[], None]) -> Callable[[], None]:
            with warp_turn(self.warp_device):
                return capture(work)

        self.capture: Capture | None = partial(in_turn, capture) if capture else None
        self._streams = streams
        if streams is None and self.warp_device.is_cuda:
            # Torch's streams are independent of the default stream. Torch hands out a few per priority in rotation. All
            # other streams here have the default priority, so this one is not shared.
            independent = torch.cuda.Stream(device, priority=-1)
            self._streams = GpuStreams(
                warp.Stream(warp.device_from_torch(device)),
                warp.stream_from_torch(independent),
                of_torch=lambda: warp.stream_from_torch(torch.cuda.current_stream(device)),
                entered=partial(warp.ScopedStream, sync_enter=False),
            )
        self._graphs: dict[str, warp.Graph | None] = {}

    @contextmanager
    def work(self) -> Iterator[None]:
        """Let Warp work on the device, after earlier and before later torch work."""
        streams = self._streams
        with warp_turn(self.warp_device), nullcontext() if streams is None else streams.ordered(streams.blocking):
            yield

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Let Warp work on the device while other ranks wait, because kernels may be compiled."""
        with one_compiler_at_a_time(), self.work():
            yield

    def replay(self, kind: str, launch: Callable[[], None]) -> None:
        """Launch kernels that always do the same, from the second time on as one graph."""
        # The first call compiles the kernels, which is impossible under capture.
        if kind not in self._graphs:
            with self.compiling():
                launch()
            self._graphs[kind] = None
            return
        streams = self._streams
        with warp_turn(self.warp_device), nullcontext() if streams is None else streams.ordered(streams.independent):
            graph: Any = self._graphs[kind]
            if graph is None:
                # No thread may be in a `cpu_turn` meanwhile. Warp has one capture per process. It records this thread's
                # launches alone, but CPU launches of other threads add their arrays to the same list, without a lock.
                with _CPU_USERS.changed:
                    _CPU_USERS.changed.wait_for(lambda: _CPU_USERS.number == 0)
                    with warp.ScopedCapture(device=self.warp_device) as capture:
                        launch()
                graph = self._graphs[kind] = capture.graph
            warp.capture_launch(graph)

    def forget_graphs(self) -> None:
        """Delete all graphs, before their arrays are replaced, and release their memory."""
        with warp_turn(self.warp_device):
            # Running graphs have to end before their arrays are freed.
            warp.synchronize_device(self.warp_device)
            self._graphs.clear()
            if self.warp_device.is_cuda:
                # Torch can use the memory then. Warp binds this CUDA function without a public name.
                self.warp_device.runtime.core.wp_cuda_device_graph_mem_trim(self.warp_device.ordinal)
