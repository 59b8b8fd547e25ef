import math

import pytest
import torch

from isaaclab_arena.environments.tasks.grasping import PLACED_STEPS
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, start


def put(env, joint: str, position, quaternion=(1.0, 0.0, 0.0, 0.0)) -> None:
    """Put a loose thing of env slot 0 somewhere, at rest."""
    env.backend.qpos[0, env.backend.names.joint_qpos[joint]] = torch.tensor([*position, *quaternion]).double()
    env.backend.qvel[0, env.backend.names.joint_dof[joint]] = 0


def started():
    env = build("pick_and_place")
    start(env)
    return env, env.backend.body_position("bin/body")[0].tolist()


def test_an_object_at_rest_in_the_bin_is_placed_once_it_has_stayed():
    env, (x, y, _) = started()
    put(env, "object/free", (x, y, 0.034))
    successes = [bool(env.step(hold_still(env)).success) for _ in range(12)]
    assert successes.index(True) >= PLACED_STEPS - 1


@pytest.mark.parametrize(
    "offset",
    [pytest.param((0.14, 0.0, 0.025), id="beside"), pytest.param((0.0, 0.094, 0.096), id="on the rim")],
)
def test_an_object_that_is_not_in_the_bin_is_not_placed(offset):
    env, (x, y, _) = started()
    for _ in range(2 * PLACED_STEPS):
        put(env, "object/free", (x + offset[0], y + offset[1], offset[2]))
        assert not env.step(hold_still(env)).success


def test_an_object_that_falls_through_the_air_over_the_bin_is_not_placed():
    env, (x, y, _) = started()
    for _ in range(2 * PLACED_STEPS):
        put(env, "object/free", (x, y, 0.15))
        assert not env.step(hold_still(env)).success


def test_a_bin_on_its_side_holds_nothing():
    env, (x, y, _) = started()
    half = math.sqrt(0.5)
    for _ in range(2 * PLACED_STEPS):
        put(env, "bin/free", (x, y, 0.1), (half, half, 0.0, 0.0))
        put(env, "object/free", (x, y, 0.03))
        assert not env.step(hold_still(env)).success


def test_an_object_still_in_the_gripper_is_not_placed():
    env = build("pick_and_place")
    policy, observation = ScriptedPolicy(), start(env)
    closed_in_bin = 5
    while policy._player is None or policy._player.phase[0] < closed_in_bin:
        observation = env.step(policy.get_action(env, observation)).observation
    low = policy.get_action(env, observation)
    assert not any(env.step(low).success for _ in range(40))


def test_losing_the_object_ends_the_episode_as_a_failure():
    env, _ = started()
    put(env, "object/free", (0.5, 0.0, -0.3))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success
