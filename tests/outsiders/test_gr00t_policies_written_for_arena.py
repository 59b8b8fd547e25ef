"""Subclasses and scripts written around Isaac Lab Arena's GR00T policies work with those of this project."""

import argparse
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
from tests.end_to_end.launching import job, write_jobs
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


@pytest.fixture(params=[None, "0"])
def yaml(tmp_path, monkeypatch, request) -> str:
    """Write the YAML file of a policy whose model is none, on a machine that seems to have four GPUs, and name it."""
    show_gpus(monkeypatch, 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if request.param is not None:
        monkeypatch.setenv("LOCAL_RANK", request.param)
    return write_panda_yaml(tmp_path / "p.yaml", model_path="owner/name", policy_device="cuda:1")


ALONE = pytest.mark.parametrize("yaml", [None], indirect=True)


class LastGpuPolicy(PolicyWithoutModel):
    """Has a rule of its own for where the model runs, as a user of Arena writes it."""

    def __init__(self, config: Gr00tClosedloopPolicyArgs):
        super().__init__(config)
        self.chunk_length = self.policy_config.action_chunk_length

    def _resolve_policy_device(self, config) -> str:
        return f"cuda:{torch.device(self.policy_config.policy_device or 'cpu').index + 2}"


def is_accepted(tmp_path: Path, yaml: str) -> bool:
    policy = f"{__name__}.LastGpuPolicy"
    jobs = [job("reach", policy, 1, options={"policy_config_yaml_path": yaml})]
    return main(["validate", str(write_jobs(tmp_path / "jobs.json", jobs))]) == 0


def test_a_subclass_that_resolves_its_device_by_itself_is_heeded(yaml, tmp_path):
    assert is_accepted(tmp_path, yaml)
    policy = LastGpuPolicy.from_dict({"policy_config_yaml_path": yaml})
    assert (policy.device, policy.policy.device) == (torch.device("cuda:3"), "cuda:3")
    assert policy.chunk_length == policy.policy_config.action_chunk_length > 0


@ALONE
def test_a_device_that_a_subclass_does_not_use_is_not_refused(yaml, tmp_path):
    elsewhere = write_panda_yaml(tmp_path / "q.yaml", model_path="owner/name", policy_device="cuda:9")
    assert is_accepted(tmp_path, elsewhere)


@ALONE
def test_env_slots_of_another_group_get_a_policy_of_their_own_where_a_subclass_cannot_be_given_a_model(
    yaml,
):
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml)
    assert LastGpuPolicy(args).with_own_memory() is None
    plain = PolicyWithoutModel(args)
    other = plain.with_own_memory()
    assert other is not None
    assert other.policy is plain.policy


@ALONE
def test_a_script_builds_the_policy_from_its_own_parser(yaml):
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
    words = ["--policy_config_yaml_path", "p.yaml", "--remote_host", "gpu7", "--remote_port", "6"]
    arguments = parser.parse_args(words)
    given = {"policy_config_yaml_path": "p.yaml", "remote_host": "gpu7", "remote_port": 6}
    assert Gr00tRemoteClosedloopPolicyArgs(**vars(arguments)) == Gr00tRemoteClosedloopPolicyArgs(**given)
