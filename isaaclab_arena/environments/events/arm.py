"""State the facts of an arm: how far its hand is from where it started, and whether something blocks it."""

from dataclasses import dataclass

import numpy as np
import torch

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
    # NumPy, because a call of torch takes longer than what it does here.
    hand = moments.site_position(robot.tcp_site).numpy()
    joints, _ = moments.joint_indices(robot.arm_joints)
    told = moments.ctrl.numpy()[:, moments.actuator_indices(robot.arm_actuators).numpy()]
    strain = np.abs(told - moments.qpos.numpy()[:, joints.numpy()]).max(axis=1)
    stands = np.zeros(len(hand), dtype=bool)
    later = hand[1 + STANDS_STEPS :]
    stands[1 + STANDS_STEPS :] = _length(later - hand[1 : 1 + len(later)]) < STANDS_M
    low, high = (np.array(limit, told.dtype) for limit in (robot.joint_low, robot.joint_high))
    at_limit = ((told - low < AT_LIMIT_RAD) | (high - told < AT_LIMIT_RAD)).any(axis=1)
    blocked = ((strain > STRAIN_RAD) | at_limit) & stands
    return ArmFacts(travel_m=torch.from_numpy(_length(hand - hand[:1])), blocked=torch.from_numpy(blocked))


def _length(vectors: np.ndarray) -> np.ndarray:
    """Return the lengths of vectors, as `sim.math.rotation.norm` does to the bit. Shape: (moments, 3) -> (moments,)."""
    x, y, z = vectors.T
    return np.sqrt(x * x + y * y + z * z)
