"""The pretended GPU refuses what CUDA refuses, allows what it allows, and computes what the CPU computes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.pretend_gpu import GPU

MIXTURES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a sum": lambda gpu, cpu: cpu + gpu,
    "a sum in place": lambda gpu, cpu: gpu.add_(cpu),
    "a sum into a CPU tensor": lambda gpu, cpu: cpu.add_(gpu[0]),
    "a choice by a mask of the CPU": lambda gpu, cpu: torch.where(cpu > 0, gpu, 0.0),
    "a bound that is a number of the CPU": lambda gpu, cpu: gpu.clamp(min=cpu[0]),
    "side by side": lambda gpu, cpu: torch.cat((gpu, cpu)),
    "a product of matrices": lambda gpu, cpu: gpu[None] @ cpu[:, None],
    "a place of the GPU in a CPU tensor": lambda gpu, cpu: cpu[torch.zeros(1, dtype=torch.int64, device=GPU)],
    "many numbers of the CPU into places": lambda gpu, cpu: gpu.index_put_((torch.arange(3, device=GPU),), cpu),
    "random numbers of a CPU generator": lambda gpu, cpu: torch.rand(3, device=GPU, generator=torch.Generator()),
}


def numbers() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_what_cuda_refuses_is_refused(gpu, mixture):
    with pytest.raises(RuntimeError, match=r"same device|generator"):
        MIXTURES[mixture](numbers().to(GPU), numbers())


def test_there_is_no_array_of_what_is_not_in_the_memory_of_the_cpu(gpu):
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(numbers().to(GPU))


def test_arithmetic_never_makes_the_cpu_wait_and_gives_what_the_cpu_gives(gpu):
    tensor, places = numbers().to(GPU), torch.arange(2, device=GPU)
    gpu.waits.clear()
    moved = torch.where(tensor > 1, tensor * 2, 0.0)[places] + torch.zeros(2, device=GPU)
    moved[moved > 3] = 1
    assert (gpu.waits, moved.device) == ([], GPU)
    assert moved.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "wait",
    [
        lambda gpu: gpu.tolist(),
        lambda gpu: gpu[0].item(),
        lambda gpu: gpu.to("cpu", non_blocking=True),
        lambda gpu: gpu[gpu > 1],
        lambda gpu: gpu[torch.tensor([0])],
        lambda gpu: torch.tensor([1.0], device=GPU),
        lambda gpu: gpu.copy_(torch.ones(3)),
        lambda gpu: torch.zeros(3).copy_(gpu),
    ],
)
def test_the_cpu_waits_once_for_what_goes_from_one_to_the_other(gpu, wait):
    tensor = numbers().to(GPU)
    gpu.waits.clear()
    wait(tensor)
    assert len(gpu.waits) == 1
