"""Turns what a policy remembers into bytes and back: numbers, texts, tensors, arrays, and containers of them."""

from __future__ import annotations

import collections
import json
import struct
import typing

import numpy as np
import torch

_HEADER = struct.Struct("<I")


def packed(value: typing.Any) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: If something in it is of another kind.
    """
    blobs: list[bytes] = []
    header = json.dumps(_described(value, blobs)).encode()
    return b"".join([_HEADER.pack(len(header)), header, *blobs])


def unpacked(data: bytes, device: torch.device) -> typing.Any:
    """Return a value, all of it in new memory, tensors in the layout that they had: last digits may depend on it.

    Args:
        data: What `packed` gave, and perhaps more behind it.
        device: Where its tensors are that were not on the CPU.
    """
    (size,) = _HEADER.unpack_from(data)
    start = _HEADER.size + size
    return _Reader(data, start, device).value(json.loads(data[_HEADER.size : start]))


def raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes of the numbers of a tensor."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _described(value: typing.Any, blobs: list[bytes]) -> typing.Any:
    """Return a value as JSON, and add the bytes of its arrays to others."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is torch.Tensor:
        blobs.append(raw(value))
        name = str(value.dtype).removeprefix("torch.")
        place = "cpu" if value.device.type == "cpu" else "device"
        return {"kind": "tensor", "of": [name, list(value.shape), list(value.stride()), place]}
    if kind is np.ndarray and value.dtype.kind in "biuf":
        blobs.append(value.tobytes())
        return {"kind": "array", "of": [value.dtype.str, list(value.shape)]}
    if kind is dict:
        return {"kind": "dict", "of": [[_described(each, blobs) for each in pair] for pair in value.items()]}
    if kind in (list, tuple, collections.deque):
        described = {"kind": kind.__name__, "of": [_described(each, blobs) for each in value]}
        return {**described, "maxlen": value.maxlen} if kind is collections.deque else described
    raise TypeError(f"a {kind.__name__} is kept, which cannot be carried from one step to the next")


class _Reader:
    """Reads the arrays of a value one after the other."""

    def __init__(self, data: bytes, start: int, device: torch.device) -> None:
        self._data, self._next, self._device = data, start, device

    def value(self, described: typing.Any) -> typing.Any:
        if not isinstance(described, dict):
            return described
        kind, of = described["kind"], described["of"]
        if kind == "tensor":
            return self._tensor(*of)
        if kind == "array":
            dtype = np.dtype(of[0])
            return np.frombuffer(self._taken(dtype.itemsize * _number(of[1])), dtype).reshape(of[1]).copy()
        if kind == "dict":
            return {self.value(key): self.value(value) for key, value in of}
        values = [self.value(each) for each in of]
        if kind == "deque":
            return collections.deque(values, described["maxlen"])
        return tuple(values) if kind == "tuple" else values

    def _tensor(self, name: str, shape: list[int], stride: list[int], place: str) -> torch.Tensor:
        dtype = getattr(torch, name)
        data = self._taken(dtype.itemsize * _number(shape))
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        # Numbers that stand for several have no place of their own.
        is_spread = any(step == 0 and length > 1 for step, length in zip(stride, shape, strict=True))
        laid_out = torch.empty(shape, dtype=dtype) if is_spread else torch.empty_strided(shape, stride, dtype=dtype)
        laid_out.copy_(flat.reshape(shape))
        return laid_out if place == "cpu" else laid_out.to(self._device)

    def _taken(self, size: int) -> bytes:
        first, self._next = self._next, self._next + size
        return self._data[first : self._next]


def _number(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
