"""What a policy remembers comes back as it was, to the last bit."""

import gc
import weakref
from collections import deque
from typing import Any, cast

import numpy as np
import pytest
import torch

from isaaclab_arena.policy.lerobot_worker import packed, unpacked

CPU = torch.device("cpu")


def there_and_back(value: Any) -> Any:
    return unpacked(packed(value) + bytes(5), CPU)


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.1, float("inf"), "Ä", [1, [2.5]], (1, "a"), {"a": (None,), 2: []}, deque([1], 3)]
)
def test_plain_values_and_containers_keep_their_kind(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_a_queue_keeps_its_length():
    assert there_and_back({"action": deque([1, 2], 2)})["action"].maxlen == 2


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.1),
        torch.tensor([float("nan"), -0.0]),
        torch.tensor([[True, False]]),
        torch.arange(6, dtype=torch.int64).reshape(2, 3),
        torch.full((2, 2), 0.1, dtype=torch.bfloat16),
        torch.empty((0, 4)),
    ],
)
def test_tensors_keep_their_bits(tensor):
    back = there_and_back([tensor])[0]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert packed(back) == packed(tensor)


def test_what_was_read_is_free_at_once():
    class Device:
        """Stands for whatever is read and can be watched."""

    data, device = packed([torch.ones(3), {"a": (1,)}]), Device()
    watched = weakref.ref(device)
    gc.disable()
    try:
        unpacked(data, cast("torch.device", device))
        del device
        assert watched() is None
    finally:
        gc.enable()


def test_a_tensor_is_laid_out_as_before_in_memory_of_its_own():
    whole = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (whole[:, 1:], whole.transpose(0, 2), torch.ones(1, 3).expand(2, 3)):
        back = there_and_back(tensor)
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride() or 0 in tensor.stride()
        back += 1
        assert not torch.equal(back, tensor)


def test_arrays_come_back():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    back = there_and_back({"a": array, "b": torch.ones(2)})
    assert back["a"].dtype == array.dtype
    assert np.array_equal(back["a"], array)
    assert torch.equal(back["b"], torch.ones(2))


def test_what_is_none_of_these_is_refused():
    with pytest.raises(TypeError, match="a Generator is kept, which cannot be carried from one step to the next"):
        packed([torch.Generator()])
