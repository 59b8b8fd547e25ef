"""A world that is what a test states, so that rules are judged in numbers and not where physics happens to lead."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from isaaclab_arena.environments.mdp.task import Task, Verdict
from isaaclab_arena.interfaces.episode import Conditions


class StatedWorld:
    """Answers what tasks ask a simulation when they judge. Its env slots are the cases of a test.

    Args:
        num_envs: How many env slots there are.
        places: Position of each body and site [m]; one for all env slots, or one per env slot.
        orientations: Of each body; upright where nothing is said.
        speeds: Linear speed of each loose thing along x [m/s]; at rest where nothing is said.
        joints: Position of each joint.
        touching: Contact sensors that feel something, in all env slots or in some.

    Attributes:
        ctrl: What the arm, one joint for all of its own, and the gripper are told. Shape: (num_envs, 2).
    """

    def __init__(
        self,
        num_envs: int,
        *,
        places: Mapping[str, Any],
        orientations: Mapping[str, Any] | None = None,
        speeds: Mapping[str, Any] | None = None,
        joints: Mapping[str, Any] | None = None,
        touching: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.qpos = torch.zeros(num_envs, 1, dtype=torch.float64)
        self.ctrl = torch.zeros(num_envs, 2, dtype=torch.float64)
        self.names = SimpleNamespace(actuators={"robot/gripper": 1})
        self.places, self.orientations, self.speeds = dict(places), dict(orientations or {}), dict(speeds or {})
        self.joints, self.sensors = dict(joints or {}), dict(touching or {})

    def body_position(self, body: str) -> torch.Tensor:
        return self._per_env_slot(self.places[body], 3)

    site_position = body_position

    def body_orientation(self, body: str) -> torch.Tensor:
        return self._per_env_slot(self.orientations.get(body, (1.0, 0.0, 0.0, 0.0)), 4)

    def free_velocity(self, joint: str) -> torch.Tensor:
        speed = self._per_env_slot(self.speeds.get(joint, 0.0), 1)
        return torch.cat((speed, torch.zeros(self.num_envs, 5, dtype=torch.float64)), dim=1)

    def joint_indices(self, joints: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(joints), dtype=torch.int64), torch.zeros(len(joints), dtype=torch.int64)

    def actuator_indices(self, actuators: Sequence[str]) -> torch.Tensor:
        return torch.zeros(len(actuators), dtype=torch.int64)

    def joint_position(self, joint: str) -> torch.Tensor:
        return self._per_env_slot(self.joints[joint], 1)

    def touching(self, contact_sensor: str) -> torch.Tensor:
        return self._per_env_slot(self.sensors.get(contact_sensor, False), 1)[:, 0] > 0

    def _per_env_slot(self, value: Any, width: int) -> torch.Tensor:
        tensor = torch.tensor(value, dtype=torch.float64)
        if tensor.numel() == self.num_envs * width:
            return tensor.reshape(self.num_envs, width).clone()
        return tensor.reshape(1, width).repeat(self.num_envs, 1)


def begin(task: Task, world: Any, conditions: Sequence[Conditions] = ()) -> None:
    """Begin an episode in every env slot of a world, with conditions where the task has to remember them."""
    env_ids = torch.arange(world.num_envs)
    task.attach(world)
    if conditions:
        task.remember(env_ids, conditions)
    task.begin(world, env_ids)


def judged(task: Task, world: Any, steps: int = 1) -> Verdict:
    """Verdict of the task after some steps in which nothing moves."""
    running = torch.ones(world.num_envs, dtype=torch.bool)
    judgements = [task.judge(world, running) for _ in range(steps)]
    return judgements[-1]


def first_success(
    task: Task, world: Any, conditions: Sequence[Conditions] = (), *, steps: int = 25
) -> list[int | None]:
    """Begin, and return after how many steps each env slot is solved for the first time, None if it never is."""
    begin(task, world, conditions)
    solved = torch.stack([judged(task, world).success for _ in range(steps)])
    return [int(steps.nonzero()[0]) + 1 if steps.any() else None for steps in solved.T]
