"""The experts solve tasks of LIBERO and robosuite in these packages themselves, in interpreters of their own."""

import os

import pytest

from isaaclab_arena.observers import Outcome
from isaaclab_arena.policy.scripted import LIBERO_PLANS, PLANS, LiberoExpertPolicy, RobosuiteExpertPolicy
from tests.environments.gym.gym_running import run

LIBERO = os.environ.get("LIBERO_PYTHON", "")
ROBOSUITE = os.environ.get("ROBOSUITE_PYTHON", "")

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("environment", "policy_class", "num_episodes", "python"),
    [
        *((f"libero:libero_spatial/{task}", LiberoExpertPolicy, 2, LIBERO) for task in LIBERO_PLANS),
        *((f"robosuite:{task}", RobosuiteExpertPolicy, 3, ROBOSUITE) for task in PLANS),
    ],
)
def test_the_expert_solves_its_task(environment, policy_class, num_episodes, python):
    if not python:
        pytest.skip("an interpreter is missing: make test-benchmarks makes it")
    records = run(environment, num_episodes=num_episodes, policy=policy_class(), python=python)
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * num_episodes
