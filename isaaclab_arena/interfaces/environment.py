"""The contract of an environment: a batch of env slots that are stepped, recorded, started again, or kept whole."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import gymnasium
import numpy as np
import torch

from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeEvents
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec

# The contract of an environment: a batch of env slots that the loop starts, steps and starts again.

Observation: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: group (``policy``, ``camera_obs``), then term."""


class SideBySide(dict[str, torch.Tensor]):
    """Terms of an observation that lie side by side in memory, so that one copy keeps all of them.

    Args:
        together: All terms. Shape: (num_envs, width).
        widths: Name to width of each term, in order.
    """

    def __init__(self, together: torch.Tensor, widths: Mapping[str, int]) -> None:
        super().__init__(zip(widths, together.split_with_sizes(list(widths.values()), dim=1), strict=True))
        self.together = together

    def clone(self) -> "SideBySide":
        """Return a copy, side by side too."""
        return SideBySide(self.together.clone(), {name: term.shape[1] for name, term in self.items()})


StateTree: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: the simulator's state, for recordings."""

HoldAction: TypeAlias = tuple[float | None, ...] | str | None
"""The action that keeps a robot at its target: a number for each element, None for an element that stays as it was in
the last action; ``last`` for all of the last action; None for an environment that declares nothing."""

HOLDS_LAST = "last"
"""The `HoldAction` of an environment whose actions are targets."""

VIEWPORT = "viewport"
"""The camera of a `Filmable` environment that shows a person the whole scene; no policy sees it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of one control step, for every env slot.

    Env slots that are not running (never reset, or finished and not reset since) keep their last observation, get
    reward 0 and are False in every mask.

    Attributes:
        observation: Observation after the step, which for a finished env slot is its terminal observation.
        reward: Shape: (num_envs,), float32.
        terminated: The task is over, solved or lost. Shape: (num_envs,), bool.
        truncated: The time limit was reached. Shape: (num_envs,), bool.
        success: The task is solved as of this step, or None if the environment does not measure success.
            Shape: (num_envs,), bool.
        diverged: The physics of the env slot broke down (NaN, MuJoCo warning); the episode is an error, whatever the
            other masks say. Shape: (num_envs,), bool.
        metrics: Further scalars per env slot, each of shape (num_envs,), float32; their value at the end of an episode
            is kept in its record.
        errors: Env slot to the error there, for diverged ones whose fault was not the physics.
        made: Env slots that made the step, None for all that run; see `TriesSteps`. Shape: (num_envs,), bool.
    """

    observation: Observation
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    success: torch.Tensor | None
    diverged: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    made: torch.Tensor | None = None


class Environment(ABC):
    """A batch of ``num_envs`` independent env slots of one task.

    ``step`` never resets. The loop resets the env slots it names, so the terminal observation exists, no frame is
    lost, and no recorder needs to know about timing. An env slot runs from its reset until the step that reports it
    ``terminated``, ``truncated`` or ``diverged``. Then it rests, and costs no physics, until it is reset.

    An environment may offer more by having the methods of a protocol: `Recordable`, `PartwiseRecordable`,
    `Restorable`, `Snapshottable`, `TriesSteps`, `BeginsSteps`, `BeginsResets`, `StepsAhead`, `TellsBadStarts`,
    `TellsEvents`, `Filmable` and `FilmableLater`. A caller leaves out whatever it does not offer.

    Attributes:
        num_envs: Number of env slots.
        device: Device of observations and actions.
        observation_spec: Group, then term, then `ArraySpec`.
        action_spec: Shape: (action_dim,), with bounds and names.
        task_description: The instruction of the task, in the words for a policy; see also `instruction`.
        max_episode_length: Control steps until an env slot is truncated.
        control_dt: Time between two control steps [s].
        reproducible: Whether episodes follow from their conditions and actions alone, bit for bit if the device
            allows it; results then promise it.
        returns_own_tensors: Whether nothing changes a tensor any more once `reset` or `step` has returned it, so that
            it can be kept without a copy.
        hold_action: The action of a robot until it gets a new one.
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
    hold_action: HoldAction = None

    @abstractmethod
    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the conditions that one episode starts from.

        Args:
            generator: The episode's own stream; nothing else may influence the draw.
        """

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return an episode's conditions with its variations added or replaced; unchanged if it has none.

        Args:
            conditions: The conditions that `draw_conditions` drew.
            episode: Its variation and noise streams; nothing else may influence the draw.
        """
        del episode
        return conditions

    def instruction(self, conditions: Conditions) -> str:
        """Return the instruction of one episode; by default that of the task, the same for every episode.

        The loop asks after `reset`. An environment that learns it only there returns ``task_description`` before.

        Args:
            conditions: The conditions that the episode starts from.
        """
        del conditions
        return self.task_description

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named env slots and leave all others untouched.

        Args:
            env_ids: Env slots to start, ascending. Shape: (n,), int64.
            conditions: The conditions that each of them starts from, in the same order.

        Returns:
            The observation of all env slots.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot by one control step.

        Args:
            action: Shape: (num_envs, action_dim). Values in env slots that are not running are ignored.
        """

    def provenance(self) -> Mapping[str, str]:
        """Return the identity of the simulated world, for recordings: model hash, engine version."""
        return {}

    def close(self) -> None:
        """Release the environment's resources. May be called more than once."""

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far, within any of its methods [s]."""
        return 0.0

    # Attributes that policies written for Isaac Lab Arena or Gymnasium read.

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
        """Space of one env slot's action. Shape: (action_dim,)."""
        return _box(self.action_spec)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """Space of the batch of actions. Shape: (num_envs, action_dim)."""
        single = self.single_action_space
        shape = (self.num_envs, *single.shape)
        return gymnasium.spaces.Box(
            low=np.broadcast_to(single.low, shape), high=np.broadcast_to(single.high, shape), dtype=np.float32
        )


