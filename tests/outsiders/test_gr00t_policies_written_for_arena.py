"""Subclasses and scripts written around Isaac Lab Arena's GR00T policies work with those of this project."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.cli.main import main
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy, Gr00tClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import (
    Gr00tRemoteClosedloopPolicy,
    Gr00tRemoteClosedloopPolicyArgs,
)
from tests.gr00t.panda_checkpoint import write_panda_yaml
from tests.machine import show_gpus


class NoModel:
    """Stands for the model package's policy, which takes seconds to import."""

    def __init__(self, asked_by: Gr00tClosedloopPolicy) -> None:
        self.device = str(asked_by.device)


class PolicyWithoutModel(Gr00tClosedloopPolicy):
    """Loads nothing; users of Arena derive their policies from it."""

    def load_policy(self) -> Any:
        return NoModel(self)


@pytest.fixture
def yaml(tmp_path, monkeypatch) -> str:
    """Write the YAML file of a policy whose model is none, on a machine that seems to have four GPUs, and name it."""
    show_gpus(monkeypatch, 4)
    return write_panda_yaml(tmp_path / "p.yaml", model_path="owner/name", policy_device="cuda:1")


class LastGpuPolicy(PolicyWithoutModel):
    """Has a rule of its own for where the model runs, as a user of Arena writes it."""

    def __init__(self, config: Gr00tClosedloopPolicyArgs):
        super().__init__(config)
        self.chunk_length = self.policy_config.action_chunk_length

    def _resolve_policy_device(self, config) -> str:
        return f"cuda:{torch.device(self.policy_config.policy_device or 'cpu').index + 2}"


def job(policy_type: type, yaml: str, **options: Any) -> dict[str, Any]:
    return {
        "name": "a",
        "arena_env_args": {"environment": "reach"},
        "policy_type": f"{policy_type.__module__}.{policy_type.__name__}",
        "policy_config_dict": {"policy_config_yaml_path": yaml, **options},
        "num_episodes": 1,
    }


@pytest.mark.parametrize("local_rank", [None, "0"])
def test_a_subclass_that_resolves_its_device_by_itself_is_heeded(yaml, monkeypatch, tmp_path, local_rank):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [job(LastGpuPolicy, yaml)]}))
    assert main(["validate", str(path)]) == 0
    policy = LastGpuPolicy.from_dict({"policy_config_yaml_path": yaml})
    assert (policy.device, policy.policy.device) == (torch.device("cuda:3"), "cuda:3")
    assert policy.chunk_length == policy.policy_config.action_chunk_length > 0


def test_a_device_that_a_subclass_does_not_use_is_not_refused(yaml, monkeypatch, tmp_path):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    elsewhere = write_panda_yaml(tmp_path / "q.yaml", model_path="owner/name", policy_device="cuda:9")
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [job(LastGpuPolicy, elsewhere)]}))
    assert main(["validate", str(path)]) == 0


def test_env_slots_of_another_group_get_a_policy_of_their_own_where_a_subclass_cannot_be_given_a_model(
    yaml, monkeypatch
):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml)
    assert LastGpuPolicy(args).with_own_memory() is None
    plain = PolicyWithoutModel(args)
    other = plain.with_own_memory()
    assert other is not None
    assert other.policy is plain.policy


def test_a_script_builds_the_policy_from_its_own_parser(yaml, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_envs", type=int, default=3)
    PolicyWithoutModel.add_args_to_parser(parser)
    arguments = parser.parse_args(["--policy_config_yaml_path", yaml, "--policy_device_id", "2"])
    policy = PolicyWithoutModel.from_args(arguments)
    assert policy.config == Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, num_envs=3, policy_device_id=2)
    assert policy.policy.device == "cuda:2"
    assert Path(policy.policy_config.model_path) == Path("owner/name")
    with pytest.raises(SystemExit):
        PolicyWithoutModel.add_args_to_parser(argparse.ArgumentParser()).parse_args([])


def test_a_script_reads_the_arguments_of_the_policy_behind_a_server():
    parser = Gr00tRemoteClosedloopPolicy.add_args_to_parser(argparse.ArgumentParser())
    arguments = parser.parse_args(
        ["--policy_config_yaml_path", "p.yaml", "--remote_host", "gpu7", "--remote_port", "6"]
    )
    given = {"policy_config_yaml_path": "p.yaml", "remote_host": "gpu7", "remote_port": 6}
    assert Gr00tRemoteClosedloopPolicyArgs(**vars(arguments)) == Gr00tRemoteClosedloopPolicyArgs(**given)
