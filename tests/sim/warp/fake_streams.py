"""Streams that only take notes, for tests of which stream Warp's work is told to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isaaclab_arena.sim.warp_kernels import GpuStreams


class FakeStream:
    """A stream that writes down whom it waits for."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self._notes = notes

    def wait_stream(self, other_stream: Any) -> None:
        self._notes.append(f"{self.name} waits for {other_stream.name}")


def fake_streams(notes: list[str]) -> GpuStreams:
    """Return streams that write what happens to them into ``notes``, in order."""

    @contextmanager
    def entered(stream: FakeStream) -> Iterator[None]:
        notes.append(f"in {stream.name}")
        yield
        notes.append(f"out of {stream.name}")

    blocking, independent, of_torch = (FakeStream(name, notes) for name in ("blocking", "independent", "torch"))
    return GpuStreams(blocking, independent, of_torch=lambda: of_torch, entered=entered)


def between(stream: str, *notes: str) -> list[str]:
    """Return the notes of work in a stream, after what torch was told before and before what it is told next."""
    return [f"{stream} waits for torch", f"in {stream}", *notes, f"out of {stream}", f"torch waits for {stream}"]
