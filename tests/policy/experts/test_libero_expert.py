"""The expert solves LIBERO's first spatial task in LIBERO itself, in an interpreter of its own."""

import os

import pytest

from isaaclab_arena.environments.libero import libero_root
from isaaclab_arena.observers import Outcome
from isaaclab_arena.policy.scripted import PLANS, LiberoExpertPolicy
from tests.environments.gym.gym_running import run

PYTHON = os.environ.get("LIBERO_PYTHON", "")

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not PYTHON or not libero_root(),
        reason="LIBERO's interpreter or a checkout is missing: make test-benchmarks LIBERO_PATH=...",
    ),
]


@pytest.mark.parametrize("task", PLANS)
def test_the_expert_solves_its_task(task):
    records = run(f"libero:libero_spatial/{task}", num_episodes=2, policy=LiberoExpertPolicy(), python=PYTHON)
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * 2
