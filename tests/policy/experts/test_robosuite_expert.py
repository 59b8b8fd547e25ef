"""The expert solves robosuite's tasks in robosuite itself, in an interpreter of its own."""

import os

import pytest

from isaaclab_arena.observers import Outcome
from isaaclab_arena.policy.scripted import PLANS, RobosuiteExpertPolicy
from tests.environments.gym.gym_running import run

PYTHON = os.environ.get("ROBOSUITE_PYTHON", "")

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="robosuite's interpreter is missing: make test-benchmarks makes it"),
]


@pytest.mark.parametrize("task", PLANS)
def test_the_expert_solves_its_task(task):
    records = run(f"robosuite:{task}", num_episodes=3, policy=RobosuiteExpertPolicy(), python=PYTHON)
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * 3
