"""What the document on environments made elsewhere shows can be checked and run."""

import dataclasses
import importlib.util
import json
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from isaaclab_arena.config.loading import load_jobs_file, read_jobs
from isaaclab_arena.environments import SUITES
from isaaclab_arena.environments.gym.builder import GymConfig
from isaaclab_arena.environments.gym.vla_eval import VlaEvalConfig
from isaaclab_arena.environments.gym.worker.drawing import drawing_of
from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.registry import Registry
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

TEXT = (ROOT / "docs" / "how_to" / "external_environments.md").read_text()
JOB_FILES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "body", JOB_FILES, ids=["gymnasium", "meta_world", "in_workers", "robosuite", "vla_eval", "vla_eval_suite", "aloha"]
)
def test_a_job_file_of_the_document_can_be_read(tmp_path, body):
    (tmp_path / "jobs.yaml").write_text(body)
    assert load_jobs_file(tmp_path / "jobs.yaml", suites=SUITES).jobs


@pytest.mark.parametrize(("index", "package"), [(0, "imageio"), (1, "metaworld")], ids=["gymnasium", "meta_world"])
def test_a_job_file_of_the_document_completes(tmp_path, index, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    jobs = yaml.safe_load(JOB_FILES[index])
    jobs.setdefault("defaults", {})["num_episodes"] = 2
    for job in jobs["jobs"]:
        job.pop("num_episodes", None)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main(arguments) == 0


def test_the_document_lists_every_option():
    described = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE))))
    fields = {field.name for config in (GymConfig, VlaEvalConfig) for field in dataclasses.fields(config)}
    assert fields - {"enable_cameras"} <= described


def test_the_environment_of_the_document_draws_what_is_wanted():
    names: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[0], names)
    block: Any = names["PushBlock"]()
    slot = EnvSlot(gymnasium.wrappers.TimeLimit(block, 5), (), drawing_of(block))
    assert slot.description()["draws_on_demand"]
    assert set(slot.reset(1, pictures=False).observation) == {"place"}
    first = slot.step(np.ones(2, np.float32), pictures=True).observation
    assert first["front"].shape == (64, 64, 3)
    block.drawn = None
    assert set(slot.step(np.ones(2, np.float32), pictures=False).observation) == {"place"}


def test_the_suite_of_the_document_makes_a_job_of_each_task():
    names: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[1], names)
    suites = Registry("suite", {}, entry_point_group="isaaclab_arena.nobody")
    suites.register("kitchen", names["KITCHEN"])
    job = {"name": "mine", "suite": "kitchen", "policy_type": "zero_action"}
    assert [job.name for job in read_jobs({"jobs": [job]}, source="jobs.yaml", suites=suites).jobs] == [
        "mine-Open-v0",
        "mine-Close-v0",
        "mine-Pour-v0",
    ]
