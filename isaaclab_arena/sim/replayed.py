"""Torch's work that is the same each time, told to a GPU at once and not kernel by kernel.

A verdict on a step is a hundred kernels of a microsecond each, and to tell a GPU one of them takes ten.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LOG = logging.getLogger(__name__)
_FIRST_TIMES = 2  # calls that do the work kernel by kernel before it is captured; the last one is watched
_ATEN = torch.ops.aten
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
_CONSTANTS = (_ATEN.lift_fresh.default,)
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)

_Result = TypeVar("_Result")

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures the kernels of a function without a run, and returns a function that runs them on the same memory."""


def capture_on(device: torch.device) -> Capture | None:
    """Return a capture of a device's work as a graph, None for a device without graphs."""
    return partial(_graph_of, device) if device.type == "cuda" else None


def _graph_of(device: torch.device, work: Callable[[], None]) -> Callable[[], None]:
    try:
        return _captured_graph(device, work)
    except RuntimeError:
        # After a failed capture, torch yields no random numbers of the GPU until another capture succeeds.
        _captured_graph(device, lambda: torch.zeros(1, device=device))
        raise


def _captured_graph(device: torch.device, work: Callable[[], Any]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    with (
        torch.cuda.device(device),
        # A failed capture leaves its stream the current one, so that is restored here.
        torch.cuda.stream(torch.cuda.current_stream(device)),
        # Calls of other threads to the GPU are allowed meanwhile.
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        work()
    return graph.replay


class Replayed(Generic[_Result]):
    """Work that is captured at its third call, and replayed from then on."""

    def __init__(
        self, work: Callable[[], _Result], capture: Capture | None, *, keeper: object | None = None, name: str
    ) -> None:
        # The first calls create constants on the device. Work that waits for the device, or that cannot be captured for
        # another reason, always runs kernel by kernel.
        # ``work`` does the same each time, with tensors at fixed addresses; its result is valid until the next call. It
        # may set tensor attributes of ``keeper``, which keep their addresses and get the new values.
        self._work, self._capture, self._keeper, self._name = work, capture, keeper, name
        self._times_done = 0
        self._kept: Mapping[str, torch.Tensor] = {}
        self._replay: Callable[[], None] | None = None
        self._result: list[_Result] = []

    def __call__(self) -> _Result:
        """Do the work."""
        # During a capture no other thread may draw from the GPU's default random generator, as a policy beside a
        # simulation thread may do.
        if self._capture is None or threading.current_thread() is not threading.main_thread():
            return self._work()
        self._times_done += 1
        if self._times_done < _FIRST_TIMES:
            return self._work()
        if self._times_done == _FIRST_TIMES:
            # Rule out a capture if the work waits: after a failed capture torch may be in a bad state.
            with _Watch() as watch:
                result = self._work()
            if watch.waits:
                self._give_up(f"it waits for the device in {', '.join(sorted(watch.waits))}")
            return result
        try:
            # A failed capture is no error: the work runs kernel by kernel from now on.
            if self._replay is None:
                self._replay = self._captured(self._capture)
            replaced = [name for name, tensor in self._kept.items() if getattr(self._keeper, name) is not tensor]
        except RuntimeError as error:
            self._give_up(str(error))
            return self._work()
        if replaced:
            self._give_up(f"'{replaced[0]}' was set elsewhere, and not changed in place")
            return self._work()
        self._replay()
        return self._result[0]

    def forget(self) -> None:
        """Release the graph, and begin anew: the work's tensors may have been replaced."""
        self._replay = None
        self._kept = {}
        self._result.clear()
        self._times_done = 0

    def _give_up(self, why: str) -> None:
        _LOG.info("%s is not replayed as a graph, which takes longer: %s", self._name, why)
        self._capture = None

    def _captured(self, capture: Capture) -> Callable[[], None]:
        kept = self._kept = _tensors_of(self._keeper)
        self._result.clear()

        def work_in_place() -> None:
            self._result.append(self._work())
            new = _tensors_of(self._keeper)
            # A value in the memory of another kept tensor would be overwritten before it is read.
            places = {tensor.untyped_storage().data_ptr() for tensor in kept.values()}
            safe = {
                name: new[name].clone() if new[name].untyped_storage().data_ptr() in places else new[name]
                for name, tensor in kept.items()
                if new[name] is not tensor
            }
            for name, tensor in safe.items():
                if tensor.shape != kept[name].shape or tensor.dtype != kept[name].dtype:
                    raise RuntimeError(f"'{name}' is {tensor.dtype} of shape {tuple(tensor.shape)} now")
                kept[name].copy_(tensor)

        try:
            return capture(work_in_place)
        finally:
            for name, tensor in kept.items():
                setattr(self._keeper, name, tensor)


class _Watch(TorchDispatchMode):
    """Records the operations that wait for a GPU: they read its results or send it data."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: set[str] = set()  # names of these operations

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        values = [*args, *(kwargs or {}).values(), result]
        if func in _INDEXING:
            # A mask index needs the number of true entries, which only the device knows.
            indices = [tensor for tensor in tree_leaves(values[1]) if tensor is not None]
            waits = any(tensor.dtype in {torch.bool, torch.uint8} for tensor in indices)
        elif torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            waits = True
        else:
            # CPU scalars are passed to a kernel by value.
            tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.ndim]
            is_between_devices = len({tensor.device for tensor in tensors}) > 1
            waits = func in _CONSTANTS or (func in _COPIES and is_between_devices)
        if waits:
            self.waits.add(str(func))
        return result


def _tensors_of(keeper: object | None) -> dict[str, torch.Tensor]:
    attributes = {} if keeper is None else vars(keeper)
    return {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}
