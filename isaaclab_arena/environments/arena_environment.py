"""An environment made of a backend, a robot and a task."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.environments.actions import ActionMode
from isaaclab_arena.environments.cameras import EnvironmentCameras
from isaaclab_arena.environments.observations import read_terms, robot_terms
from isaaclab_arena.environments.state import StateReader
from isaaclab_arena.environments.tasks.task import Task, draw_uniform, point
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.robot import Robot

CONTROL_DT = 0.05
ROBOT_CONDITION = "robot.joint_position"

START_NOISE_RAD = 0.02

_INTEGRATION_STATE = "integration_state"


class ArenaEnvironment(Environment):
    """A batch of rows of one task.

    Args:
        backend: The simulation; its model holds the task's parts and the robot.
        robot: The robot in it.
        task: What is to be done.
        action_mode: What actions mean.
        cameras: What is rendered.
        varied: What varies from episode to episode, None where nothing does.
        device: Where observations live and actions are expected, whatever device the physics runs on.
    """

    returns_own_tensors = True

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
        self.backend = backend
        self.robot = robot
        self.task = task
        self.action_mode = action_mode
        self.num_envs = backend.num_envs
        self.device = device
        self.control_dt = CONTROL_DT
        self.task_description = task.instruction
        self.max_episode_length = round(task.time_limit_s / CONTROL_DT)
        self.action_spec = action_mode.spec
        self._terms = {**robot_terms(robot, backend), **task.observation_terms()}
        self._cameras = cameras
        self._varied = varied
        self.filmable = cameras.filmable
        self.observation_spec = {"policy": {name: term.spec for name, term in self._terms.items()}}
        if cameras.enabled:
            self.observation_spec["camera_obs"] = cameras.spec()
        self._num_substeps = round(CONTROL_DT / backend.physics_dt)
        self._running = torch.zeros(self.num_envs, dtype=torch.bool, device=backend.device)
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=backend.device)
        self._state = StateReader(backend, robot, task, {} if varied is None else varied.rigid_objects)
        self.task.attach(backend)
        self.backend.reset(torch.arange(self.num_envs, device=backend.device), [StartState()] * self.num_envs)
        if cameras.enabled:
            cameras.observe(range(self.num_envs))

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
        """Return what the task asks for in an episode that starts from ``conditions``."""
        return self.task.instruction_for(conditions)

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named rows. Shape of ``env_ids``: (n,)."""
        return self.restore(env_ids, conditions, [{}] * len(conditions))

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again, from their whole integration state where it is given; see `Environment`."""
        env_ids = env_ids.to(self.backend.device)
        if self._varied is not None:
            self._varied.begin(env_ids, conditions)
        self.backend.reset(env_ids, [self._start_state(condition) for condition in conditions])
        for env_id, state in zip(env_ids.tolist(), states, strict=True):
            if _INTEGRATION_STATE in state:
                self.backend.set_integration_state(env_id, state[_INTEGRATION_STATE])
        self.task.remember(env_ids, conditions)
        self.task.begin(self.backend, env_ids)
        self._running[env_ids] = True
        self._length[env_ids] = 0
        return self._observation(env_ids.tolist())

    def step(self, action: torch.Tensor) -> Step:
        """Advance every running row by one control step. Shape of ``action``: (num_envs, action_dim)."""
        running = self._running.clone()
        action = action.to(self.backend.device)
        if self._varied is not None:
            action = self._varied.executed(action, running)
        controls = self.action_mode.controls(self.backend, action)
        self.backend.ctrl.copy_(torch.where(running[:, None], controls, self.backend.ctrl))
        self.backend.step(running.nonzero()[:, 0], self._num_substeps)
        self._length += running
        diverged = running & self.backend.diverged
        sound = running & ~diverged
        judgement = self.task.judge(self.backend, sound)
        success = sound & judgement.success
        terminated = success | (sound & judgement.lost)
        truncated = sound & ~terminated & (self._length >= self.max_episode_length)
        self._running = sound & ~terminated & ~truncated
        return Step(
            observation=self._observation(running.nonzero()[:, 0].tolist()),
            reward=torch.where(sound, judgement.reward, 0.0).to(self.device, torch.float32),
            terminated=terminated.to(self.device),
            truncated=truncated.to(self.device),
            success=success.to(self.device),
            diverged=diverged.to(self.device),
            metrics={
                name: value.to(self.device, torch.float32, copy=True) for name, value in judgement.metrics.items()
            },
        )

    def state(self) -> StateTree:
        """Return the state of the robot and of all the task's things; see `StateReader`."""
        parts = torch.cat(tuple(self._state.parts), dim=1)
        return _on_device(self._state.tree(parts.cpu().numpy()), parts.device)

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return what `state` is made of; see `Environment.state_parts`."""
        return self._state.parts

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return the state in earlier moments. Shape of ``parts``: (n, width)."""
        return self._state.tree(parts)

    def episode_state(self, env_id: int) -> Mapping[str, np.ndarray]:
        """Return the row's whole integration state, from which `Backend.set_integration_state` continues."""
        return {_INTEGRATION_STATE: self.backend.integration_state(env_id)}

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return what cameras see of some rows now; see `Environment.film`."""
        return self._cameras.film(env_ids, cameras)

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far [s]."""
        return self._cameras.render_s

    def provenance(self) -> Mapping[str, str]:
        """Return the model's hash, the engine, the embodiment and the action mode."""
        return {
            "model_sha256": self.backend.model_digest(),
            "engine": self.backend.engine(),
            "embodiment": self.robot.name,
            "action_mode": self.action_mode.name,
        }

    @property
    def task_name(self) -> str:
        """Registered name of the task."""
        return self.task.name

    @property
    def action_mode_name(self) -> str:
        """What actions mean."""
        return self.action_mode.name

    @property
    def landmarks(self) -> Mapping[str, str]:
        """Role to the name of the body or site that plays it."""
        return self.task.landmarks

    @property
    def sizes(self) -> Mapping[str, float]:
        """Lengths of the task's things [m]."""
        return self.task.sizes

    def _observation(self, moved: Sequence[int]) -> Observation:
        origin = None if self._varied is None else self._varied.base_shift
        observation: Observation = {"policy": read_terms(self._terms, self.backend, self.device, origin)}
        if self._cameras.enabled:
            observation["camera_obs"] = self._cameras.observe(moved)
        return observation if self._varied is None else self._varied.seen(observation, moved)

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


def _on_device(tree: StateTree, device: torch.device) -> StateTree:
    return {
        name: _on_device(part, device) if isinstance(part, dict) else torch.from_numpy(part).to(device)
        for name, part in tree.items()
    }
