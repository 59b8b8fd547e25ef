"""Benchmarks that have a job file here, each in an interpreter of its own: their tasks, engines and episodes."""

import json
import os
import subprocess

import pytest

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.environments import SUITES
from isaaclab_arena.environments.catalog import METAWORLD_MT10, METAWORLD_MT50
from isaaclab_arena.observers import Outcome
from tests.end_to_end.launching import ROOT
from tests.environments.gym.gym_running import build, run

ENGINES = {"pusht": "pymunk 6.", "aloha": "mujoco 3.", "metaworld_mt50": "mujoco 3.3.0"}
CONTROL_DT_S = {"pusht": 0.1, "aloha": 0.02, "metaworld_mt50": 0.0125}
INSTRUCTIONS = {
    "pusht": "Push the T-shaped block onto the T-shaped target.",
    "aloha": "Pick up the cube with the right arm and transfer it to the left arm.",
    "metaworld_mt50": "assembly-v3",
}

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]


def interpreter(name: str) -> str:
    variable = f"{name.partition('_')[0].upper()}_PYTHON"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no interpreter: make test-benchmarks makes it")
    return os.environ[variable]


def first_job(name: str) -> JobConfig:
    return load_jobs_file(ROOT / "jobs" / "benchmarks" / f"{name}.yaml", suites=SUITES).jobs[0]


@pytest.mark.parametrize("name", ENGINES)
def test_the_first_job_of_a_file_plays_an_episode_and_says_on_what(name):
    assert interpreter(name) == first_job(name).environment_args["python"]
    job = first_job(name)
    [record] = run(job.environment, num_envs=1, num_episodes=1, **job.environment_args).values()
    assert record.outcome in {Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT}
    assert record.success is not None
    environment = build(job.environment, num_envs=1, **job.environment_args)
    try:
        assert environment.provenance()["engine"].startswith(ENGINES[name])
        assert environment.control_dt == pytest.approx(CONTROL_DT_S[name])
        assert environment.task_description == INSTRUCTIONS[name]
    finally:
        environment.close()


def test_the_suites_of_meta_world_are_its_own():
    script = "import json, metaworld.env_dict as d; print(json.dumps([list(d.MT10_V3), list(d.MT50_V3)]))"
    told = subprocess.run([interpreter("metaworld_mt50"), "-c", script], check=True, capture_output=True, text=True)
    ten, fifty = json.loads(told.stdout)
    assert list(METAWORLD_MT10.names) == ten
    assert list(METAWORLD_MT50.names) == fifty
