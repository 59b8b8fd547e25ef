"""A GPU for machines without one: code that mixes its tensors with those of the CPU fails as it would on CUDA.

While a `PretendGpu` is active there is a device `GPU`. Its tensors are computed with on the CPU, but whatever meets
them meets CUDA's rules:

- An operation of tensors on both devices raises. Numbers (CPU tensors without dimensions) may join elementwise
  arithmetic, CPU tensors may be indices of a GPU tensor, and copies and conversions lead from one to the other.
- ``numpy()`` raises; ``cpu()`` is needed first.
- What makes the CPU wait for a GPU is counted: numbers that are read back, sizes that depend on values, and copies
  between the two in either direction, which are ordinary memory to CUDA. Copies to the GPU that are said to be
  ``non_blocking`` are not: CUDA has read what it copies when the call returns.

The device is torch's ``lazy:0``: torch without CUDA refuses views of tensors that say they are on CUDA, and of the
devices that it does not refuse, ``meta`` has rules of its own.

It cannot see what needs a GPU to go wrong: streams and their order, memory that Warp has given back, kernels that CUDA
does not have, precision, and ``device.type == "cuda"``.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("lazy", 0)
_CPU = torch.device("cpu")
_PACKAGES = ("isaaclab_arena", "isaaclab_arena_gr00t")

_CONVERSIONS = frozenset({"aten::copy_", "aten::_to_copy"})
_INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
# Elementwise, and yet CUDA refuses bounds on the CPU.
_WITHOUT_NUMBERS = frozenset({"aten::clamp", "aten::clamp_"})
_READ_BACK = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "_unique2", "equal", "masked_select", "nonzero", "repeat_interleave"),
        *("unique_consecutive", "unique_dim"),
    )
)


class Wait(NamedTuple):
    """A moment in which the CPU waits for the GPU: the line of the package that makes it wait, and the operation."""

    where: str
    what: str


class GpuTensor(torch.Tensor):
    """A tensor that says it is on the GPU; its numbers are in ``held``, of the same shape, on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "GpuTensor":
        # A view of an ordinary tensor is an ordinary tensor in inference mode too, and only outside is it made as one.
        with torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext():
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=GPU,
            )
        tensor.held = held
        return tensor

    def __init__(self, held: torch.Tensor) -> None:
        """Wrap numbers, which stay where they are: who writes to one writes to both."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute on the CPU what CUDA would compute, and refuse what it would refuse."""
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers, for which the CPU waits."""
        _note("tolist")
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> NoReturn:
        """Refuse, as there is no array of what is not in the CPU's memory."""
        raise TypeError(f"can't convert {GPU} device type tensor to numpy. Use Tensor.cpu() first.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be stored as CUDA's tensors are when they are to be read where there is no GPU."""
        return self.held.detach().__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({self.held!r})"


class PretendGpu:
    """A GPU for as long as it is entered, in this thread.

    Attributes:
        waits: When the CPU waited for it, in order.
    """

    _active: "PretendGpu | None" = None

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self._modes = (_Data(), _Operations())

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        PretendGpu._active = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        PretendGpu._active = None
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, traceback)

    @classmethod
    def note(cls, what: str) -> None:
        """Count a moment in which the CPU waits, if there is a GPU to wait for."""
        if cls._active is not None:
            cls._active.waits.append(Wait(where=_place(sys._getframe(1)), what=what))


_note = PretendGpu.note


class _Operations(TorchDispatchMode):
    """Sees operations without a tensor of the GPU among their arguments: those that are told to make one."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


class _Data(TorchFunctionMode):
    """Sees tensors made of Python's own numbers, which torch puts on the device before operations are seen."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in {torch.tensor, torch.as_tensor} and _is_gpu(options.get("device")):
            del options["device"]
            return func(*args, **options).to(GPU)
        if func is torch.Tensor.new_tensor:
            device = options.pop("device", args[0].device)
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **options}).to(device)
        if func in {torch.Tensor.__getitem__, torch.Tensor.__setitem__} and isinstance(args[0], GpuTensor):
            tensor, index, *value = args
            return func(tensor, _without_lists(index), *value)
        return func(*args, **options)