class _Passed:
    """An attribute of a wrapper that returns the attribute of the wrapped environment."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.real, self._name)


@cache
def _passing_on(wrapper: type, names: frozenset[str]) -> Any:
    """Return a class of wrappers that adds the environment's attributes to the wrapper's own."""
    passed = type("Passed", (), {name: _Passed(name) for name in names})
    return type(wrapper)(wrapper.__name__, (wrapper, passed), {"__module__": wrapper.__module__})


class EnvironmentWrapper(Environment):
    """A wrapper of another environment; a subclass changes some of its answers.

    The wrapper has the other environment's attributes outside of the contract too: a policy may use them, and they may
    be methods of a protocol. A subclass sets those to None that it does not pass on. One that closes the other
    environment says so.

    Args:
        real: The wrapped environment.
    """

    def __init__(self, real: Environment) -> None:
        self.real = real
        self.num_envs, self.device, self.reproducible = real.num_envs, real.device, real.reproducible
        self.observation_spec, self.action_spec = real.observation_spec, real.action_spec
        self.task_description, self.max_episode_length = real.task_description, real.max_episode_length
        self.control_dt, self.hold_action = real.control_dt, real.hold_action
        # Since Python 3.12 `isinstance` of a protocol looks at the class alone, so this one's has all attributes.
        self.__class__ = _passing_on(type(self), frozenset(name for name in dir(real) if not name.startswith("_")))

    def __getattr__(self, name: str) -> Any:
        if name == "real":  # which a copy has not yet while it is made
            raise AttributeError(name)
        return getattr(self.real, name)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """See `Environment.draw_conditions`."""
        return self.real.draw_conditions(generator)

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """See `Environment.vary_conditions`."""
        return self.real.vary_conditions(conditions, episode)

    def instruction(self, conditions: Conditions) -> str:
        """See `Environment.instruction`."""
        return self.real.instruction(conditions)

    def provenance(self) -> Mapping[str, str]:
        """See `Environment.provenance`."""
        return self.real.provenance()

    @property
    def render_s(self) -> float:
        """See `Environment.render_s`."""
        return self.real.render_s


@runtime_checkable
class TriesSteps(Protocol):
    """An environment on a GPU that can begin a step before it is known if its contacts have room.

    The caller of `try_step` has to read ``Step.made``, and can read it together with the rest of the step. To wait for
    the GPU twice would take longer.
    """

    def try_step(self, action: torch.Tensor) -> Step:
        """Make a step as `Environment.step` does, or none: then ``made`` is False in every env slot, and nothing moved.

        Args:
            action: Shape: (num_envs, action_dim).
        """
        ...

    def step_again(self) -> Step:
        """Make the step that `try_step` did not make, with the same action; this one is made in any case."""
        ...


@runtime_checkable
class BeginsSteps(Protocol):
    """An environment that may have its steps made by other processes, while this one does something else.

    Between `begin_step` and `finish_step` nothing but `unanswered` is asked of it.
    """

    @property
    def steps_elsewhere(self) -> bool:
        """Whether other processes make its steps; if not, nothing is gained by beginning them early."""
        ...

    @property
    def unanswered(self) -> Sequence[int]:
        """Descriptors, each of which can be read once its part of the step is made; none if all of it is."""
        ...

    def begin_step(self, action: torch.Tensor) -> None:
        """Begin the step that `Environment.step` would make. Shape of ``action``: (num_envs, action_dim)."""
        ...

    def finish_step(self) -> Step:
        """Wait for the step that was begun, and return it."""
        ...


@runtime_checkable
class BeginsResets(Protocol):
    """An environment that may have episodes started by other processes, while its other env slots make steps.

    Env slots whose reset was begun rest until it is finished.
    """

    @property
    def steps_while_starting(self) -> int:
        """Control steps that other env slots make before a reset is waited for; 0 where nothing is gained by it."""
        ...

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Begin a reset; see `Environment.reset` for the arguments."""
        ...

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        """Wait for resets that were begun, and return the observation of all env slots.

        Args:
            env_ids: Env slots, ascending; others may go on starting.
        """
        ...


