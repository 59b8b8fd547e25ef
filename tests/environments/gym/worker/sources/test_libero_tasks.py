"""What LIBERO's tasks are given and give, as trained policies expect it."""

import math

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.sources.libero_tasks import GRIPPERS, axis_angle
from isaaclab_arena.environments.libero.protocols import Gripper


@pytest.mark.parametrize(
    ("convention", "given", "taken"),
    [
        ("raw", 0.3, 0.3),
        ("sign", -0.2, -1.0),
        ("sign", 0.0, 1.0),
        ("open is one", 1.0, -1.0),
        ("open is one", 0.1, 1.0),
    ],
)
def test_a_gripper_opens_and_closes_as_the_policy_means_it(convention, given, taken):
    assert GRIPPERS[convention](given) == taken


def test_every_convention_of_the_protocols_is_known_to_the_worker():
    assert set(GRIPPERS) == {each.value for each in Gripper}


def test_an_orientation_is_axis_times_angle():
    quarter = np.array([0.0, 0.0, math.sin(math.pi / 4), math.cos(math.pi / 4)])
    assert np.allclose(axis_angle(quarter), [0.0, 0.0, math.pi / 2])
    assert np.array_equal(axis_angle(np.array([0.0, 0.0, 0.0, 1.0 + 1e-9])), np.zeros(3))
