"""Tensors of a device are read in one copy, bit for bit."""

import pytest
import torch

from isaaclab_arena.distributed.devices import on_cpu
from tests.pretend_gpu import GPU

TENSORS = (
    torch.tensor([True, False, True]),
    torch.tensor([[1.5, torch.nan, -0.0]], dtype=torch.float64),
    torch.zeros((2, 0), dtype=torch.int64),
    torch.arange(5, dtype=torch.uint8),
    torch.tensor(2.5),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.tensor([-(2**62)], dtype=torch.int64),
)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes()


def test_tensors_of_all_types_are_read_with_one_wait(gpu):
    away = [tensor.to(GPU) for tensor in TENSORS]
    gpu.waits.clear()
    here = on_cpu(away)
    assert len(gpu.waits) == 1
    assert list(map(bits, here)) == list(map(bits, TENSORS))


def test_what_is_on_the_cpu_is_returned_as_it_is_and_nothing_waits(gpu):
    assert all(one is other for one, other in zip(on_cpu(TENSORS), TENSORS, strict=True))
    first, last = torch.ones(3), torch.zeros(2)
    read = on_cpu([first, torch.tensor([4.0]).to(GPU), last])
    assert read[0] is first
    assert read[1].tolist() == [4.0]
    assert read[2] is last


def test_copies_are_tensors_of_their_own(gpu):
    away = torch.ones(3).to(GPU)
    first, second = on_cpu([away, away + 0])
    first += 1
    assert second.tolist() == away.tolist() == [1.0] * 3


@pytest.mark.parametrize("tensors", [(), TENSORS[:1]])
def test_few_tensors_are_tensors_too(gpu, tensors):
    assert len(on_cpu([tensor.to(GPU) for tensor in tensors])) == len(tensors)
