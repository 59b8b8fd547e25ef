import pytest
import torch

from isaaclab_arena.distributed.devices import (
    calculate_deterministically,
    check_device_exists,
    choose_rank_device,
    resolve_policy_device,
)
from isaaclab_arena.errors import ConfigError


def device_of(requested, *, local_rank=0, ranks=1, gpus=0, **environ):
    choice = choose_rank_device(
        requested, local_rank=local_rank, local_world_size=ranks, visible_gpus=gpus, environ=environ
    )
    return str(choice.device)


@pytest.mark.parametrize(
    ("requested", "gpus", "expected"),
    [
        (None, 0, "cpu"),
        (None, 4, "cuda:0"),
        ("cpu", 4, "cpu"),
        ("cuda", 4, "cuda:0"),
        ("cuda:3", 4, "cuda:3"),
    ],
)
def test_a_process_alone_gets_what_it_asks_for(requested, gpus, expected):
    assert device_of(requested, gpus=gpus) == expected


@pytest.mark.parametrize("requested", [None, "cuda", "cuda:0"])
def test_ranks_that_share_a_machine_each_get_their_own_gpu(requested):
    devices = [device_of(requested, local_rank=rank, ranks=3, gpus=4) for rank in range(3)]
    assert devices == ["cuda:0", "cuda:1", "cuda:2"]


def test_a_request_that_is_overruled_is_mentioned():
    choice = choose_rank_device("cuda:0", local_rank=1, local_world_size=2, visible_gpus=2)
    assert "precedence over --device cuda:0" in choice.reason


def test_the_only_visible_gpu_is_number_zero_whatever_the_local_rank():
    assert device_of(None, local_rank=3, ranks=4, gpus=1) == "cuda:0"
    assert device_of("cuda", local_rank=3, ranks=4, gpus=1) == "cuda:0"


def test_a_rank_beyond_the_gpus_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="LOCAL_RANK is 2 but only 2 GPUs are visible"):
        device_of(None, local_rank=2, ranks=3, gpus=2)


def test_ranks_on_the_cpu_need_no_gpu():
    assert device_of("cpu", local_rank=7, ranks=8, gpus=2) == "cpu"
    assert device_of(None, local_rank=7, ranks=8, gpus=0) == "cpu"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mask", ["", "-1"])
def test_a_gpu_that_is_hidden_is_an_error_that_says_why(mask, ranks):
    with pytest.raises(ConfigError, match=f"'cuda' does not exist.*use cpu.*CUDA_VISIBLE_DEVICES is '{mask}'"):
        device_of("cuda", ranks=ranks, gpus=0, CUDA_VISIBLE_DEVICES=mask)


def test_a_gpu_that_does_not_exist_is_an_error_that_names_those_that_do():
    with pytest.raises(ConfigError, match=r"--device: 'cuda:2' does not exist; .*cpu and cuda:0 to cuda:1"):
        device_of("cuda:2", gpus=2)
    with pytest.raises(ConfigError, match=r"cpu and cuda:0$"):
        device_of("cuda:1", gpus=1)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CPU", "", "cuda:1 ", "mps", "cuda:\uff11"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="is no device; use cpu, cuda or"):
        check_device_exists(name, visible_gpus=8, option="--device")


def test_local_rank_decides_the_policy_device_before_anything_else():
    device = resolve_policy_device(
        environ={"LOCAL_RANK": "2"},
        visible_gpus=4,
        policy_device_id=3,
        policy_device="cuda:0",
        yaml_policy_device="cpu",
    )
    assert device == torch.device("cuda", 2)


def test_a_policy_under_a_launcher_without_gpus_runs_on_the_cpu():
    device = resolve_policy_device(environ={"LOCAL_RANK": "2"}, visible_gpus=0, policy_device_id=3)
    assert device == torch.device("cpu")


def test_a_policy_under_a_launcher_follows_the_rules_of_its_rank():
    assert resolve_policy_device(environ={"LOCAL_RANK": "2"}, visible_gpus=1) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="LOCAL_RANK is 2 but only 2 GPUs"):
        resolve_policy_device(environ={"LOCAL_RANK": "2"}, visible_gpus=2)
    with pytest.raises(ConfigError, match="LOCAL_RANK=' 2'"):
        resolve_policy_device(environ={"LOCAL_RANK": " 2"}, visible_gpus=4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"policy_device_id": 1, "policy_device": "cpu", "yaml_policy_device": "cpu"}, "cuda:1"),
        ({"policy_device_id": 0, "policy_device": "cuda:1"}, "cuda:0"),
        ({"policy_device": "cpu", "yaml_policy_device": "cuda"}, "cpu"),
        ({"yaml_policy_device": "cuda"}, "cuda:0"),
        ({}, "cuda:0"),
    ],
)
def test_without_a_launcher_the_most_explicit_policy_device_wins(options, expected):
    assert str(resolve_policy_device(environ={}, visible_gpus=2, **options)) == expected


def test_without_gpus_a_policy_runs_on_the_cpu_unless_told_otherwise():
    assert resolve_policy_device(environ={}, visible_gpus=0) == torch.device("cpu")
    with pytest.raises(ConfigError, match="policy_device_id: 'cuda:0' does not exist; no CUDA device is visible"):
        resolve_policy_device(environ={}, visible_gpus=0, policy_device_id=0)
    with pytest.raises(ConfigError, match="policy_device: 'cuda' does not exist"):
        resolve_policy_device(environ={}, visible_gpus=0, yaml_policy_device="cuda")


@pytest.mark.parametrize("device_id", [-1, True, 1.0, "1"])
def test_a_policy_device_id_is_an_index(device_id):
    with pytest.raises(ConfigError, match=r"policy_device_id: .* is no GPU index"):
        resolve_policy_device(environ={}, visible_gpus=4, policy_device_id=device_id)


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8"), (":4096:8", ":4096:8")]
)
def test_deterministic_calculation_is_arranged_before_a_gpu_is_touched(given, kept):
    environ = {} if given is None else {"CUBLAS_WORKSPACE_CONFIG": given}
    touched = torch.cuda.is_initialized()
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    try:
        torch.backends.cudnn.benchmark = True
        calculate_deterministically(environ)
        assert environ == {"CUBLAS_WORKSPACE_CONFIG": kept}
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.cuda.is_initialized() == touched
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1], before[2]
        torch.backends.cudnn.allow_tf32 = before[3]
        torch.set_float32_matmul_precision(before[4])
