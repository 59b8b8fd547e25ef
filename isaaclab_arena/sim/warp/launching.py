"""Launching Warp's work on streams of its own, and what always does the same as one graph."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, Self

import torch
import warp

from isaaclab_arena.sim.replayed import Capture, capture_on
from isaaclab_arena.sim.warp.kernels import (
    capture_turn,
    one_compiler_at_a_time,
    trim_graph_memory,
    warp_device,
    warp_turn,
)


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
