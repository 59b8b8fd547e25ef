"""The expert for LIBERO takes a bowl by its rim and carries its middle to the plate."""

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.scripted import CLOSE, LIBERO_PLANS, OPEN, LiberoExpertPolicy, expert_action
from tests.fakes import CoinConfig, CoinEnvironment

(PLAN,) = LIBERO_PLANS.values()
BOWL = np.array([-0.05, 0.2, 0.9])
UP = np.array([0.0, 0.0, 0.033])
FAR = np.array([0.1, 0.0, 0.0])


def seen(gripper: np.ndarray, *, opening: float, plate: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "robot0_eef_pos": gripper,
        "robot0_eef_quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "robot0_gripper_qpos": np.array([opening / 2, -opening / 2]),
        "robot0_gripper_qvel": np.zeros(2),
        "akita_black_bowl_1_pos": BOWL,
        "akita_black_bowl_1_quat": np.array([0.0, 0.0, 0.0, 1.0]),
        "plate_1_pos": plate,
    }


def test_fingers_go_to_the_rim_and_close_there_and_not_in_the_middle():
    above = expert_action(PLAN, seen(BOWL + UP, opening=0.08, plate=BOWL + FAR))
    assert above[1] < 0 < above[2]
    assert above[6] == OPEN
    around = expert_action(PLAN, seen(BOWL + PLAN.grip, opening=0.08, plate=BOWL + FAR))
    assert np.allclose(around[:6], 0.0, atol=1e-5)
    assert around[6] == CLOSE


def test_the_bowl_is_lifted_and_its_middle_carried_to_that_of_the_plate():
    held = BOWL + PLAN.grip
    lifted = expert_action(PLAN, seen(held, opening=0.004, plate=BOWL + FAR - UP))
    assert (lifted[0], lifted[1], lifted[2], lifted[6]) == (0.0, 0.0, 1.0, CLOSE)
    carried = expert_action(PLAN, seen(held, opening=0.004, plate=BOWL + FAR - 4 * UP))
    assert (carried[0], carried[1], carried[6]) == (1.0, 0.0, CLOSE)
    placed = expert_action(PLAN, seen(held, opening=0.004, plate=BOWL - PLAN.place))
    assert placed[6] == OPEN


def test_an_environment_that_has_no_expert_is_told():
    environment = CoinEnvironment(CoinConfig(), 1)
    observation = environment.reset(torch.tensor([0]), [environment.draw_conditions(np.random.default_rng(0))])
    with pytest.raises(ConfigError, match="libero:libero_spatial/"):
        LiberoExpertPolicy().get_action(environment, observation)
