"""Environments made of a backend and a task: their state, their judge, a robot arm on a table, a robot on a floor."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TypeAlias

import numpy as np
import torch

from isaaclab_arena.environments.arena.cameras import HEAD_CAMERA, EnvironmentCameras
from isaaclab_arena.environments.events import MomentRing
from isaaclab_arena.environments.mdp import spaces
from isaaclab_arena.environments.mdp.task import FloorTask, Task
from isaaclab_arena.environments.mdp.things import ArticulatedAsset
from isaaclab_arena.environments.variations.catalogue import START_NOISE_RAD
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeEvents, draw_around, number, point
from isaaclab_arena.interfaces.specs import CAMERAS, HOLDS_LAST, SideBySide, StateTree
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.sim.backend import Backend, Replayed, StartState, side_by_side
from isaaclab_arena.sim.scene import Robot

_Root: TypeAlias = tuple[slice, slice | None]
"""The columns of a root's pose, and of its velocity; None for a fixed root."""

_YZX, _ZXY = np.array([1, 2, 0]), np.array([2, 0, 1])
_INTEGRATION_STATE = "integration_state"


def _ordinary_mode() -> AbstractContextManager[object]:
    """Leave inference mode and gradients: an environment's memory changes in every calling mode."""
    # A mode change takes longer than a small task's verdict, and the loop has usually done it already.
    if not (torch.is_grad_enabled() or torch.is_inference_mode_enabled()):
        return nullcontext()
    modes = ExitStack()
    modes.enter_context(torch.inference_mode(mode=False))
    modes.enter_context(torch.no_grad())
    return modes


