"""A run with a GR00T checkpoint or a LeRobot dataset knows by content what it evaluated: one byte makes another one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from tests.end_to_end.launching import write_jobs
from tests.gr00t.data.recordings import record
from tests.gr00t.panda_checkpoint import CONFIGS, write_panda_yaml

WEIGHTS = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'


class Still(Gr00tClosedloopPolicy):
    """Is made of what the policy is made of, loads nothing and stands still."""

    def load_policy(self) -> Any:
        return None

    def check_environment(self, env: Environment) -> None: ...

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.zeros(env.num_envs, *env.action_spec.shape)


def gr00t_job(directory: Path) -> dict[str, Any]:
    """Write a checkpoint and the YAML files that go with it, and return a job that evaluates it."""
    (directory / "checkpoint").mkdir()
    (directory / "checkpoint" / "config.json").write_text("{ }")
    (directory / "checkpoint" / "processor_config.json").write_text("{ }")
    (directory / "checkpoint" / "model.safetensors").write_bytes(
        len(WEIGHTS).to_bytes(8, "little") + WEIGHTS + b"\0\0\0\0"
    )
    shutil.copy(CONFIGS / "panda_joints.yaml", directory / "joints.yaml")
    yaml = write_panda_yaml(directory / "policy.yaml", policy_joints_config_path="joints.yaml")
    return {
        "policy_type": f"{__name__}.{Still.__qualname__}",
        "policy_config_dict": {"policy_config_yaml_path": yaml, "policy_device": "cpu"},
        "num_steps": 2,
    }


def lerobot_job(directory: Path) -> dict[str, Any]:
    """Write a dataset of two short trajectories, and return a job that plays them."""
    record(directory / "run" / "lift", "lift", [3, 2])
    write_lerobot_dataset(directory / "run", directory / "dataset", LeRobotOptions(no_videos=True))
    options = {"dataset_path": str(directory / "dataset")}
    return {"policy_type": "replay_lerobot", "policy_config_dict": options, "num_episodes": 2}


def another_byte(path: Path, before: bytes, after: bytes) -> None:
    """Change the last place in a file where there are some bytes to others, of which one differs."""
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
    head, found, tail = path.read_bytes().rpartition(before)
    assert found
    path.write_bytes(head + after + tail)


CASES = {
    "weights": (gr00t_job, "checkpoint/model.safetensors", b"\0", b"\1", "model_path model.safetensors"),
    "processor": (gr00t_job, "checkpoint/processor_config.json", b" ", b"\t", "model_path processor_config.json"),
    "yaml": (gr00t_job, "policy.yaml", b"\n- 64", b"\n- 65", "policy_config_yaml_path policy.yaml"),
    "joints": (gr00t_job, "joints.yaml", b"# ", b"#-", "policy_joints_config_path joints.yaml"),
    "actions": (lerobot_job, "dataset/data", b"parquet-cpp-arrow", b"parquet-cpp-arroW", "dataset_path data"),
    "meta": (lerobot_job, "dataset/meta/info.json", b"\n", b" ", "dataset_path meta"),
}


@pytest.mark.parametrize(("made", "file", "before", "after", "name"), CASES.values(), ids=CASES)
def test_one_other_byte_is_another_content_and_the_run_does_not_go_on(
    tmp_path, capsys, made: Callable[[Path], dict[str, Any]], file, before, after, name
):
    job = {"name": "a", "arena_env_args": {"environment": "reach", "num_envs": 1}, **made(tmp_path)}
    command = ["--eval_jobs_config", str(write_jobs(tmp_path / "jobs.json", [job])), "--device", "cpu", "--no_dataset"]
    assert evaluate([*command, "--output_dir", str(tmp_path / "first")]) == 0
    path = tmp_path / file
    another_byte(path if path.is_file() else next(path.rglob("*.parquet")), before, after)
    capsys.readouterr()
    assert evaluate([*command, "--output_dir", str(tmp_path / "first"), "--resume"]) == 2
    told = "".join(capsys.readouterr().err.split("\n"))
    assert f"job 'a': {name}: was " in told
    assert "start a new run in another directory" in told
    assert evaluate([*command, "--output_dir", str(tmp_path / "second")]) == 0
    first, second = (read_run_plan(tmp_path / run).jobs[0].contents for run in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.policy.keys() == second.policy.keys()
    assert [key for key, content in first.policy.items() if second.policy[key] != content] == [name]
