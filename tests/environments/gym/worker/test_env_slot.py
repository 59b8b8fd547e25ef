"""Actions of any space travel as flat float32."""

import numpy as np
import pytest
from gymnasium import spaces

from isaaclab_arena.environments.gym.worker.env_slot import action_bounds, action_names, is_image, native_action


def flat(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (2, 2)), flat(0.5, -2.0, 3.0, 0.0), [[0.5, -1.0], [1.0, 0.0]]),
        (spaces.Box(-np.inf, np.inf, (1,)), flat(1e6), [1e6]),
        (spaces.Box(0, 4, (2,), np.int32), flat(1.6, 9.0), [2, 4]),
        (spaces.Discrete(3), flat(1.4), 1),
        (spaces.Discrete(3), flat(7.0), 2),
        (spaces.Discrete(3, start=-1), flat(-4.0), -1),
        (spaces.MultiDiscrete([2, 5]), flat(0.8, 3.2), [1, 3]),
        (spaces.MultiBinary(3), flat(0.2, 0.9, -5.0), [0, 1, 0]),
    ],
)
def test_an_action_is_clipped_and_whole_numbers_are_rounded(space, action, expected):
    native = native_action(space)(action)
    assert space.contains(native)
    assert np.array_equal(native, expected)


def test_a_uniform_draw_takes_every_whole_number_equally_often():
    space = spaces.Discrete(4)
    to_native = native_action(space)
    low, high = action_bounds(space)
    draws = np.random.default_rng(0).uniform(low, high, (4000, 1)).astype(np.float32)
    counts = np.bincount([to_native(draw) for draw in draws])
    assert counts.min() > 900


ARM_AND_GRIPPER = spaces.Dict(
    {"gripper": spaces.Discrete(3), "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(1)))}
)


def test_the_parts_of_an_action_follow_each_other_in_the_order_of_the_space_and_have_its_names():
    low, high = action_bounds(ARM_AND_GRIPPER)
    assert (low.tolist(), high.tolist()) == ([-1.0, -1.0, -0.5, -0.5], [1.0, 1.0, 1.5, 2.5])
    assert action_names(ARM_AND_GRIPPER) == ["arm.0.0", "arm.0.1", "arm.1", "gripper"]
    assert action_names(spaces.Box(-1.0, 1.0, (2,))) is None
    native = native_action(ARM_AND_GRIPPER)(flat(0.5, 3.0, 0.9, 1.6))
    assert ARM_AND_GRIPPER.contains(native)
    assert (native["arm"][0].tolist(), native["arm"][1].tolist(), native["gripper"]) == ([0.5, 1.0], [1], 2)


def test_actions_that_have_no_flat_form_are_refused():
    with pytest.raises(TypeError, match="are not supported"):
        action_bounds(spaces.Dict({"a": spaces.Text(5)}))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), True),
        (spaces.Box(0, 255, (128,), np.uint8), False),
        (spaces.Box(0.0, 1.0, (8, 8, 3)), False),
        (spaces.Discrete(3), False),
    ],
)
def test_bytes_in_two_dimensions_are_a_picture(space, expected):
    assert is_image(space) is expected
