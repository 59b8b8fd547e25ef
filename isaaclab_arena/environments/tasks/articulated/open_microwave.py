"""Open the door of a microwave oven by its handle."""

from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.environments.arena.builder import TableEnvironmentBuilder
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.actions import ActionModeName
from isaaclab_arena.environments.mdp.observations import ObservationTerm, number_term, position_term
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Judgement, Task, draw_uniform, point
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.workspace import Workspace
from isaaclab_arena.environments.tasks.manipulation.grasping import refuse_without_gripper
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot
from isaaclab_arena.sim.scene.scene import ContactSensor, ScenePart

OPEN_RAD = 1.0
PULLED_RAD = 0.6
HOLD_STEPS = 3
NUM_WAYPOINTS = 5

_BODY = "microwave/body"
_HINGE = "microwave/hinge"
_HANDLE = "microwave/handle"
_LEFT_TOUCH = "left_finger_touches_handle"
_RIGHT_TOUCH = "right_finger_touches_handle"
_FASTEST_PULL_RAD = 0.15
_LOW = (0.66, -0.05)
_HIGH = (0.72, 0.05)


@dataclass(frozen=True, kw_only=True)
class OpenMicrowaveConfig(CameraOptions):
    """Options of ``open_microwave``.

    Attributes:
        embodiment: Registered name of the robot.
        action_mode: What actions mean.
    """

    embodiment: str = "panda"
    action_mode: ActionModeName = "joint_position"


class OpenMicrowave(Task):
    """Solved when the door has been open by 1 rad for 0.15 s, at least 0.6 rad of it pulled by a finger at the handle.

    Way that the door makes without a finger at its handle, or faster than a hand pulls (3 rad/s), is not pulled.
    """

    name = "open_microwave"
    instruction = "open the microwave"
    time_limit_s = 12.0

    def __init__(self, robot: Robot, workspace: Workspace) -> None:
        del workspace
        self.robot = robot
        self.parts = (ScenePart(prefix="microwave", asset="objects/microwave.xml", position=(0.7, 0.0, 0.0)),)
        left, right = robot.fingers
        self.contact_sensors = (
            ContactSensor(name=_LEFT_TOUCH, body=left, other=_HANDLE, other_is_geom=True),
            ContactSensor(name=_RIGHT_TOUCH, body=right, other=_HANDLE, other_is_geom=True),
        )
        self.articulations = {"microwave": ArticulatedAsset(root_body=_BODY, joints=(_HINGE,))}
        ways = {f"way_{number}": f"microwave/way_{number}" for number in range(1, NUM_WAYPOINTS + 1)}
        self.landmarks = {"handle": _HANDLE, **ways}

    def draw_conditions(self, generator: np.random.Generator) -> dict[str, ConditionValue]:
        """Draw where the microwave stands; its door is shut."""
        return {"microwave.position": (*draw_uniform(generator, _LOW, _HIGH), 0.0)}

    def start_state(self, conditions: Conditions) -> StartState:
        """Return the microwave in its place, shut."""
        return StartState(mocap_positions={_BODY: point(conditions["microwave.position"])})

    def observation_terms(self) -> dict[str, ObservationTerm]:
        """Return the handle's position and the door's angle."""
        return {
            "handle_pos": position_term(lambda backend: backend.site_position(_HANDLE)),
            "door_angle": number_term("door_angle", "rad", lambda backend: backend.joint_position(_HINGE)),
        }

    def attach(self, backend: Backend) -> None:
        """Make the counters, and room for how far each door was open and was pulled [rad]."""
        super().attach(backend)
        self._angle_rad = torch.zeros(backend.num_envs, dtype=backend.qpos.dtype, device=backend.device)
        self._pulled_rad = torch.zeros_like(self._angle_rad)

    def begin(self, backend: Backend, env_ids: torch.Tensor) -> None:
        """Forget how far the door was pulled. Shape: (n,), int64."""
        super().begin(backend, env_ids)
        self._pulled_rad[env_ids] = 0
        self._angle_rad[env_ids] = backend.joint_position(_HINGE)[env_ids, 0]

    def judge(self, backend: Backend, running: torch.Tensor) -> Judgement:
        """Judge by the door's angle and by how much of it a finger pulled."""
        angle = backend.joint_position(_HINGE)[:, 0]
        handle_distance = terms.distance(backend.site_position(self.robot.tcp_site), backend.site_position(_HANDLE))
        at_handle = backend.touching(_LEFT_TOUCH) | backend.touching(_RIGHT_TOUCH)
        pulled = terms.moved_by_hand(self._pulled_rad, angle - self._angle_rad, at_handle, _FASTEST_PULL_RAD)
        self._pulled_rad = torch.where(running, pulled, self._pulled_rad)
        self._angle_rad = torch.where(running, angle, self._angle_rad)
        is_open = (angle >= OPEN_RAD) & (self._pulled_rad >= PULLED_RAD)
        self.held_steps = terms.count_while(is_open, self.held_steps, running)
        success = self.held_steps >= HOLD_STEPS
        reward = (
            0.3 * terms.closeness(handle_distance, half_at=0.1)
            + 0.2 * at_handle
            + 0.5 * terms.progress(self._pulled_rad, start=0.0, goal=OPEN_RAD)
            + success
        )
        return Judgement(
            reward=reward,
            success=success,
            lost=torch.zeros_like(success),
            metrics={"final_angle_rad": angle, "pulled_rad": self._pulled_rad},
        )


def _make_task(config: OpenMicrowaveConfig, embodiment: Embodiment) -> OpenMicrowave:
    del config
    refuse_without_gripper(embodiment.robot)
    return OpenMicrowave(embodiment.robot, embodiment.workspace)


OPEN_MICROWAVE = TableEnvironmentBuilder(config_class=OpenMicrowaveConfig, make_task=_make_task)
