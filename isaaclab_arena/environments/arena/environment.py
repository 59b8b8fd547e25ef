"""Environments made of a backend and a task: their state, their judge, a robot arm on a table, a robot on a floor."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch

from isaaclab_arena.environments.arena.cameras import CameraOptions, EnvironmentCameras, ShowsPictures
from isaaclab_arena.environments.events import MomentRing, Moments
from isaaclab_arena.environments.mdp.actions import ActionMode, FloorActions
from isaaclab_arena.environments.mdp.conditions import draw_uniform, number, point
from isaaclab_arena.environments.mdp.observations import ObservationTerm, read_terms, robot_terms
from isaaclab_arena.environments.mdp.task import ArticulatedAsset, FloorTask, Task, Verdict
from isaaclab_arena.environments.variations.catalogue import PARAPHRASE
from isaaclab_arena.environments.variations.varied_world import VariedWorld
from isaaclab_arena.interfaces.environment import HOLDS_LAST, Environment, Observation, SideBySide, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeEvents
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.replayed import Capture, Replayed
from isaaclab_arena.sim.scene.scene import Robot

# The simulator's state in Isaac Lab's layout, for recordings.

_Read: TypeAlias = Callable[[np.ndarray], dict[str, np.ndarray]]


class StateReader:
    """Reads positions and velocities of robots and loose things.

    ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
    ``rigid_object/<name>/{root_pose,root_velocity}``. Shapes: (n, ...), in the backend's precision.

    Args:
        backend: The simulation.
        articulations: Name in recordings to each thing with joints, the robot among them.
        rigid_objects: Name in recordings to the free joint of each loose object.

    Attributes:
        parts: What the state is made of: `Backend`'s own tensors and views of them. Shape of each: (num_envs, n).
    """

    def __init__(
        self, backend: Backend, articulations: Mapping[str, ArticulatedAsset], rigid_objects: Mapping[str, str]
    ) -> None:
        self.parts: list[torch.Tensor] = [backend.qpos, backend.qvel]
        self._num_positions, self._width = backend.qpos.shape[1], backend.qpos.shape[1] + backend.qvel.shape[1]
        self._articulations = {name: self._articulation(backend, thing) for name, thing in articulations.items()}
        self._rigid_objects = {name: self._free(backend, joint) for name, joint in rigid_objects.items()}

    def tree(self, parts: np.ndarray) -> StateTree:
        """Return the state in Isaac Lab's layout; it shares memory with what it is made of.

        Args:
            parts: ``self.parts`` side by side, of any moments. Shape: (n, width).
        """
        return {
            "articulation": {name: read(parts) for name, read in self._articulations.items()},
            "rigid_object": {name: read(parts) for name, read in self._rigid_objects.items()},
        }

    def _articulation(self, backend: Backend, thing: ArticulatedAsset) -> _Read:
        positions, dofs = (indices.cpu().numpy() for indices in backend.joint_indices(thing.joints))
        dofs = dofs + self._num_positions
        root = self._fixed_root(backend, thing) if thing.free_joint is None else self._free(backend, thing.free_joint)

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            return {
                "joint_position": parts.take(positions, axis=1),
                "joint_velocity": parts.take(dofs, axis=1),
                **root(parts),
            }

        return read

    def _fixed_root(self, backend: Backend, thing: ArticulatedAsset) -> _Read:
        root = slice(self._width, self._width + 7)
        self.parts += [backend.body_position(thing.root_body), backend.body_orientation(thing.root_body)]
        self._width = root.stop

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            return {"root_pose": parts[:, root], "root_velocity": np.zeros_like(parts[:, root.start : root.stop - 1])}

        return read

    def _free(self, backend: Backend, joint: str) -> _Read:
        position, dof = backend.names.joint_qpos[joint], backend.names.joint_dof[joint]
        first = self._num_positions + dof.start

        def read(parts: np.ndarray) -> dict[str, np.ndarray]:
            pose, velocity = parts[:, position], parts[:, first : first + 6]
            # A free joint's angular velocity is in the frame of its body.
            angular = _rotated(pose[:, 3:], velocity[:, 3:])
            return {"root_pose": pose, "root_velocity": np.concatenate((velocity[:, :3], angular), axis=1)}

        return read


_YZX, _ZXY = np.array([1, 2, 0]), np.array([2, 0, 1])


def _rotated(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Turn vectors by unit quaternions, to the bit as `sim.rotation.rotate` does. Shapes: (n, 4), (n, 3) -> (n, 3)."""
    yzx, zxy = quaternion.take(1 + _YZX, axis=1), quaternion.take(1 + _ZXY, axis=1)

    def cross(other: np.ndarray) -> np.ndarray:
        return yzx * other.take(_ZXY, axis=1) - zxy * other.take(_YZX, axis=1)

    twice = 2 * cross(vector)
    return vector + quaternion[:, :1] * twice + cross(twice)