@runtime_checkable
class StepsAhead(Protocol):
    """An environment that may make steps before they are asked for, if it gets their actions.

    The observation of each step is the same. The actions must be given as they were planned, until the episode ends.
    """

    @property
    def makes_steps_ahead(self) -> bool:
        """Whether it does; if not, it needs no plans."""
        ...

    def unplanned(self) -> Sequence[int]:
        """Return the running env slots whose next step is not made yet; plans of others are of no use."""
        ...

    def plan_steps(self, planned: Mapping[int, torch.Tensor]) -> None:
        """Take, before a step, the actions that follow the one of that step in env slots of `unplanned`.

        Args:
            planned: Env slot to actions. Shape of each: (n, action_dim).
        """
        ...


@runtime_checkable
class JudgesStarts(Protocol):
    """An environment that can tell, before anything was done, whether a task is solved already."""

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        """Return True for each of these env slots, which were just reset, whose goal is met, in the same order."""
        ...


@runtime_checkable
class TellsBadStarts(Protocol):
    """An environment that can tell that a reset failed, so that no episode can begin with it."""

    def start_errors(self, env_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the reason that prevents an episode, by env slot that was just reset; none if an episode can begin.

        Args:
            env_ids: The env slots.
        """
        ...


@runtime_checkable
class TellsEvents(Protocol):
    """An environment that tells the events of its episodes; others leave that part of the results empty.

    It keeps its notes from `begin_events` on, so a caller that does not ask pays nothing.
    """

    def begin_events(self, env_ids: Sequence[int]) -> None:
        """Begin to keep the events of env slots that were just reset."""
        ...

    def episode_events(self, env_ids: Sequence[int], solved: Sequence[bool]) -> Sequence[EpisodeEvents | None]:
        """Return the events of episodes that have just ended, before their env slots are reset; None if unknown.

        Args:
            env_ids: Their env slots.
            solved: Whether each of them succeeded, in the same order.
        """
        ...


def _box(spec: ArraySpec) -> gymnasium.spaces.Box:
    low = -np.inf if spec.low is None else np.asarray(spec.low, np.float32).reshape(spec.shape)
    high = np.inf if spec.high is None else np.asarray(spec.high, np.float32).reshape(spec.shape)
    return gymnasium.spaces.Box(low=low, high=high, shape=spec.shape, dtype=np.float32)


# The protocols of environments whose state can be recorded, and of those that start a recorded episode again.


@runtime_checkable
class Recordable(Protocol):
    """An environment that shows the state of its simulator; recordings of others hold no states."""

    def state(self) -> StateTree:
        """Return the simulator's state in Isaac Lab's layout, copied.

        ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
        ``rigid_object/<name>/{root_pose,root_velocity}``; poses are (num_envs, 7), position [m] then quaternion
        w x y z.
        """
        ...


@runtime_checkable
class PartwiseRecordable(Recordable, Protocol):
    """A recordable environment that lets a recorder copy a few tensors per step, and make states once per episode."""

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return the parts of `state`: views of the simulation's memory, the same ones at every call.

        The next `step` or `reset` changes their values.

        Returns:
            All of one type. Shape of each: (num_envs, n).
        """
        ...

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return `state` at the moment of copies of `state_parts`, in arrays, to the last bit.

        Args:
            parts: The parts side by side, of any env slots and moments. Shape: (n, width).

        Returns:
            The tree of `state`; it may share memory with ``parts``. Shape of each: (n, ...).
        """
        ...


@runtime_checkable
class Restorable(Protocol):
    """An environment that starts a recorded episode again bit for bit, and not only from its conditions."""

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        """Return the arrays that restore each env slot bit for bit; recorded once, at the start of their episodes.

        Args:
            env_ids: The env slots.
        """
        ...

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again in the named env slots.

        Args:
            env_ids: Env slots to start, ascending. Shape: (n,), int64.
            conditions: The conditions that each of them started from, in the same order.
            states: The arrays of `episode_states` for each; empty if they were not recorded.

        Returns:
            The observation of all env slots.
        """
        ...


def episode_states_of(environment: Environment, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
    """Return the arrays that restore each env slot bit for bit, empty if the environment is not `Restorable`."""
    return environment.episode_states(env_ids) if isinstance(environment, Restorable) else [{}] * len(env_ids)


# The protocol of environments whose whole state a training keeps, to go on as if it had not stopped.


@runtime_checkable
class Snapshottable(Protocol):
    """An environment that can return to an earlier state; a training in others begins new episodes when it resumes."""

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return everything that the future of all env slots depends on, copied; None if its options forbid it."""
        ...

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Return every env slot to its state in a `snapshot` of this or of an equal environment.

        Returns:
            The observation of all env slots, bit for bit the last one before the snapshot.
        """
        ...
