"""An arm and a cube on a table, for tests of backends."""

import torch

from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene import ScenePart

PARTS = (
    ScenePart(prefix="robot", asset="robots/panda.xml"),
    ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025)),
    ScenePart(prefix="target", asset="objects/target.xml"),
)
JOINTS = [f"robot/panda_joint{number}" for number in range(1, 8)]
HOME = (0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.7854)


def start_of(env_id: int) -> StartState:
    """Start states of the worlds, each slightly different."""
    arm = {joint: value + 0.01 * env_id for joint, value in zip(JOINTS, HOME, strict=True)}
    return StartState(
        joint_positions={
            **{joint: (value,) for joint, value in arm.items()},
            "object/free": (0.4 + 0.02 * env_id, 0.0, 0.03, 1, 0, 0, 0),
        },
        controls=arm,
        mocap_positions={"target/body": (0.1 * env_id, 0.0, 0.5)},
    )


def everyone(backend: Backend) -> torch.Tensor:
    """Return the mask of all worlds."""
    return torch.ones_like(backend.diverged)


def only(backend: Backend, *env_ids: int) -> torch.Tensor:
    """Return the mask of some worlds."""
    mask = torch.zeros_like(backend.diverged)
    mask[list(env_ids)] = True
    return mask