# Judging and observing a batch after each step: on a GPU as graphs, where a task does both with tensors alone.


class Judging:
    """What a task says of all env slots and what policies see of them.

    Args:
        task: Whose.
        backend: The simulation.
        terms: What policies see, by name.
        device: Where they see it.
        capture: Captures the work of a task that is `Task.capturable`; see `Replayed`.
    """

    def __init__(
        self,
        task: Task,
        backend: Backend,
        terms: Mapping[str, ObservationTerm],
        device: torch.device,
        capture: Capture | None,
    ) -> None:
        self._task, self._backend, self._terms, self._device = task, backend, terms, device
        self._is_replayed = capture is not None and task.can_be_captured() and device == backend.device
        self._moved = torch.zeros(backend.num_envs, dtype=torch.bool, device=backend.device)
        name = task.spec.name
        self._judge = Replayed(self._judge_moved, capture, keeper=task, name=f"the verdict of '{name}'")
        self._read = Replayed(self._read_terms, capture, name=f"what is seen of '{name}'")

    def judge(self, moved: torch.Tensor) -> Verdict:
        """Return what the task thinks of the state, good until the next time.

        Args:
            moved: Env slots that made the step, and did not break down. Shape: (num_envs,), bool.
        """
        if not self._is_replayed:
            return self._task.judge(self._backend, moved)
        self._moved.copy_(moved)
        return self._judge()

    def observe(self, origin: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what policies see.

        Args:
            origin: Where from, None for the world's origin [m]. Shape: (num_envs, 3).
        """
        if not self._is_replayed or origin is not None:
            return read_terms(self._terms, self._backend, self._device, origin)
        seen = self._read()
        return seen.clone() if isinstance(seen, SideBySide) else {name: term.clone() for name, term in seen.items()}

    def forget(self) -> None:
        """Give back what was captured."""
        self._judge.forget()
        self._read.forget()

    def _judge_moved(self) -> Verdict:
        return self._task.judge(self._backend, self._moved)

    def _read_terms(self) -> dict[str, torch.Tensor]:
        return read_terms(self._terms, self._backend, self._device)


# An environment made of a backend and a task; what moves in it is a subclass's business.

_INTEGRATION_STATE = "integration_state"

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _remembering(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a method that changes what an environment remembers, in torch's ordinary mode and without gradients."""
    in_ordinary_mode = torch.inference_mode(mode=False)(torch.no_grad()(method))

    @wraps(method)
    def call(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        # To change modes takes longer than a small task's verdict, and the loop has mostly done it.
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return in_ordinary_mode(*arguments, **named)
        return method(*arguments, **named)

    return call


class ArenaEnvironment(ShowsPictures, Environment):
    """A batch of one task. A subclass says what actions do, `_controls`, and may add to how episodes start.

    It remembers its env slots in ordinary tensors without gradients, in whatever mode it is called: tensors made in
    torch's inference mode cannot be changed outside of it.

    Args:
        backend: The simulation; its model holds the task's parts and what moves.
        task: What is to be done.
        action_spec: What an action looks like.
        terms: What policies observe, by name.
        state: Reads the state for recordings.
        cameras: What is rendered.
        control_dt: Time between two control steps [s].
        device: Where observations live and actions are expected, whatever device the physics runs on.

    Attributes:
        task_name: Registered name of the task.
        landmarks: Role to the name of the body or site that plays it.
        sizes: Lengths of the task's things [m].
        judging: Judges and observes after each step.
    """

    returns_own_tensors = True

    def __init__(
        self,
        *,
        backend: Backend,
        task: Task,
        action_spec: ArraySpec,
        terms: Mapping[str, ObservationTerm],
        state: StateReader,
        cameras: EnvironmentCameras,
        control_dt: float,
        device: torch.device,
    ) -> None:
        self.backend = backend
        self.task = task
        self.num_envs = backend.num_envs
        self.reproducible = backend.reproducible
        self.device = device
        self.control_dt = control_dt
        self.task_description = task.spec.instruction
        self.task_name = task.spec.name
        self.landmarks, self.sizes = task.spec.landmarks, task.spec.sizes
        self.max_episode_length = round(task.spec.time_limit_s / control_dt)
        self.action_spec = action_spec
        self._terms = dict(terms)
        self._cameras = cameras
        self.filmable = cameras.filmable
        self.observation_spec = {"policy": {name: term.spec for name, term in self._terms.items()}}
        if cameras.enabled:
            self.observation_spec[CAMERAS] = cameras.spec()
        self._num_substeps = round(control_dt / backend.physics_dt)
        self._running = torch.zeros(self.num_envs, dtype=torch.bool, device=backend.device)
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=backend.device)
        self._all_slots = torch.arange(self.num_envs, device=backend.device)
        self._state = state
        self._moments: MomentRing | None = None
        self.task.attach(backend)
        self.judging = Judging(task, backend, self._terms, device, backend.capture)
        self.backend.reset(self._all_slots, [StartState()] * self.num_envs)

    def announce_pictures(self, options: CameraOptions) -> None:
        """Say of pictures that options ask for what they look like, and never show any; see `SampleBuilder`."""
        if options.enable_cameras:
            pictures = EnvironmentCameras(self.backend, options, self.device).spec()
            self.observation_spec = {**self.observation_spec, CAMERAS: pictures}

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw where the task's things start."""
        return self.task.draw_conditions(generator)

    def instruction(self, conditions: Conditions) -> str:
        """Return what the task asks for in an episode that starts from ``conditions``."""
        return self.task.instruction_for(conditions)

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named env slots. Shape of ``env_ids``: (n,)."""
        return self.restore(env_ids, conditions, [{}] * len(conditions))

    @_remembering
    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again, from their whole integration state where it is given; see `Restorable`."""
        slots, env_ids = env_ids.tolist(), env_ids.to(self.backend.device)
        self._begin(env_ids, slots, conditions)
        self.backend.reset(env_ids, [self._start_state(condition) for condition in conditions])
        for env_id, state in zip(slots, states, strict=True):
            if _INTEGRATION_STATE in state:
                self.backend.set_integration_state(env_id, state[_INTEGRATION_STATE])
        self.task.remember(env_ids, conditions)
        self.task.begin(self.backend, env_ids)
        self._running[env_ids] = True
        self._length[env_ids] = 0
        self._cameras.outdate(slots)
        moved = torch.zeros_like(self._running)
        moved[env_ids] = True
        return self._observation(moved)

    @_remembering
    def step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot by one control step. Shape of ``action``: (num_envs, action_dim)."""
        self._command(action)
        self.backend.step(self._running, self._num_substeps)
        return self._outcome(self._running)

    @_remembering
    def try_step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot, or none; see `TriesSteps`. Shape of ``action``: (num_envs, action_dim)."""
        self._command(action)
        moved = self.backend.try_step(self._running, self._num_substeps)
        return self._outcome(moved, may_be_unmade=moved is not self._running)

    @_remembering
    def step_again(self) -> Step:
        """Advance every running env slot, as `try_step` could not; see `TriesSteps`."""
        self._cameras.observe_again()
        if self._moments is not None:
            self._moments.take_back()
        self.backend.step(self._running, self._num_substeps)
        return self._outcome(self._running, may_be_unmade=True)

    def state(self) -> StateTree:
        """Return the state of all that moves; see `StateReader`."""
        parts = torch.cat(tuple(self._state.parts), dim=1)
        tree = self._state.tree(parts.cpu().numpy())
        return with_leaves(tree, lambda part: torch.from_numpy(part).to(parts.device))

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return what `state` is made of; see `PartwiseRecordable`."""
        return self._state.parts

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return the state in earlier moments. Shape of ``parts``: (n, width)."""
        return self._state.tree(parts)

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        """Return each env slot's whole integration state, from which `Backend.set_integration_state` continues."""
        return [{_INTEGRATION_STATE: state} for state in self.backend.integration_states(env_ids)]

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        """Return in which env slots the goal is met where they were just reset to; see `JudgesStarts`."""
        met = self.task.goal_met(self.backend, self._all_slots)
        return [False] * len(env_ids) if met is None else met[list(env_ids)].tolist()

    @_remembering
    def begin_events(self, env_ids: Sequence[int]) -> None:
        """Begin to keep what happens in env slots that were just reset; see `TellsEvents`."""
        if not self.task.tells_events:
            return
        if self._moments is None:
            self._moments = MomentRing(
                self.backend,
                num_envs=self.num_envs,
                capacity=self.max_episode_length,
                fields=self.task.moment_fields,
            )
        self._moments.start(env_ids)

    @_remembering
    def episode_events(self, env_ids: Sequence[int], solved: Sequence[bool]) -> Sequence[EpisodeEvents | None]:
        """Return what happened in episodes that have just ended; see `TellsEvents`."""
        read, max_steps = self.kept_moments(env_ids), self.max_episode_length
        if not read:
            return [None] * len(env_ids)
        return [
            self.task.events(moments, env_id, solved=success, max_steps=max_steps)
            for moments, env_id, success in zip(read, env_ids, solved, strict=True)
        ]

    def kept_moments(self, env_ids: Sequence[int]) -> Sequence[Moments]:
        """Return what the episodes in env slots went through since `begin_events`; nothing where none is kept."""
        return [] if self._moments is None else self._moments.moments(env_ids)

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return what the future of all env slots depends on; None with cameras, whose last pictures are not kept."""
        if self._cameras.enabled:
            return None
        kept = {name: tensor.clone() for name, tensor in self._memory().items()}
        return {**kept, **{f"backend.{name}": tensor for name, tensor in self.backend.snapshot().items()}}

    @_remembering
    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Put every env slot where it was; see `Snapshottable`."""
        prefix = "backend."
        self.backend.restore_snapshot(
            {name.removeprefix(prefix): tensor for name, tensor in snapshot.items() if name.startswith(prefix)}
        )
        for name, tensor in self._memory().items():
            tensor.copy_(snapshot[name])
        self._cameras.outdate(None)
        return self._observation(torch.ones_like(self._running))

    def close(self) -> None:
        """Release what the simulation holds on its device."""
        self.judging.forget()
        self.backend.close()

    def provenance(self) -> Mapping[str, str]:
        """Return the model's hash and the engine."""
        return {"model_sha256": self.backend.model_digest(), "engine": self.backend.engine()}

    @abstractmethod
    def _controls(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return what actions ask of the actuators.

        Args:
            action: Shape: (num_envs, action_dim).
            running: Env slots that make the step; nothing may change for the others. Shape: (num_envs,), bool.

        Returns:
            Shape: (num_envs, nu).
        """

    def _begin(self, env_ids: torch.Tensor, slots: Sequence[int], conditions: Sequence[Conditions]) -> None:
        """Get env slots ready for new episodes before the backend resets them.

        Args:
            env_ids: The env slots, where the worlds are. Shape: (n,), int64.
            slots: Their numbers.
            conditions: Those of each episode.
        """

    def _start_state(self, conditions: Conditions) -> StartState:
        """Return what one env slot starts from; by default what the task says."""
        return self.task.start_state(conditions)

    def _command(self, action: torch.Tensor) -> None:
        """Give the actuators of running env slots what actions ask for. Shape: (num_envs, action_dim)."""
        controls = self._controls(action.to(self.backend.device), self._running)
        torch.where(self._running[:, None], controls, self.backend.ctrl, out=self.backend.ctrl)

    def _outcome(self, moved: torch.Tensor, *, may_be_unmade: bool = False) -> Step:
        """Return what a step gave to the env slots that made it; nothing changes for others.

        Args:
            moved: The env slots that made it. Shape: (num_envs,), bool.
            may_be_unmade: Whether the step says that these have made it.
        """
        if self._moments is not None:
            self._moments.keep()
        self._length += moved
        # Right after the physics each call costs several times what it does elsewhere: what is a part of something else
        # is taken out of it with one.
        diverged = moved & self.backend.diverged
        sound = moved ^ diverged
        judgement = self.judging.judge(sound)
        success = sound & judgement.success
        terminated = success | (sound & judgement.lost)
        truncated = (sound ^ terminated) & (self._length >= self.max_episode_length)
        self._running = self._running ^ (diverged | terminated | truncated)
        if self._cameras.enabled:
            # To read from a GPU which of them moved would be to wait for it.
            self._cameras.outdate(moved.nonzero()[:, 0].tolist() if moved.is_cpu else None)
        return Step(
            observation=self._observation(moved),
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

    def _observation(self, moved: torch.Tensor) -> Observation:
        """Return what policies observe.

        Args:
            moved: Env slots that began or made a step. Shape: (num_envs,), bool.
        """
        del moved
        observation: Observation = {"policy": self.judging.observe(self._origin())}
        if self._cameras.enabled:
            observation[CAMERAS] = self._cameras.observe()
        return observation

    def _origin(self) -> torch.Tensor | None:
        """Return where policies see points from, None for the world's origin [m]. Shape: (num_envs, 3)."""
        return None

    def _memory(self) -> Mapping[str, torch.Tensor]:
        own = {"running": self._running, "length": self._length}
        return {**own, **{f"task.{name}": tensor for name, tensor in self.task.memory().items()}}


# An environment in which a robot arm works on a table.

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


# An environment in which a robot stands or moves on a floor.


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
