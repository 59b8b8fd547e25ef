"""The pretended GPU refuses what CUDA refuses, allows what it allows, and computes what the CPU computes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.pretend_gpu import GPU, PretendGpu

MIXTURES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a sum": lambda gpu, cpu: gpu + cpu,
    "a sum the other way round": lambda gpu, cpu: cpu + gpu,
    "a sum of a number on the GPU and a CPU tensor": lambda gpu, cpu: gpu[0] + cpu,
    "a sum in place": lambda gpu, cpu: gpu.add_(cpu),
    "a sum into a slice": lambda gpu, cpu: gpu[None][0].__iadd__(cpu),
    "a sum into a CPU tensor": lambda gpu, cpu: cpu.add_(gpu[0]),
    "a choice by a mask of the CPU": lambda gpu, cpu: torch.where(cpu > 0, gpu, 0.0),
    "a choice between both": lambda gpu, cpu: torch.where(gpu > 0, gpu, cpu),
    "the larger of both": torch.maximum,
    "bounds of the CPU": lambda gpu, cpu: gpu.clamp(min=cpu),
    "a bound that is a number of the CPU": lambda gpu, cpu: gpu.clamp(min=cpu[0]),
    "side by side": lambda gpu, cpu: torch.cat((gpu, cpu)),
    "one above the other": lambda gpu, cpu: torch.stack((gpu, cpu)),
    "out of both into the CPU": lambda gpu, cpu: torch.cat((gpu,), out=cpu),
    "a product of matrices": lambda gpu, cpu: gpu[None] @ cpu[:, None],
    "a comparison": torch.equal,
    "a place of the GPU in a CPU tensor": lambda gpu, cpu: cpu[torch.zeros(1, dtype=torch.int64, device=GPU)],
    "a mask of the GPU on a CPU tensor": lambda gpu, cpu: cpu[gpu > 0],
    "many numbers of the CPU into places": lambda gpu, cpu: gpu.index_put_((torch.arange(3, device=GPU),), cpu),
    "a mask of the CPU that fills": lambda gpu, cpu: gpu.masked_fill_(cpu > 0, 0.0),
    "gathering by CPU indices": lambda gpu, cpu: gpu.index_select(0, cpu.long() * 0),
    "random numbers of a CPU generator": lambda gpu, cpu: torch.rand(3, device=GPU, generator=torch.Generator()),
}

ALLOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Python's numbers": lambda gpu, cpu: torch.where(gpu > 1, 2 * gpu, 0.0) - 1,
    "numbers on the CPU": lambda gpu, cpu: torch.maximum(gpu * cpu[1], cpu[0]),
    "conversions": lambda gpu, cpu: gpu + cpu.to(gpu.device, torch.float64),
    "copies": lambda gpu, cpu: gpu.clone().copy_(cpu),
    "a CPU tensor into one entry": lambda gpu, cpu: _assigned(gpu, 1, cpu[0]),
    "a CPU tensor into a slice": lambda gpu, cpu: _assigned(gpu, slice(0, 2), cpu[1:]),
    "a CPU number into places": lambda gpu, cpu: _assigned(gpu, torch.tensor([0, 2], device=gpu.device), cpu[0]),
    "places named by a CPU tensor": lambda gpu, cpu: gpu[torch.tensor([2, 0])],
    "places named by a list": lambda gpu, cpu: gpu[[2, 0]],
    "places named by a mask": lambda gpu, cpu: gpu[gpu > 1],
    "new tensors of numbers": lambda gpu, cpu: gpu + gpu.new_tensor([1, 2, 3]) + torch.tensor([4.0], device=gpu.device),
    "views that are written to": lambda gpu, cpu: _written_through_a_view(gpu),
    "a network": lambda gpu, cpu: torch.ones(2, 3, dtype=gpu.dtype, device=gpu.device) @ gpu,
    "inference": lambda gpu, cpu: torch.inference_mode()(lambda: gpu[1:] + 1)(),
}


def _assigned(tensor: torch.Tensor, index: object, value: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[index] = value  # type: ignore[index]
    return tensor


def _written_through_a_view(tensor: torch.Tensor) -> torch.Tensor:
    kept = tensor.clone()
    kept.view(3, 1).unbind(0)[1].zero_()
    return kept


def numbers() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_what_cuda_refuses_is_refused(gpu, mixture):
    with pytest.raises(RuntimeError, match=r"same device|generator"):
        MIXTURES[mixture](numbers().to(GPU), numbers())


@pytest.mark.parametrize("use", ALLOWED)
def test_what_cuda_allows_gives_what_the_cpu_gives(gpu, use):
    result = ALLOWED[use](numbers().to(GPU), numbers())
    assert result.device == GPU
    assert result.tolist() == ALLOWED[use](numbers(), numbers()).tolist()


def test_there_is_no_array_of_what_is_not_in_the_memory_of_the_cpu(gpu):
    tensor = numbers().to(GPU)
    with pytest.raises(TypeError, match="numpy"):
        tensor.numpy()
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(tensor)
    assert tensor.cpu().numpy().tolist() == [1, 2, 3]


def test_a_network_learns_there_what_it_learns_on_the_cpu(gpu):
    weights = {}
    for device in (torch.device("cpu"), GPU):
        network = torch.nn.Linear(3, 1).double().to(device)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(0.5)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (network(numbers().to(device)) - 1).square().sum().backward()
            optimizer.step()
        assert network.weight.device == device
        weights[device.type] = network.weight.tolist()
    assert weights["cpu"] == weights[GPU.type]


def test_arithmetic_never_makes_the_cpu_wait(gpu):
    tensor = numbers().to(GPU)
    places = torch.arange(2, device=GPU)
    gpu.waits.clear()
    moved = torch.where(tensor > 1, tensor * 2, 0.0)[places] + torch.zeros(2, device=GPU)
    moved[places] = 0
    moved[moved > 0] = 1
    moved += numbers()[:2].to(GPU, non_blocking=True)
    moved.copy_(numbers()[:2], non_blocking=True)
    assert gpu.waits == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda gpu: bool((gpu > 0).any()),
        lambda gpu: gpu.tolist(),
        lambda gpu: gpu[0].item(),
        lambda gpu: gpu.cpu(),
        lambda gpu: gpu.to("cpu", non_blocking=True),
        lambda gpu: gpu.nonzero(),
        lambda gpu: gpu[gpu > 1],
        lambda gpu: gpu[torch.tensor([0])],
        lambda gpu: gpu.new_tensor([1.0]),
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


def test_afterwards_the_cpu_is_as_it_was(gpu):
    with PretendGpu():
        pass
    assert (numbers() + numbers()).tolist() == [2, 4, 6]
