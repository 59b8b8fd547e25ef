import pytest
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.warp_kernels import check_same_gpu, one_compiler_at_a_time, warp_device

GPU = torch.device("cuda:1")


def test_the_cpu_is_the_cpu():
    assert warp_device(torch.device("cpu")).is_cpu


def test_torch_and_warp_have_to_mean_the_same_gpu():
    check_same_gpu(GPU, "00000000:3b:00", "00000000:3B:00")
    with pytest.raises(
        EnvironmentBuildError, match="torch's cuda:1 is the GPU at PCI 00000000:3B:00, and Warp's the one"
    ):
        check_same_gpu(GPU, "00000000:3B:00", "00000000:18:00")


def test_who_compiles_may_ask_to_compile_once_more():
    with one_compiler_at_a_time(), one_compiler_at_a_time():
        pass
    with one_compiler_at_a_time():
        pass


@pytest.mark.gpu
def test_torch_and_warp_mean_the_same_gpu_here():
    for index in range(torch.cuda.device_count()):
        assert warp_device(torch.device("cuda", index)).ordinal == index
