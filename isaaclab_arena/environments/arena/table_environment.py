"""An environment in which a robot arm works on a table."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment
from isaaclab_arena.environments.arena.cameras import EnvironmentCameras
from isaaclab_arena.environments.arena.state import StateReader
from isaaclab_arena.environments.mdp.actions import ActionMode
from isaaclab_arena.environments.mdp.conditions import draw_uniform, number, point
from isaaclab_arena.environments.mdp.observations import robot_terms
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, Task
from isaaclab_arena.environments.variations.catalogue import PARAPHRASE
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.scene.robot import Robot

CONTROL_DT = 0.05
ROBOT_CONDITION = "robot.joint_position"

START_NOISE_RAD = 0.02


class TableEnvironment(ArenaEnvironment):
    """A batch of env slots of one task on the table.

    Args:
        backend: The simulation; its model holds the task's parts and the robot.
        robot: The robot in it.
        task: What is to be done.
        action_mode: What actions mean.
        cameras: What is rendered.
        varied: What varies from episode to episode, None where nothing does.
        device: Where observations live and actions are expected, whatever device the physics runs on.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        robot: Robot,
        task: Task,
        action_mode: ActionMode,
        cameras: EnvironmentCameras,
        device: torch.device,
        varied: VariedWorld | None = None,
    ) -> None:
        self.robot = robot
        self.action_mode = action_mode
        self.hold_action = action_mode.hold_action
        self._varied = varied
        arm = ArticulatedAsset(root_body=robot.base_body, joints=(*robot.arm_joints, *robot.finger_joints))
        super().__init__(
            backend=backend,
            task=task,
            action_spec=action_mode.spec,
            terms={**robot_terms(robot, backend), **task.observation_terms()},
            state=StateReader(
                backend,
                {"robot": arm, **task.spec.articulations},
                {**task.spec.rigid_objects, **({} if varied is None else varied.rigid_objects)},
            ),
            cameras=cameras,
            control_dt=CONTROL_DT,
            device=device,
        )

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the robot's joint positions, near its home, and where the task's things start."""
        noise = (START_NOISE_RAD,) * len(self.robot.home)
        offset = draw_uniform(generator, tuple(-value for value in noise), noise)
        joints = tuple(home + shift for home, shift in zip(self.robot.home, offset, strict=True))
        return {ROBOT_CONDITION: joints, **self.task.draw_conditions(generator)}

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Add what varies in the episode; see `Environment.vary_conditions`."""
        return conditions if self._varied is None else self._varied.vary(conditions, episode)

    def instruction(self, conditions: Conditions) -> str:
        """Return what an episode asks for, in the task's own words or in those that it varies to."""
        told = round(number(conditions.get(PARAPHRASE, 0)))
        return super().instruction(conditions) if told == 0 else self.task.paraphrases_for(conditions)[told - 1]

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return what the future of all env slots depends on; None where worlds vary, as their models are not kept."""
        return super().snapshot() if self._varied is None else None

    def provenance(self) -> Mapping[str, str]:
        """Return the model's hash, the engine, the embodiment and the action mode."""
        return {**super().provenance(), "embodiment": self.robot.name, "action_mode": self.action_mode.name}

    @property
    def action_mode_name(self) -> str:
        """What actions mean."""
        return self.action_mode.name

    def _begin(self, env_ids: torch.Tensor, slots: Sequence[int], conditions: Sequence[Conditions]) -> None:
        if self._varied is not None:
            self._varied.begin(env_ids, slots, conditions)

    def _controls(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        if self._varied is not None:
            action = self._varied.executed(action, running)
        return self.action_mode.controls(self.backend, action)

    def _observation(self, moved: torch.Tensor) -> Observation:
        if self._varied is not None and self._varied.delays_observations:
            # What is looked at later is drawn now, and nobody has announced that yet.
            self.draw_pictures_of(None)
        observation = super()._observation(moved)
        return observation if self._varied is None else self._varied.seen(observation, moved)

    def _origin(self) -> torch.Tensor | None:
        return None if self._varied is None else self._varied.base_shift

    def _start_state(self, conditions: Conditions) -> StartState:
        task = self.task.start_state(conditions)
        robot = self.robot
        joints = point(conditions[ROBOT_CONDITION])
        arm = dict(zip(robot.arm_joints, joints, strict=True))
        fingers = dict(zip(robot.finger_joints, robot.finger_open, strict=True))
        gripper = {robot.gripper_actuator: robot.gripper_open} if robot.gripper_actuator else {}
        held = dict(zip(robot.arm_actuators, joints, strict=True))
        return StartState(
            joint_positions={
                **{joint: (value,) for joint, value in {**arm, **fingers}.items()},
                **task.joint_positions,
                **({} if self._varied is None else self._varied.joint_positions(conditions)),
            },
            controls={**held, **gripper, **task.controls},
            mocap_positions=task.mocap_positions,
        )
