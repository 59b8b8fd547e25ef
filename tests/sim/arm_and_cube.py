"""An arm and a cube on a table, for tests of backends."""

from typing import Any

import numpy as np
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


def begin(backend: Backend) -> Any:
    """Start all worlds, and return the backend."""
    backend.reset(torch.arange(backend.num_envs), [start_of(env_id) for env_id in range(backend.num_envs)])
    return backend


def drive(backend: Backend, num_steps: int = 5) -> None:
    """Move the first joint to and fro, in each world a little further."""
    for step in range(num_steps):
        backend.ctrl[:, 0] = (0.1 * float(np.sin(step)) + 0.01 * torch.arange(backend.num_envs).double()).to(
            backend.ctrl
        )
        backend.step(everyone(backend), 5)


def only(backend: Backend, *env_ids: int) -> torch.Tensor:
    """Return the mask of some worlds."""
    mask = torch.zeros_like(backend.diverged)
    mask[list(env_ids)] = True
    return mask


def everything(backend: Backend) -> dict[str, torch.Tensor]:
    """Return a copy of the whole state."""
    return {name: tensor.clone() for name, tensor in (backend.snapshot() or {}).items()}


def assert_alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Compare two states, bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
