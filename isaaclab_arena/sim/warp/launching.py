"""Launching Warp's work on a stream of its own, and what always does the same as one CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import warp

from isaaclab_arena.sim.warp.kernels import one_compiler_at_a_time, warp_device, warp_turn


class Launcher:
    """Launches Warp's kernels on one device.

    Warp has a stream of its own, because nothing can be captured on the stream that torch uses by default.

    Args:
        device: ``cuda:<index>``, or ``cpu``.

    Attributes:
        warp_device: Warp's name for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.warp_device = warp_device(device)
        self._device = device
        self._stream = warp.Stream(self.warp_device) if self.warp_device.is_cuda else None
        self._graphs: dict[str, warp.Graph | None] = {}

    @contextmanager
    def work(self) -> Iterator[None]:
        """Let Warp work on the device, after what torch was told before and before what it is told next."""
        if self._stream is None:
            with warp_turn(self.warp_device):
                yield
            return
        torch_stream = warp.stream_from_torch(torch.cuda.current_stream(self._device))
        self._stream.wait_stream(torch_stream)
        with warp_turn(self.warp_device), warp.ScopedStream(self._stream, sync_enter=False):
            yield
        torch_stream.wait_stream(self._stream)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Let Warp work on the device while other ranks wait, as kernels may be compiled."""
        with one_compiler_at_a_time(), warp_turn(self.warp_device):
            yield

    def launch(self, kind: str, launch: Callable[[], None]) -> None:
        """Launch kernels; other ranks wait the first time, which may compile them.

        Args:
            kind: What the kernels do.
            launch: Launches them.
        """
        with self.work():
            self._launch(kind, launch)

    def replay(self, kind: str, launch: Callable[[], None]) -> None:
        """Launch kernels that always do the same, on a GPU as one CUDA graph from the second time on.

        The first time compiles what is needed, which a graph under capture could not.

        Args:
            kind: What the kernels do.
            launch: Launches them.
        """
        with self.work():
            graph = self._graphs.get(kind)
            if graph is None and kind in self._graphs and self._stream is not None:
                with warp.ScopedCapture(device=self.warp_device, stream=self._stream) as capture:
                    launch()
                graph = self._graphs[kind] = capture.graph
            if graph is not None:
                warp.capture_launch(graph, stream=self._stream)
            else:
                self._launch(kind, launch)

    def forget_graphs(self) -> None:
        """Forget all graphs, as the arrays that they know were made anew."""
        self._graphs.clear()

    def _launch(self, kind: str, launch: Callable[[], None]) -> None:
        if kind in self._graphs:
            launch()
            return
        with one_compiler_at_a_time():
            launch()
        self._graphs[kind] = None
