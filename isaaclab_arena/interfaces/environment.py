"""The contract of an environment: a batch of rows that the loop starts, steps and starts again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch

from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec

Observation: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: group (``policy``, ``camera_obs``), then term."""

StateTree: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: what the simulator knows, for recordings."""

VIEWPORT = "viewport"
"""The camera of ``filmable`` that shows a person the whole scene; no policy sees it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one control step gave, for every row.

    Rows that are not running (never reset, or finished and not reset since) keep their last observation, get
    reward 0 and are False in every mask.

    Attributes:
        observation: Observation after the step, which for a finished row is its terminal observation.
        reward: Shape: (num_envs,), float32.
        terminated: The task is over, solved or lost. Shape: (num_envs,), bool.
        truncated: The time limit was reached. Shape: (num_envs,), bool.
        success: The task is solved as of this step, or None where the environment does not measure success.
            Shape: (num_envs,), bool.
        diverged: The physics of the row broke down (NaN, MuJoCo warning); the episode is an error, whatever the
            other masks say. Shape: (num_envs,), bool.
        metrics: Further scalars per row, each of shape (num_envs,), float32; their value at the end of an episode
            is kept in its record.
        errors: Row to what went wrong there, for diverged rows where it was not the physics.
    """

    observation: Observation
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor | None
    diverged: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)


class Environment(ABC):
    """A batch of ``num_envs`` independent rows of one task.

    ``step`` never resets. The loop resets the rows it names, so the terminal observation exists, no frame is
    lost, and no recorder needs to know about timing. A row runs from its reset until the step that reports it
    ``terminated``, ``truncated`` or ``diverged``; then it rests, and costs no physics, until it is reset.

    Attributes:
        num_envs: Number of rows.
        device: Where observations live and actions are expected.
        observation_spec: Group, then term, then `ArraySpec`.
        action_spec: Shape: (action_dim,), with bounds and names.
        task_description: What the task asks for, in the words a policy is told; see also `instruction`.
        max_episode_length: Control steps until a row is truncated.
        control_dt: Time between two control steps [s].
        reproducible: Whether episodes follow from their conditions and actions alone, bit for bit where the device
            allows; results then promise it.
        returns_own_tensors: Whether nothing changes a tensor any more once `reset` or `step` has returned it, so that
            whoever keeps it needs no copy.
        filmable: Names of the cameras that `film` knows: those of ``camera_obs`` that show colours, and `VIEWPORT`.
        filming_hint: What a user can do for more of them, empty where there is nothing to do.
    """

    num_envs: int
    device: torch.device
    observation_spec: ObservationSpec
    action_spec: ArraySpec
    task_description: str
    max_episode_length: int
    control_dt: float
    reproducible: bool = True
    returns_own_tensors: bool = False
    filmable: tuple[str, ...] = ()
    filming_hint: str = ""

    @abstractmethod
    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw what one episode starts from.

        Args:
            generator: The episode's own stream; nothing else may influence the draw.
        """

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return an episode's conditions with what varies in it added or replaced; unchanged where nothing does.

        Args:
            conditions: What `draw_conditions` drew.
            episode: Its variation and noise streams; nothing else may influence the draw.
        """
        del episode
        return conditions

    def instruction(self, conditions: Conditions) -> str:
        """Return what one episode asks for, where not every episode asks for the same; by default it does.

        Args:
            conditions: What the episode starts from.
        """
        del conditions
        return self.task_description

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named rows and leave all other rows untouched.

        Args:
            env_ids: Rows to start, ascending. Shape: (n,), int64.
            conditions: What each of them starts from, in the same order.

        Returns:
            The observation of all rows.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Advance every running row by one control step.

        Args:
            action: Shape: (num_envs, action_dim). Rows that are not running are ignored.
        """

    @abstractmethod
    def state(self) -> StateTree:
        """Return the simulator's state in Isaac Lab's layout, copied.

        ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
        ``rigid_object/<name>/{root_pose,root_velocity}``; poses are (num_envs, 7), position [m] then quaternion
        w x y z.
        """

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return what `state` is made of, for whoever keeps every control step and wants the tree once per episode.

        They are views of the simulation's memory, the same at every call, whose values the next `step` or `reset`
        changes. Empty, as by default, where there is only `state`.

        Returns:
            All of one type. Shape of each: (num_envs, n).
        """
        return ()

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return `state` as it was when copies of `state_parts` were made, in arrays, to the last bit.

        Args:
            parts: The parts side by side, of any rows and moments. Shape: (n, width).

        Returns:
            As `state` has it; it may share memory with ``parts``. Shape of each: (n, ...).
        """
        raise NotImplementedError(f"{type(self).__name__} has no state_parts, so there is nothing to make a state of")

    def episode_state(self, env_id: int) -> Mapping[str, np.ndarray]:
        """Return what restores a row bit for bit beyond `state`; recorded once, at the start of an episode.

        Args:
            env_id: The row.
        """
        del env_id
        return {}

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again in the named rows; by default from their conditions alone, as `reset` does.

        Args:
            env_ids: Rows to start, ascending. Shape: (n,), int64.
            conditions: What each of them started from, in the same order.
            states: What `episode_state` returned for each; empty where that was not recorded.

        Returns:
            The observation of all rows.
        """
        del states
        return self.reset(env_ids, conditions)

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return everything that the future of all rows depends on, copied; None where there is no way to.

        Training goes on from it exactly as if it had not stopped.
        """
        return None

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Put every row where it was when `snapshot` was taken, of this or of an equal environment.

        Returns:
            The observation of all rows, bit for bit the last one before the snapshot.
        """
        del snapshot
        raise NotImplementedError(f"{type(self).__name__} takes no snapshots")

    def provenance(self) -> Mapping[str, str]:
        """Return what identifies the simulated world, for recordings: model hash, engine version."""
        return {}

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return what cameras see of some rows now; nothing else changes by it.

        Args:
            env_ids: The rows.
            cameras: Names out of ``filmable``.

        Returns:
            By name. Shape of each: (len(env_ids), height, width, 3), uint8, the first row the upper one.
        """
        del env_ids
        known = ", ".join(self.filmable) or "nothing"
        raise KeyError(f"no cameras {', '.join(cameras)}; this environment can film {known}{self.filming_hint}")

    def close(self) -> None:
        """Release what the environment holds. May be called more than once."""

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far, within any of its methods [s]."""
        return 0.0

    # What policies written for Isaac Lab Arena or Gymnasium read from the environment they are handed.

    @property
    def unwrapped(self) -> "Environment":
        """The environment itself."""
        return self

    @property
    def step_dt(self) -> float:
        """Isaac Lab's name of ``control_dt`` [s]."""
        return self.control_dt

    @property
    def single_action_space(self) -> gymnasium.spaces.Box:
        """Space of one row's action. Shape: (action_dim,)."""
        return _box(self.action_spec)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """Space of the batch of actions. Shape: (num_envs, action_dim)."""
        single = self.single_action_space
        shape = (self.num_envs, *single.shape)
        return gymnasium.spaces.Box(
            low=np.broadcast_to(single.low, shape), high=np.broadcast_to(single.high, shape), dtype=np.float32
        )


def _box(spec: ArraySpec) -> gymnasium.spaces.Box:
    low = -np.inf if spec.low is None else np.asarray(spec.low, np.float32).reshape(spec.shape)
    high = np.inf if spec.high is None else np.asarray(spec.high, np.float32).reshape(spec.shape)
    return gymnasium.spaces.Box(low=low, high=high, shape=spec.shape, dtype=np.float32)