def _without_lists(index: Any) -> Any:
    """Return an index in which lists of numbers are tensors."""
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(index) if isinstance(index, list) else index


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Result of an operation on the device on which CUDA would compute it."""
    given = list(_tensors((*args, *kwargs.values())))
    on_gpu = [tensor for tensor in given if isinstance(tensor, GpuTensor)]
    device = kwargs.get("device")
    result_on_gpu = bool(on_gpu) if device is None else _is_gpu(device)
    name = func._schema.name
    if on_gpu:
        _refuse_mixtures(func, name, given)
        if torch.Tag.inplace_view in func.tags:
            raise NotImplementedError(f"the pretended GPU cannot change the shape of a tensor in place: {name}")
    if on_gpu or result_on_gpu:
        _refuse_foreign_generator(kwargs, on_gpu=result_on_gpu)
        _count_waits(name, args, given, result_on_gpu=result_on_gpu, is_told=_is_told(func, args, kwargs))
    result = func(*(_held(arg) for arg in args), **{key: _held(value) for key, value in kwargs.items()})
    known = {id(tensor.held): tensor for tensor in on_gpu}
    return _wrapped(result, known) if result_on_gpu else result


def _refuse_mixtures(func: Any, name: str, given: Sequence[torch.Tensor]) -> None:
    on_cpu = [tensor for tensor in given if not isinstance(tensor, GpuTensor)]
    if not on_cpu or name in _CONVERSIONS:
        return
    if name in _INDEXING:
        indexed = given[0]
        if not isinstance(indexed, GpuTensor):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if name == "aten::index" or isinstance(given[-1], GpuTensor) or given[-1].ndim == 0:
            return
    takes_numbers = torch.Tag.pointwise in func.tags and name not in _WITHOUT_NUMBERS
    is_changed = func._schema.is_mutable and not isinstance(given[0], GpuTensor)
    if takes_numbers and not is_changed and all(tensor.ndim == 0 for tensor in on_cpu):
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {GPU} and cpu! ({name})"
    )


def _refuse_foreign_generator(kwargs: Mapping[str, Any], *, on_gpu: bool) -> None:
    generator = kwargs.get("generator")
    if on_gpu and generator is not None and generator.device == _CPU:
        raise RuntimeError(f"Expected a '{GPU.type}' device type for generator but found 'cpu'")


def _is_told(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a copy is only enqueued."""
    names = [argument.name for argument in func._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("non_blocking"))


def _count_waits(
    name: str, args: Sequence[Any], given: Sequence[torch.Tensor], *, result_on_gpu: bool, is_told: bool
) -> None:
    if name in _READ_BACK:
        _note(name)
    elif name in _CONVERSIONS:
        source_on_gpu = isinstance(given[-1], GpuTensor)
        target_on_gpu = isinstance(given[0], GpuTensor) if name == "aten::copy_" else result_on_gpu
        if source_on_gpu != target_on_gpu and not (is_told and target_on_gpu):
            _note(f"{name} to the {'GPU' if target_on_gpu else 'CPU'}")
    elif name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        fills = name != "aten::index" and given[-1].numel() == 1
        if any(not isinstance(index, GpuTensor) for index in indices):
            _note(f"{name} with indices of the CPU")
        elif any(index.dtype is torch.bool for index in indices) and not fills:
            _note(f"{name} with a mask")


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of the package on the way to a frame."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        for package in _PACKAGES:
            if package in path.parts:
                inside = "/".join(path.parts[path.parts.index(package) + 1 :])
                return f"{inside}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "outside of the package"


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == GPU.type


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _held(value: Any) -> Any:
    if isinstance(value, GpuTensor):
        return value.held
    if isinstance(value, torch.device):
        return _CPU
    if isinstance(value, list | tuple):
        return type(value)(map(_held, value))
    return value


def _wrapped(result: Any, known: Mapping[int, GpuTensor]) -> Any:
    """Return results as tensors of the GPU; one that is an argument, which was changed in place, as that argument."""
    if isinstance(result, torch.Tensor):
        return known.get(id(result)) if id(result) in known else GpuTensor(result)
    if isinstance(result, list | tuple):
        return type(result)(_wrapped(each, known) for each in result)
    return result
