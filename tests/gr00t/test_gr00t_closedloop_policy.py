"""The policy whose model is in this process: its device, its checkpoint, and what is refused before simulation."""

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.policy.policy_base import PolicyBase
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy import gr00t_closedloop_policy
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy, _resolve_policy_device
from tests.gr00t.panda_checkpoint import POLICY, write_panda_yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(monkeypatch):
    """Set how many GPUs this process seems to have, and LOCAL_RANK."""

    def arrange(gpus: int, local_rank: str | None) -> None:
        monkeypatch.setattr("isaaclab_arena.distributed.devices.visible_gpu_count", lambda: gpus)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local_rank is not None:
            monkeypatch.setenv("LOCAL_RANK", local_rank)

    return arrange


EVERYTHING = {"policy_device_id": 3, "policy_device": "cuda:1", "yaml": "cpu"}


@pytest.mark.parametrize(
    ("local_rank", "gpus", "given", "expected"),
    [
        # LOCAL_RANK comes before everything.
        ("2", 4, EVERYTHING, "cuda:2"),
        ("0", 4, EVERYTHING, "cuda:0"),
        ("2", 1, EVERYTHING, "cuda:0"),
        ("2", 0, EVERYTHING, "cpu"),
        ("2", 2, EVERYTHING, "LOCAL_RANK is 2 but only 2 GPUs are visible"),
        ("two", 4, EVERYTHING, "LOCAL_RANK='two' is not a whole number"),
        # Then the id, the device of the job, that of the YAML file, and what there is.
        (None, 4, EVERYTHING, "cuda:3"),
        (None, 4, {"policy_device": "cuda:1", "yaml": "cpu"}, "cuda:1"),
        (None, 4, {"policy_device": "cpu", "yaml": "cuda:1"}, "cpu"),
        (None, 4, {"yaml": "cuda:2"}, "cuda:2"),
        (None, 4, {"yaml": "cuda"}, "cuda:0"),
        (None, 4, {}, "cuda:0"),
        (None, 0, {}, "cpu"),
        (None, 0, {"yaml": "cpu"}, "cpu"),
        # A GPU that there is not.
        (
            None,
            2,
            {"policy_device_id": 2},
            "policy_device_id: 'cuda:2' does not exist; this process can use cpu and",
        ),
        (None, 0, {"policy_device_id": 0}, "policy_device_id: 'cuda:0' does not exist; no CUDA device is visible"),
        (None, 0, {"policy_device": "cuda"}, "policy_device: 'cuda' does not exist; no CUDA device is visible"),
        (None, 0, {"yaml": "cuda:1"}, "policy_device: 'cuda:1' does not exist"),
        (None, 2, {"policy_device": "gpu"}, "'gpu' is no device; use cpu, cuda or cuda:<index>"),
    ],
)
def test_the_device_of_the_model_is_the_first_that_is_given(machine, local_rank, gpus, given, expected):
    machine(gpus, local_rank)
    options = {key: value for key, value in given.items() if key != "yaml"}
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path="p.yaml", **options)
    if expected.startswith(("cpu", "cuda:")):
        assert _resolve_policy_device(args, given.get("yaml")) == torch.device(expected)
    else:
        with pytest.raises(ConfigError) as refused:
            _resolve_policy_device(args, given.get("yaml"))
        assert expected in str(refused.value)


def job(yaml: str, **changes: Any) -> JobConfig:
    given: dict[str, Any] = {"index": 0, "name": "a", "environment": "reach", "policy_type": POLICY, "num_episodes": 1}
    return JobConfig(**{**given, "policy_config_dict": {"policy_config_yaml_path": yaml}, **changes})


def refusals(*jobs: JobConfig) -> list[Problem]:
    with pytest.raises(ConfigError) as refused:
        resolve_jobs(jobs, file="jobs.json")
    return list(refused.value.problems)


