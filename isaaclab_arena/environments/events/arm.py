"""State the facts of an arm: how far its hand is from where it started, and whether something blocks it."""

from dataclasses import dataclass

import torch

from isaaclab_arena.sim.math.rotation import norm
from isaaclab_arena.sim.named_state import NamedState
from isaaclab_arena.sim.scene.robot import Robot

STRAIN_RAD = 0.1
AT_LIMIT_RAD = 1e-3
STANDS_M = 0.005
STANDS_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class ArmFacts:
    """What an arm does in each moment. Shape of each: (moments,).

    Attributes:
        travel_m: How far the hand is from where it started [m].
        blocked: Whether the arm is asked for more than it does while the hand stands, bool.
    """

    travel_m: torch.Tensor
    blocked: torch.Tensor


def arm_facts(moments: NamedState, robot: Robot) -> ArmFacts:
    """Return what the arm does.

    It is blocked where a joint is more than `STRAIN_RAD` from where it is told to be, or told to be at its limit, while
    the hand stands: over the last `STANDS_STEPS` control steps it made less than `STANDS_M`.
    """
    hand = moments.site_position(robot.tcp_site)
    joints, _ = moments.joint_indices(robot.arm_joints)
    told = moments.ctrl[:, moments.actuator_indices(robot.arm_actuators)]
    strain = (told - moments.qpos[:, joints]).abs().amax(dim=1)
    earlier = (torch.arange(len(hand)) - STANDS_STEPS).clamp(min=0)
    stands = (norm(hand - hand[earlier]) < STANDS_M) & (earlier > 0)
    low, high = told.new_tensor(robot.joint_low), told.new_tensor(robot.joint_high)
    at_limit = ((told - low < AT_LIMIT_RAD) | (high - told < AT_LIMIT_RAD)).any(dim=1)
    return ArmFacts(travel_m=norm(hand - hand[:1]), blocked=((strain > STRAIN_RAD) | at_limit) & stands)
