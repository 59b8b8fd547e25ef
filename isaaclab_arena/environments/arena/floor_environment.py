"""An environment in which a robot stands or moves on a floor."""

from collections.abc import Mapping

import torch

from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment
from isaaclab_arena.environments.arena.cameras import EnvironmentCameras
from isaaclab_arena.environments.arena.state import StateReader
from isaaclab_arena.environments.mdp.floor_actions import FloorActions
from isaaclab_arena.environments.mdp.floor_task import FloorTask
from isaaclab_arena.environments.mdp.task import ArticulatedAsset
from isaaclab_arena.interfaces.environment import HOLDS_LAST
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backend import Backend, StartState


class FloorEnvironment(ArenaEnvironment):
    """A batch of env slots of one task of a robot, in its default posture at the start unless the task says otherwise.

    Args:
        backend: The simulation; its model holds the robot.
        task: What is to be done, by which robot.
        cameras: What is rendered.
        device: Where observations live and actions are expected, whatever device the physics runs on.
    """

    def __init__(self, *, backend: Backend, task: FloorTask, cameras: EnvironmentCameras, device: torch.device) -> None:
        robot = task.robot
        self._task = task
        self.robot = robot
        self._actions = FloorActions(robot, backend)
        default = zip(robot.joints, robot.default_joint_position, strict=True)
        self._default_joints = {joint: (value,) for joint, value in default}
        self._default_controls = dict(zip(robot.actuators, robot.default_control, strict=True))
        self.hold_action = HOLDS_LAST if robot.holds_targets else (0.0,) * len(robot.actuators)
        moved = ArticulatedAsset(root_body=robot.root_body, joints=robot.joints, free_joint=robot.free_joint)
        super().__init__(
            backend=backend,
            task=task,
            action_spec=self._actions.spec,
            terms=task.observation_terms(),
            state=StateReader(backend, {"robot": moved, **task.spec.articulations}, task.spec.rigid_objects),
            cameras=cameras,
            control_dt=task.control_dt,
            device=device,
        )

    def provenance(self) -> Mapping[str, str]:
        """Return the model's hash, the engine and the robot."""
        return {**super().provenance(), "embodiment": self.robot.name}

    def _controls(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        del running
        return self._actions.controls(self.backend, action, self._task.centre())

    def _start_state(self, conditions: Conditions) -> StartState:
        task = self.task.start_state(conditions)
        return StartState(
            joint_positions={**self._default_joints, **task.joint_positions},
            joint_velocities=task.joint_velocities,
            controls={**self._default_controls, **task.controls},
            mocap_positions=task.mocap_positions,
        )
