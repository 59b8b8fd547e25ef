"""What LIBERO's tasks are given and give, as trained policies expect it."""

import math

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import GRIPPERS, LiberoTask, axis_angle
from isaaclab_arena.environments.libero import Gripper
from tests.environments.libero.fake_env_wrapper import GOAL_M, ControlEnv

SETTINGS = {"cameras": [], "camera_size": 6, "picture_size": None, "gripper": "sign", "seeds_every_reset": False}
STATES = np.array([[0.1, 0.0], [GOAL_M - 0.01, 0.0]])


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


def started(tmp_path, *, wait_steps: int, init_state: int) -> LiberoTask:
    (tmp_path / "task.bddl").touch()
    task = LiberoTask(ControlEnv(bddl_file_name=tmp_path / "task.bddl"), STATES, {**SETTINGS, "wait_steps": wait_steps})
    task.reset(
        options={
            "conditions": {"libero.fixture_seed": 7, "libero.reset_index": 1, "libero.init_state": init_state},
        }
    )
    return task


@pytest.mark.parametrize("wait_steps", [0, 3])
def test_the_arm_holds_still_with_an_open_gripper_from_the_initial_state_on(tmp_path, wait_steps):
    domain = started(tmp_path, wait_steps=wait_steps, init_state=0).task.env
    assert domain.bowl_m == STATES[0, 0]
    assert domain.time_s == pytest.approx(wait_steps * domain.control_timestep)
    assert domain.opening == (0.04 if wait_steps else 0.0)


def test_a_step_takes_the_gripper_as_the_policy_means_it_and_says_when_the_task_is_solved(tmp_path):
    task = started(tmp_path, wait_steps=1, init_state=1)
    pushed = [task.step(np.array([push, 0, 0, 0, 0, 0, 0.3], np.float32))[4] for push in (0, 1, -1)]
    assert pushed == [{"success": False}, {"success": True}, {"success": False}]
    assert task.task.env.opening == -0.04
