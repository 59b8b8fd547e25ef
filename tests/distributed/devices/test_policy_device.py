from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.devices import (
    check_device_exists,
    check_policy_device,
    cpu_holds_for_policy,
    resolve_policy_device,
)
from isaaclab_arena.errors import ConfigError


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


def test_an_explicit_cpu_holds_for_a_policy_under_a_launcher_too():
    five_of_six = {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6"}
    assert resolve_policy_device(environ=five_of_six, visible_gpus=4, policy_device="cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="LOCAL_RANK is 5 but only 4 GPUs"):
        resolve_policy_device(environ=five_of_six, visible_gpus=4, yaml_policy_device="cpu")
    both = resolve_policy_device(environ={"LOCAL_RANK": "1"}, visible_gpus=4, policy_device_id=0, policy_device="cpu")
    assert both == torch.device("cuda", 1)


@pytest.mark.parametrize("environ", [{}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}])
@pytest.mark.parametrize("gpus", [0, 2])
def test_a_policy_device_that_does_not_exist_is_refused_for_any_number_of_ranks(environ, gpus):
    several: tuple[dict[str, Any], ...] = ({"policy_device_id": 2}, {"policy_device": "cuda:2"})
    for named in several:
        with pytest.raises(ConfigError, match=r"policy_device(_id)?: 'cuda:2' does not exist"):
            check_policy_device(environ=environ, visible_gpus=gpus, **named)


@pytest.mark.parametrize(
    ("environ", "gpus", "named", "overruled"),
    [
        ({}, 4, {"policy_device_id": 3}, None),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 4, {"policy_device_id": 3}, "policy_device_id 3"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 4, {"policy_device": "cuda:0"}, "policy_device 'cuda:0'"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 4, {"policy_device": "cuda:0"}, None),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 4, {"policy_device": "cuda:1"}, "policy_device 'cuda:1'"),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 1, {"policy_device": "cuda:0"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {"policy_device": "cuda"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {"policy_device": "cpu"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {}, None),
        (
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            2,
            {"policy_device_id": 1, "policy_device": "cpu"},
            "policy_device_id 1",
        ),
    ],
)
def test_a_named_gpu_that_the_launcher_overrules_is_told(environ, gpus, named, overruled):
    assert check_policy_device(environ=environ, visible_gpus=gpus, **named) == overruled


def test_the_cpu_is_for_the_policy_too_only_where_a_launcher_would_choose_a_gpu():
    assert cpu_holds_for_policy("cpu", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy("cpu", {})
    assert not cpu_holds_for_policy("cuda", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy(None, {"LOCAL_RANK": "0"})


def test_an_index_too_large_for_torch_does_not_become_another_gpu():
    for index in (128, 256, 9999):
        with pytest.raises(ConfigError, match=f"'cuda:{index}' does not exist; this process can use cpu and cuda:0 to"):
            check_device_exists(f"cuda:{index}", visible_gpus=4, option="--device", environ={})
        with pytest.raises(ConfigError, match=f"policy_device_id: 'cuda:{index}' does not exist"):
            resolve_policy_device(policy_device_id=index, environ={}, visible_gpus=4)
    with pytest.raises(ConfigError, match="--device: 'cuda:10000' is no device"):
        check_device_exists("cuda:10000", visible_gpus=4, option="--device", environ={})


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