class ArenaEnvironment(Environment):
    """A batch of one task; a subclass maps actions to controls in `_controls`, and may extend the start."""

    returns_own_tensors = True
    _labels: Mapping[str, str]  # the robot, and its action mode if it has several, for the provenance
    _varied: VariedWorld | None = None  # changes from episode to episode

    def __init__(
        self,
        backend: Backend,
        task: Task,
        terms: Mapping[str, spaces.ObservationTerm],
        robot: ArticulatedAsset,
        cameras: EnvironmentCameras,
        device: torch.device,
    ) -> None:
        # A subclass has set ``action_spec`` before.
        # Env slots are stored in ordinary tensors without gradients, in any calling mode: tensors made in inference
        # mode cannot change outside of it.
        # ``device`` holds observations and actions; the physics may run on another.
        self.backend = backend
        self.task = task
        self.num_envs = backend.num_envs
        self.reproducible = backend.reproducible
        self.device = device
        self.task_description = task.spec.instruction
        self.task_name, self.metrics = task.spec.name, task.spec.metrics
        self.landmarks, self.sizes = task.spec.landmarks, task.spec.sizes
        self.control_dt = task.control_dt
        self.max_episode_length = round(task.spec.time_limit_s / self.control_dt)
        self._terms = dict(terms)
        self._cameras = cameras
        self.filmable = cameras.filmable
        self.observation_spec = {"policy": {name: term.spec for name, term in self._terms.items()}}
        if cameras.enabled:
            self.observation_spec[CAMERAS] = cameras.spec()
        self._num_substeps = round(self.control_dt / backend.physics_dt)
        if self._num_substeps < 1 or abs(self._num_substeps * backend.physics_dt / self.control_dt - 1) > 1e-6:
            raise EnvironmentBuildError(
                f"task '{task.spec.name}': control_dt {self.control_dt:g} s is no multiple of the physics step, "
                f"{backend.physics_dt:g} s"
            )
        self._running = torch.zeros(self.num_envs, dtype=torch.bool, device=backend.device)
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=backend.device)
        self._all_slots = torch.arange(self.num_envs, device=backend.device)
        self.moments: MomentRing | None = None  # since `begin_events`

        # The state is read from the backend's own tensors and views of them, each (num_envs, n).
        self._state_parts: list[torch.Tensor] = [backend.qpos, backend.qvel]
        num_positions, width = backend.qpos.shape[1], backend.qpos.shape[1] + backend.qvel.shape[1]
        # Each articulation's columns of joint positions, joint velocities, and root.
        self._articulations: dict[str, tuple[np.ndarray, np.ndarray, _Root]] = {}
        free_joints = dict(task.spec.rigid_objects)
        if self._varied is not None:
            free_joints |= {name: f"{name}/free" for name in self._varied.distractors.things}
        articulations = {"robot": robot, **task.spec.articulations}
        roots: dict[str, _Root] = {}
        for joint in (*free_joints.values(), *(each.free_joint for each in articulations.values() if each.free_joint)):
            first = num_positions + backend.names.joint_dof[joint].start
            roots[joint] = backend.names.joint_qpos[joint], slice(first, first + 6)
        for name, asset in articulations.items():
            positions, dofs = (indices.cpu().numpy() for indices in backend.joint_indices(asset.joints))
            if asset.free_joint is None:
                body = backend.names.bodies[asset.root_body]
                self._state_parts += [backend.xpos[:, body], backend.xquat[:, body]]
                root = slice(width, width + 7), None
                width += 7
            else:
                root = roots[asset.free_joint]
            self._articulations[name] = positions, dofs + num_positions, root
        self._rigid_objects = {name: roots[joint] for name, joint in free_joints.items()}

        self.task.attach(backend)
        # A task is judged and observed as graphs if it does both with tensors alone on the backend's device. The work
        # must not hold the environment: with a cycle, its pictures would outlive it.
        own_terms, capture, name = self._terms, backend.capture, task.spec.name
        self._is_replayed = capture is not None and task.capturable and device == backend.device
        self._sound = sound = torch.zeros_like(self._running)
        verdict, seen = f"the verdict of '{name}'", f"what is seen of '{name}'"
        self._judge = Replayed(lambda: task.judge(backend, sound), capture, keeper=task, name=verdict)
        self._read = Replayed(lambda: spaces.read_terms(own_terms, backend, device), capture, name=seen)
        self.backend.reset(self._all_slots, [StartState()] * self.num_envs)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the start of the task's things."""
        return self.task.draw_conditions(generator)

    def instruction(self, conditions: Conditions) -> str:
        """Return an episode's instruction, in the task's own words or in the episode's paraphrase."""
        told = round(number(conditions.get("instruction.paraphrase", 0)))
        return self.task.instruction_for(conditions) if told == 0 else self.task.paraphrases_for(conditions)[told - 1]

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Add the episode's variations; see `Environment.vary_conditions`."""
        return conditions if self._varied is None else self._varied.vary(conditions, episode)

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the env slots ``env_ids`` (n,)."""
        return self.restore(env_ids, conditions, [{}] * len(conditions))

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Restart recorded episodes, from their full integration state if given."""
        with _ordinary_mode():
            slots, env_ids = env_ids.tolist(), env_ids.to(self.backend.device, non_blocking=True)
            if self._varied is not None:
                self._varied.begin(env_ids, conditions)
            self.backend.reset(env_ids, [self._start_state(condition) for condition in conditions])
            for env_id, state in zip(slots, states, strict=True):
                if _INTEGRATION_STATE in state:
                    self.backend.set_integration_state(env_id, state[_INTEGRATION_STATE])
            self.task.remember(env_ids, conditions)
            self.task.begin(self.backend, env_ids)
            self._running[env_ids] = True
            self._length[env_ids] = 0
            self._cameras.drawn.outdated[slots] = True
            return self._observation()

    def step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot by one control step. Shape of ``action``: (num_envs, action_dim)."""
        with _ordinary_mode():
            self._command(action)
            self.backend.step(self._running, self._num_substeps)
            return self._outcome(self._running)

    def try_step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot, or none. Shape of ``action``: (num_envs, action_dim)."""
        with _ordinary_mode():
            self._command(action)
            moved = self.backend.step(self._running, self._num_substeps, may_fail=True)
            return self._outcome(moved, may_be_unmade=moved is not self._running)

    def step_again(self) -> Step:
        """Advance every running env slot after a failed `try_step`."""
        with _ordinary_mode():
            # The last observation's announcement is back, its pictures do not count, and its moment is forgotten.
            drawn = self._cameras.drawn
            drawn.announced, drawn.num_drawn = self._cameras.before_observed
            if self.moments is not None:
                self.moments.num_kept -= 1
            self.backend.step(self._running, self._num_substeps)
            return self._outcome(self._running, may_be_unmade=True)

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """Announce the env slots that are read next."""
        self._cameras.drawn.announced = env_ids

    def load_renderer(self) -> None:
        """Load the policies' renderer, if they see pictures. The first pictures compile kernels."""
        if self._cameras.enabled:
            self._cameras.renderer_of(HEAD_CAMERA).render(range(self.num_envs))

    @property
    def pictures_drawn(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  others keep a number
        """Number of pictures drawn for policies so far."""
        return self._cameras.drawn.num_drawn

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return the cameras' current pictures of env slots."""
        return self._cameras.film(env_ids, cameras)

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> Sequence[Callable[[], Mapping[str, np.ndarray]]]:
        """Copy the current view of env slots, to be drawn later."""
        return self._cameras.film_later(env_ids, cameras)

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far [s]."""
        return self._cameras.render_s

    def state(self) -> StateTree:
        """Return the state of everything that moves, in Isaac Lab's layout."""
        parts = torch.cat(tuple(self._state_parts), dim=1)
        return with_leaves(self.state_of(parts.cpu().numpy()), lambda part: torch.from_numpy(part).to(parts.device))

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return the tensors of which `state` is made."""
        return self._state_parts

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return the state of earlier moments, as views of ``parts`` (n, width): `state_parts` side by side."""
        # The tree has ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
        # ``rigid_object/<name>/{root_pose,root_velocity}``, in the backend's precision.

        def root_state(root: _Root) -> dict[str, np.ndarray]:
            pose = parts[:, root[0]]
            if root[1] is None:
                return {"root_pose": pose, "root_velocity": np.zeros_like(pose[:, :6])}
            # A free joint's angular velocity is in its body's frame. The rotation is bit-equal to `sim.math.rotate`.
            linear, angular, axis = parts[:, root[1]][:, :3], parts[:, root[1]][:, 3:], pose[:, 4:]
            yzx, zxy = axis.take(_YZX, axis=1), axis.take(_ZXY, axis=1)
            twice = 2 * (yzx * angular.take(_ZXY, axis=1) - zxy * angular.take(_YZX, axis=1))
            turned = yzx * twice.take(_ZXY, axis=1) - zxy * twice.take(_YZX, axis=1)
            angular = angular + pose[:, 3:4] * twice + turned
            return {"root_pose": pose, "root_velocity": np.concatenate((linear, angular), axis=1)}

        return {
            "articulation": {
                name: {
                    "joint_position": parts.take(positions, axis=1),
                    "joint_velocity": parts.take(dofs, axis=1),
                    **root_state(root),
                }
                for name, (positions, dofs, root) in self._articulations.items()
            },
            "rigid_object": {name: root_state(root) for name, root in self._rigid_objects.items()},
        }

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        """Return each env slot's integration state, for `Backend.set_integration_state`."""
        return [{_INTEGRATION_STATE: state} for state in self.backend.integration_states(env_ids)]

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        """Return True for env slots whose goal is met right after their reset."""
        met = self.task.goal_met(self.backend, self._all_slots)
        return [False] * len(env_ids) if met is None else met[list(env_ids)].tolist()

    def begin_events(self, env_ids: Sequence[int]) -> None:
        """Begin to store the moments of env slots that were just reset."""
        if not self.task.tells_events:
            return
        with _ordinary_mode():
            if self.moments is None:
                capacity, fields = self.max_episode_length, self.task.moment_fields
                self.moments = MomentRing(self.backend, num_envs=self.num_envs, capacity=capacity, fields=fields)
            self.moments.start(env_ids)

    def episode_events(self, env_ids: Sequence[int], solved: Sequence[bool]) -> Sequence[EpisodeEvents | None]:
        """Return the events of episodes that just ended."""
        with _ordinary_mode():
            if self.moments is None:
                return [None] * len(env_ids)
            read, max_steps = self.moments.moments(env_ids), self.max_episode_length
            return [
                self.task.events(moments, env_id, solved=success, max_steps=max_steps)
                for moments, env_id, success in zip(read, env_ids, solved, strict=True)
            ]

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return all that the env slots' future depends on; None with cameras or if worlds vary."""
        # Neither the last pictures nor the models of worlds are copied.
        if self._cameras.enabled or self._varied is not None:
            return None
        kept = {name: tensor.clone() for name, tensor in self._memory().items()}
        return {**kept, **{f"backend.{name}": tensor for name, tensor in self.backend.snapshot().items()}}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Restore every env slot."""
        prefix = "backend."
        with _ordinary_mode():
            self.backend.restore_snapshot(
                {name.removeprefix(prefix): tensor for name, tensor in snapshot.items() if name.startswith(prefix)}
            )
            for name, tensor in self._memory().items():
                tensor.copy_(snapshot[name])
            self._cameras.drawn.outdated[:] = True
            return self._observation()

    def close(self) -> None:
        """Release the simulation's device memory."""
        self._judge.forget()
        self._read.forget()
        self.backend.close()

    def provenance(self) -> Mapping[str, str]:
        """Return the model's hash, the engine, the robot, and its action mode if it has several."""
        return {"model_sha256": self.backend.model_digest(), "engine": self.backend.engine(), **self._labels}

    @abstractmethod
    def _controls(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Map actions (num_envs, action_dim) to controls (num_envs, nu); only ``running`` env slots may change."""

    def _start_state(self, conditions: Conditions) -> StartState:
        """Return the start of one env slot, by default the task's."""
        return self.task.start_state(conditions)

    def _command(self, action: torch.Tensor) -> None:
        """Set the controls of the running env slots."""
        controls = self._controls(action.to(self.backend.device), self._running)
        torch.where(self._running[:, None], controls, self.backend.ctrl, out=self.backend.ctrl)

    def _outcome(self, moved: torch.Tensor, *, may_be_unmade: bool = False) -> Step:
        """Judge a step and return it; nothing changes for env slots outside ``moved`` (num_envs,), bool."""
        if self.moments is not None:
            self.moments.keep()
        self._length += moved
        # A call right after the physics costs several times the usual, so each mask is a single operation: XOR removes
        # a subset.
        diverged = moved & self.backend.diverged
        sound = moved ^ diverged
        if self._is_replayed:
            self._sound.copy_(sound)
            judgement = self._judge()  # valid until the next one
        else:
            judgement = self.task.judge(self.backend, sound)
        success = sound & judgement.success
        terminated = success | (sound & judgement.lost)
        truncated = (sound ^ terminated) & (self._length >= self.max_episode_length)
        self._running = self._running ^ (diverged | terminated | truncated)
        if self._cameras.enabled:
            # A read of ``moved`` from a GPU would wait for it.
            self._cameras.drawn.outdated[moved.numpy() if moved.is_cpu else slice(None)] = True
        return Step(
            observation=self._observation(),
            reward=torch.where(sound, judgement.reward, 0.0).to(self.device, torch.float32),
            terminated=terminated.to(self.device),
            truncated=truncated.to(self.device),
            success=success.to(self.device),
            diverged=diverged.to(self.device),
            metrics={
                name: value.to(self.device, torch.float32, copy=True) for name, value in judgement.metrics.items()
            },
            made=moved.to(self.device) if may_be_unmade else None,
        )

    def _observation(self) -> Observation:
        """Return the policies' observation."""
        origin = None if self._varied is None else self._varied.base_shift
        if self._is_replayed and origin is None:
            seen = self._read()
            terms = (
                seen.clone() if isinstance(seen, SideBySide) else {name: term.clone() for name, term in seen.items()}
            )
        else:
            terms = spaces.read_terms(self._terms, self.backend, self.device, origin)
        observation: Observation = {"policy": terms}
        if self._cameras.enabled:
            observation[CAMERAS] = self._cameras.observe()
        return observation

    def _memory(self) -> Mapping[str, torch.Tensor]:
        own = {"running": self._running, "length": self._length}
        return {**own, **{f"task.{name}": tensor for name, tensor in self.task.memory().items()}}


class TableEnvironment(ArenaEnvironment):
    """A batch of env slots of one task of a robot arm on the table."""

    def __init__(
        self,
        backend: Backend,
        robot: Robot,
        task: Task,
        action_mode: spaces.ActionMode,
        cameras: EnvironmentCameras,
        device: torch.device,
        varied: VariedWorld | None,
    ) -> None:
        self.robot = robot
        self.action_mode, self.action_mode_name = action_mode, action_mode.name
        self.action_spec, self.hold_action = action_mode.spec, action_mode.hold_action
        self._labels, self._varied = {"embodiment": robot.name, "action_mode": action_mode.name}, varied

        # In every task the robot's joints, gripper and end effector are observed.
        joints, fingers = (
            tuple(name.rpartition("/")[2] for name in names) for names in (robot.arm_joints, robot.finger_joints)
        )
        positions, dofs = (side_by_side(indices) for indices in backend.joint_indices(robot.arm_joints))
        terms = {
            "robot_joint_pos": spaces.vector_term(joints, "rad", lambda backend: backend.qpos[:, positions]),
            "robot_joint_vel": spaces.vector_term(joints, "rad/s", lambda backend: backend.qvel[:, dofs]),
        }
        if fingers:
            of_fingers = side_by_side(backend.joint_indices(robot.finger_joints)[0])
            terms["gripper_pos"] = spaces.vector_term(
                fingers, robot.finger_unit, lambda backend: backend.qpos[:, of_fingers]
            )
        terms["eef_pos"] = spaces.position_term(lambda backend: backend.site_position(robot.tcp_site))
        terms["eef_quat"] = spaces.orientation_term(lambda backend: backend.body_orientation(robot.hand_body))
        terms |= task.observation_terms()
        asset = ArticulatedAsset(root_body=robot.base_body, joints=(*robot.arm_joints, *robot.finger_joints))
        super().__init__(backend, task, terms, asset, cameras, device)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the robot's joint positions, near its home, and the start of the task's things."""
        joints = draw_around(generator, self.robot.home, START_NOISE_RAD)
        return {"robot.joint_position": joints, **self.task.draw_conditions(generator)}

    def _controls(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        del running
        return self.action_mode.controls(self.backend, action)

    def _start_state(self, conditions: Conditions) -> StartState:
        robot, task = self.robot, self.task.start_state(conditions)
        joints = point(conditions["robot.joint_position"])
        arm = dict(zip(robot.arm_joints, joints, strict=True))
        fingers = dict(zip(robot.finger_joints, robot.finger_open, strict=True))
        gripper = {robot.gripper_actuator: robot.gripper_open} if robot.gripper_actuator else {}
        return StartState(
            joint_positions={
                **{joint: (value,) for joint, value in {**arm, **fingers}.items()},
                **task.joint_positions,
                **({} if self._varied is None else self._varied.distractors.joint_positions(conditions)),
            },
            # The actuators hold the drawn joint positions, so that the arm does not move at the first step.
            controls={**dict(zip(robot.arm_actuators, joints, strict=True)), **gripper, **task.controls},
            mocap_positions=task.mocap_positions,
        )


class FloorEnvironment(ArenaEnvironment):
    """A batch of one task of a floor robot, which starts in its default posture unless the task differs."""

    def __init__(self, *, backend: Backend, task: FloorTask, cameras: EnvironmentCameras, device: torch.device) -> None:
        robot = task.robot
        self._task = task
        self.robot, self._labels = robot, {"embodiment": robot.name}
        self._actions = spaces.FloorActions(robot, backend)
        self.action_spec = self._actions.spec
        default = zip(robot.joints, robot.default_joint_position, strict=True)
        self._default_joints = {joint: (value,) for joint, value in default}
        self._default_controls = dict(zip(robot.actuators, robot.default_control, strict=True))
        self.hold_action = HOLDS_LAST if robot.holds_targets else (0.0,) * len(robot.actuators)
        asset = ArticulatedAsset(root_body=robot.root_body, joints=robot.joints, free_joint=robot.free_joint)
        super().__init__(backend, task, task.observation_terms(), asset, cameras, device)

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
