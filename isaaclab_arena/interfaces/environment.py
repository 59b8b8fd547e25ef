"""The contract of an environment: env slots that the loop starts, steps and starts again, itself or elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeEvents, Metric
from isaaclab_arena.interfaces.offers import set_aside
from isaaclab_arena.interfaces.specs import ArraySpec, HoldAction, Observation, ObservationSpec, StateTree

if TYPE_CHECKING:
    import gymnasium


_LOST_WITHOUT = {
    "step_again": ("try_step",),
    "begin_events": ("episode_events",),
    "episode_events": ("begin_events",),
    "state": ("state_parts",),
    "state_of": ("state_parts",),
    "episode_states": ("restore",),
    "restore": ("episode_states",),
    "restore_snapshot": ("snapshot",),
    "draw_pictures_of": ("pictures_drawn",),
    "pictures_drawn": ("draw_pictures_of",),
    "film": ("film_later", "filmable"),
}
"""Offers to those that mean nothing without them."""


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
        made: Env slots that made the step, None for all that run; see `Environment.try_step`. Shape: (num_envs,), bool.
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

    The attributes without a value, ``draw_conditions``, ``reset`` and ``step`` are all that an environment must have.
    Everything else is an offer, and its default says that the environment does not make it. A class that sets an offer
    of its base to None withdraws it, and what means nothing without it.

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
        filmable: Names of the cameras that `film` knows: those of ``camera_obs`` that show colours, and ``viewport``.
        filming_hint: The way to more cameras, at the end of a message.
        films_only_drawn: Whether `film` knows no picture of ``camera_obs`` but those drawn for the last step; then
            those of the env slots that are filmed are drawn for every step.
        pictures_drawn: Pictures drawn so far, one for each env slot and term of ``camera_obs``, if only those of
            `draw_pictures_of` are drawn; None if all are.
        metrics: The declared ones among ``Step.metrics``, which tables, page and services then show.
        background: The work that other processes do, as a property of the class; None if there is none.
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
    metrics: tuple[Metric, ...] = ()
    filmable: tuple[str, ...] = ()
    filming_hint: str = ""
    films_only_drawn: bool = False
    pictures_drawn: int | None = None
    background: Any = None  # `Background` or None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        defaults = vars(Environment)
        # An attribute that is set to None gets the default back: it is not offered.
        for name in [name for name, value in vars(cls).items() if value is None and not name.startswith("_")]:
            for lost in (name, *_LOST_WITHOUT.get(name, ())):
                if vars(cls).get(lost) is None and defaults.get(lost, True) is not True:
                    setattr(cls, lost, defaults[lost])
        # A class with a step or a reset of its own must not be bypassed by a quicker way of a class above it.
        for whole, quicker in (("step", "try_step"), ("step", "background"), ("reset", "background")):
            set_aside(cls, whole, quicker, defaults[quicker])

    @abstractmethod
    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the conditions that one episode starts from; nothing but its own generator may influence the draw."""

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return drawn conditions with the variations of an episode, which follow from its own streams alone."""
        return conditions

    def instruction(self, conditions: Conditions) -> str:
        """Return the instruction of an episode that starts from these conditions; by default that of the task.

        The loop asks after `reset`. An environment that learns it only there returns ``task_description`` before.
        """
        return self.task_description

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the named env slots, leave all others untouched, and return all slots' observation.

        Args:
            env_ids: Env slots to start, ascending. Shape: (n,), int64.
            conditions: The conditions that each of them starts from, in the same order.
        """

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Advance every running env slot by one control step.

        Args:
            action: Shape: (num_envs, action_dim). Values in env slots that are not running are ignored.
        """

    # Quicker ways to step and reset, each set aside below a class that overrides `step` or `reset` itself.

    def try_step(self, action: torch.Tensor) -> Step:
        """Make a step (num_envs, action_dim), or none: then ``Step.made`` is False everywhere, and nothing moved.

        A GPU can so begin a step before it is known if its contacts have room. The caller reads ``made`` together with
        the rest of the step: to wait for the GPU twice would take longer.
        """
        return self.step(action)

    def step_again(self) -> Step:
        """Make the step that `try_step` did not make, with the same action; this one is made in any case."""
        raise TypeError(f"{type(self).__name__} says that it made no step, and cannot make it again")

    # Judgements of starts and ends. All env slots named were just reset, or have just ended their episodes.

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        """Return for each of these env slots whether its goal is met before the first action."""
        return [False] * len(env_ids)

    def start_errors(self, env_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the reason that no episode can begin, by env slot whose reset failed."""
        return {}

    def begin_events(self, env_ids: Sequence[int]) -> None:
        """Begin to keep the events of env slots; without this call nothing is kept."""

    def episode_events(self, env_ids: Sequence[int], solved: Sequence[bool]) -> Sequence[EpisodeEvents | None]:
        """Return the events of each env slot's episode, which succeeded or not; None if unknown."""
        return [None] * len(env_ids)

    # The simulator's state: recorded, started from again, or kept whole by a training that goes on from it.

    def state(self) -> StateTree | None:
        """Return the simulator's state in Isaac Lab's layout, copied; None to have none recorded.

        ``articulation/<name>/{joint_position,joint_velocity,root_pose,root_velocity}`` and
        ``rigid_object/<name>/{root_pose,root_velocity}``; poses are (num_envs, 7), position [m] then quaternion
        w x y z.
        """

    def state_parts(self) -> Sequence[torch.Tensor]:
        """Return views (num_envs, n) of the simulation's memory, the same and of one type at every call.

        They are what `state_of` needs, so that a recorder copies them at each step and makes states once per episode.
        """
        return ()

    def state_of(self, parts: np.ndarray) -> StateTree:
        """Return `state`, as arrays (n, ...), at the moments of copies of `state_parts`, side by side (n, width)."""
        raise NotImplementedError(f"{type(self).__name__} shows no parts of a state, and got {len(parts)}")

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        """Return the arrays that restore each env slot bit for bit; recorded once, at the start of their episodes."""
        return [{}] * len(env_ids)

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Start recorded episodes again, see `reset`: from `episode_states`, each empty if it was not recorded."""
        return self.reset(env_ids, conditions)

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        """Return everything that the future of all env slots depends on, copied; None if there is no way back."""

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        """Return to a `snapshot` of this or an equal environment; the observation is the last one then, bit for bit."""
        raise TypeError(f"{type(self).__name__} takes no snapshots")

    # Pictures of ``camera_obs`` for policies, and films for people.

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """Announce the env slots whose pictures are read after the next `reset`, `restore` or `step`; None for all.

        That call alone draws them, unless they were drawn and have not moved since; without an announcement it draws
        all. A picture that is left out at the end of an episode may be black instead. If other env slots have no
        picture of the present, the terms of ``camera_obs`` hold those of some env slots alone instead of tensors.
        """

    def load_renderer(self) -> None:
        """Load what takes seconds before the first picture; nothing else changes by it."""

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return by camera the present pictures (len(env_ids), height, width, 3), uint8, and change nothing else.

        Raises:
            KeyError: If a camera is not in ``filmable``.
        """
        raise KeyError(f"no camera {', '.join(cameras)}: this environment cannot be filmed")

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> Sequence[Callable[[], Mapping[str, np.ndarray]]]:
        """Return for each env slot a function that draws what `film` would show now, each (height, width, 3), uint8.

        It may be called on any thread, also after the environment is closed. By default all is drawn at once.
        """
        shown = {camera: np.array(pictures) for camera, pictures in self.film(env_ids, cameras).items()}
        each = [{camera: pictures[number] for camera, pictures in shown.items()} for number in range(len(env_ids))]
        return [partial(dict[str, np.ndarray], pictures) for pictures in each]

    # The identity of the environment, and its end.

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
    def single_action_space(self) -> "gymnasium.spaces.Box":
        """Space of one env slot's action. Shape: (action_dim,)."""
        return self.action_spec.space()

    @property
    def action_space(self) -> "gymnasium.spaces.Box":
        """Space of the batch of actions. Shape: (num_envs, action_dim)."""
        return self.action_spec.space(self.num_envs)
