"""What the documents on environments of other packages show can be checked and run."""

import dataclasses
import importlib.util
import json
import re
import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.envs.registration import EnvSpec

from isaaclab_arena.cli.main import main
from isaaclab_arena.environments import ENVIRONMENTS, SUITES
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

NAMES = ("external_environments", "gymnasium", "metaworld", "robosuite", "vla_eval_benchmarks")
TEXTS = {name: (ROOT / "docs" / "how_to" / f"{name}.md").read_text() for name in NAMES}
JOB_FILES = {name: blocks(text, "yaml") for name, text in TEXTS.items()}


@pytest.mark.parametrize(("name", "package"), [("gymnasium", "imageio"), ("metaworld", "metaworld")])
def test_a_job_file_of_a_document_completes_in_this_process(tmp_path, name, package):
    """The page of Meta-World says that its job file works without an interpreter of its own too."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    jobs = yaml.safe_load(JOB_FILES[name][0])
    jobs.setdefault("defaults", {})["num_episodes"] = 2
    for job in jobs["jobs"]:
        job.pop("num_episodes", None)
        job["arena_env_args"].pop("python", None)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    arguments = ["run", "--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main(arguments) == 0


class StandInPPO:
    """Looks to a policy like Stable-Baselines3's PPO."""

    @classmethod
    def load(cls, path: str, device: str) -> "StandInPPO":
        assert (path, device) == ("cartpole.zip", "cpu")
        return cls()

    def predict(self, observation: np.ndarray, *, deterministic: bool) -> tuple[np.ndarray, None]:
        assert isinstance(observation, np.ndarray)
        assert deterministic
        return (observation[:, 2] > 0).astype(np.int64), None


def test_the_policy_of_stable_baselines_plays(tmp_path, monkeypatch):
    baselines = types.ModuleType("stable_baselines3")
    monkeypatch.setattr(baselines, "PPO", StandInPPO, raising=False)
    monkeypatch.setitem(sys.modules, "stable_baselines3", baselines)
    (tmp_path / "my_policy.py").write_text(blocks(TEXTS["gymnasium"], "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole.zip").touch()
    (tmp_path / "jobs.yaml").write_text(JOB_FILES["gymnasium"][1])
    try:
        assert main(["run", "jobs.yaml", "--output_dir", "out"]) == 0
    finally:
        sys.modules.pop("my_policy", None)


def described(*names: str) -> set[str]:
    """Return the options in the first columns of the tables of these pages."""
    rows = re.findall(r"^\| (`.*?) \|", "\n".join(TEXTS[name] for name in names), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", "\n".join(rows)))


def test_the_documents_list_every_option():
    gym, robosuite, vla_eval = (
        {field.name for field in dataclasses.fields(ENVIRONMENTS.get(f"{source}:...").config_class)}
        for source in ("gym", "robosuite", "vla_eval")
    )
    assert "make_kwargs" in gym
    assert "camera_size" in robosuite
    assert "new_each_episode" in vla_eval
    of_all = described("external_environments", "gymnasium") | {"enable_cameras"}
    assert gym <= of_all
    assert robosuite <= of_all | described("robosuite")
    assert vla_eval <= of_all | described("vla_eval_benchmarks")


def test_the_suite_of_the_document_makes_a_job_of_each_task(tmp_path, monkeypatch, capsys):
    names: dict[str, Any] = {}
    exec(blocks(TEXTS["external_environments"], "python")[0], names)
    monkeypatch.setitem(sys.modules, "my_kitchen", types.ModuleType("my_kitchen"))
    for task in ("Open-v0", "Close-v0", "Pour-v0"):
        spec = EnvSpec(task, entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=5)
        monkeypatch.setitem(gymnasium.registry, task, spec)
    job = {"name": "mine", "suite": "kitchen", "policy_type": "zero_action", "num_episodes": 1}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    with SUITES.restored_afterwards() as suites:
        suites.register("kitchen", names["KITCHEN"])
        assert main(["validate", "--json", str(tmp_path / "jobs.json")]) == 0
    [file] = json.loads(capsys.readouterr().out)["files"]
    assert file["jobs"] == ["mine-Open-v0", "mine-Close-v0", "mine-Pour-v0"]
