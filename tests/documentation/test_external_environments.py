"""What the document on environments made elsewhere shows can be checked and run."""

import dataclasses
import importlib.util
import json
import re
import sys
import types
from typing import Any

import gymnasium
import pytest
import yaml
from gymnasium.envs.registration import EnvSpec

from isaaclab_arena.cli.main import main
from isaaclab_arena.environments import ENVIRONMENTS, SUITES
from tests.documentation.reading import blocks, mistakes_in
from tests.end_to_end.launching import ROOT

TEXT = (ROOT / "docs" / "how_to" / "external_environments.md").read_text()
JOB_FILES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "body", JOB_FILES, ids=["gymnasium", "meta_world", "in_workers", "robosuite", "vla_eval", "vla_eval_suite", "aloha"]
)
def test_a_job_file_of_the_document_can_be_read(tmp_path, body):
    (tmp_path / "jobs.yaml").write_text(body)
    assert mistakes_in(tmp_path / "jobs.yaml") == []


@pytest.mark.parametrize(("index", "package"), [(0, "imageio"), (1, "metaworld")], ids=["gymnasium", "meta_world"])
def test_a_job_file_of_the_document_completes(tmp_path, index, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    jobs = yaml.safe_load(JOB_FILES[index])
    jobs.setdefault("defaults", {})["num_episodes"] = 2
    for job in jobs["jobs"]:
        job.pop("num_episodes", None)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    arguments = ["run", "--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main(arguments) == 0


def test_the_document_lists_every_option():
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE))))
    of_gym, of_vla_eval = (
        {field.name for field in dataclasses.fields(ENVIRONMENTS.get(name).config_class)}
        for name in ("gym:...", "vla_eval:...")
    )
    assert "make_kwargs" in of_gym
    assert "new_each_episode" in of_vla_eval
    assert (of_gym | of_vla_eval) - {"enable_cameras"} <= described


def test_the_suite_of_the_document_makes_a_job_of_each_task(tmp_path, monkeypatch, capsys):
    names: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[1], names)
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