def checkpoint(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (None, {}, "model_path: 'checkpoint' does not exist, neither beside this file nor in the working directory"),
        (None, {"model_path": ""}, "model_path: is missing; the model's folder has to be named"),
        (None, {"model_path": "a/b/c"}, "model_path: 'a/b/c' does not exist"),
        (None, {"model_path": "jobs/checkpoint"}, "model_path: 'jobs/checkpoint' does not exist"),
        ((), {}, "checkpoint' is no checkpoint: it has no config.json"),
        (("config.json",), {}, "has no weights in a *.safetensors file"),
        (
            ("config.json", "pytorch_model.bin"),
            {},
            "has no weights in a *.safetensors file but pytorch_model.bin, and loading that could run code",
        ),
        (
            ("config.json", "model.safetensors"),
            {"embodiment_tag": "NEW_EMBODIMNT"},
            "embodiment_tag: there is no embodiment 'NEW_EMBODIMNT'; did you mean 'NEW_EMBODIMENT'?",
        ),
        (("config.json", "model.safetensors"), {"action_horizon": 3}, "action_chunk_length: 5 steps of a chunk cannot"),
    ],
)
def test_a_yaml_file_that_cannot_work_is_refused_before_anything_is_simulated(
    tmp_path, monkeypatch, names, changes, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    if names is not None:
        checkpoint(tmp_path / "checkpoint", *names)
    path = write_panda_yaml(tmp_path / "p.yaml", **changes)
    [problem] = refusals(job(path))
    assert (problem.file, problem.job) == ("jobs.json", "a")
    assert problem.key == "policy_config_dict.policy_config_yaml_path"
    assert problem.message.startswith(f"{path}: ")
    assert message in problem.message


def test_a_file_is_no_checkpoint(tmp_path):
    (tmp_path / "checkpoint").write_text("")
    [problem] = refusals(job(write_panda_yaml(tmp_path / "p.yaml")))
    assert "is a file; name the folder that holds it" in problem.message


def test_a_name_on_the_hub_is_left_to_the_model_package(tmp_path):
    assert resolve_jobs([job(write_panda_yaml(tmp_path / "p.yaml", model_path="nvidia/GR00T-N1.6-3B"))])


def test_options_that_make_no_sense_are_refused_by_name(tmp_path):
    checkpoint(tmp_path / "checkpoint", "config.json", "model.safetensors")
    path = write_panda_yaml(tmp_path / "p.yaml")
    options = {"policy_config_yaml_path": path, "rows_per_query": 0, "temporal_ensemble_coeff": -1.0}
    found = refusals(job(path, policy_config_dict=options), job(path, name="b", policy_config_dict={}))
    assert [(problem.job, problem.key) for problem in found] == [
        ("a", "policy_config_dict.rows_per_query"),
        ("a", "policy_config_dict.temporal_ensemble_coeff"),
        ("b", "policy_config_dict.policy_config_yaml_path"),
    ]
    [problem] = refusals(job(str(tmp_path / "no.yaml")))
    assert "no.yaml: there is no such file" in problem.message


def test_the_command_line_may_name_the_device(tmp_path, machine):
    machine(2, None)
    checkpoint(tmp_path / "checkpoint", "config.json", "model.safetensors")
    config = job(write_panda_yaml(tmp_path / "p.yaml"))
    [resolved] = resolve_jobs([config], overrides={"policy_device_id": 1, "policy_device": None})
    assert resolved.policy_options["policy_device_id"] == 1
    with pytest.raises(ConfigError, match="policy_device: 'cuda:2' does not exist"):
        resolve_jobs([config], overrides={"policy_device": "cuda:2"})


def keys_of(tmp_path: Path, policy_type: str, *changes: dict[str, Any]) -> list[str]:
    path = write_panda_yaml(tmp_path / "p.yaml", model_path="owner/name")
    jobs = [job(path, name=f"j{index}", policy_type=policy_type, **each) for index, each in enumerate(changes)]
    resolved: tuple[Job, ...] = resolve_jobs(jobs)
    return [each.policy_key for each in resolved]


def test_jobs_that_differ_in_their_number_of_rows_share_the_model(tmp_path):
    few, many, other = keys_of(
        tmp_path,
        POLICY,
        {"num_envs": 2},
        {"num_envs": 8},
        {"policy_config_dict": {"policy_config_yaml_path": str(tmp_path / "p.yaml"), "rows_per_query": 2}},
    )
    assert few == many
    assert few != other


class OfOneSize(Gr00tClosedloopPolicy):
    """Needs to know the number of rows beforehand."""

    serves_any_num_envs = False


def test_other_policies_are_built_anew_for_another_number_of_rows(tmp_path):
    few, many = keys_of(tmp_path, f"{__name__}.{OfOneSize.__qualname__}", {"num_envs": 2}, {"num_envs": 8})
    assert few != many


def test_without_a_model_package_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "gr00t.data.embodiment_tags", None)
    with pytest.raises(ConfigError, match=r"gr00t cannot be imported .*pip install -e submodules/Isaac-GR00T"):
        gr00t_closedloop_policy.embodiment_tag("GR1")


@pytest.mark.parametrize("name", ["gr00t_closedloop", "gr00t_remote_closedloop", "openpi_remote"])
def test_the_policies_are_known_by_name(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, attribute = project["entry-points"]["isaaclab_arena.policies"][name].partition(":")
    policy = getattr(importlib.import_module(module), attribute)
    assert issubclass(policy, PolicyBase)
    assert policy.name == name
