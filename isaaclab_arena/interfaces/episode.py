"""The data of an episode: before it runs, while it runs, and when it has ended; and its conditions as numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np

from isaaclab_arena.seeding import Stream, episode_generator, episode_seed

# Define the data of an episode: before it runs, while it runs, and when it has ended.

ConditionValue: TypeAlias = float | int | str | tuple[float, ...]
Conditions: TypeAlias = Mapping[str, ConditionValue]
"""The start of an episode: ``"<asset>.<what>"`` to a plain value, so that it fits into JSON and into a table."""


SEED_CONDITION = "gym.seed"
"""The condition from which an environment made elsewhere draws everything else; it comes before any others."""


def conditions_from_json(values: Mapping[str, Any]) -> Conditions:
    """Return the conditions of a JSON file as environments take them: with tuples instead of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


class Outcome(StrEnum):
    """How an episode ended. ``ERROR`` is neither the policy's success nor its failure."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The identity of an episode, and the streams that follow from it.

    Attributes:
        job: Name of the job.
        episode_index: Position in the job, from 0.
        seed: Seed of the job.
        conditions_seed: Seed of the initial conditions if it differs from ``seed`` (Arena's ``placement_seed``).
        saved_conditions: Conditions that were saved earlier, instead of those that its streams would give.
        start_state: A recorded state to start from, as `Environment.episode_states` returned it; None to start from the
            conditions alone.
    """

    job: str
    episode_index: int
    seed: int
    conditions_seed: int | None = None
    saved_conditions: Conditions | None = field(default=None, hash=False, repr=False)
    start_state: Mapping[str, np.ndarray] | None = field(default=None, compare=False, repr=False)

    def conditions_generator(self) -> np.random.Generator:
        """Return a fresh generator for the episode's initial conditions."""
        return episode_generator(self._world_seed, Stream.CONDITIONS, self.episode_index)

    def variation_generator(self, variation: str) -> np.random.Generator:
        """Return a fresh generator for one variation, by its key; each has its own, so none shifts the others."""
        return episode_generator(self._world_seed, Stream.VARIATION, self.episode_index, variation)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise that the environment adds during the episode, 0 to 2**63 - 1."""
        return episode_seed(self._world_seed, Stream.NOISE, self.episode_index)

    def policy_generator(self) -> np.random.Generator:
        """Return a fresh generator for the policy's own noise in this episode."""
        return episode_generator(self.seed, Stream.POLICY, self.episode_index)

    def latency_generator(self) -> np.random.Generator:
        """Return a fresh generator for the delays of answers to a policy's queries, the same for every policy."""
        return episode_generator(self._world_seed, Stream.LATENCY, self.episode_index)

    @property
    def episode_seed(self) -> int:
        """One integer that stands for the episode's conditions, 0 to 2**63 - 1."""
        return episode_seed(self._world_seed, Stream.CONDITIONS, self.episode_index)

    @property
    def _world_seed(self) -> int:
        return self.seed if self.conditions_seed is None else self.conditions_seed


SETBACKS = (
    "wrong_object",
    "wrong_order",
    "fell_off_table",
    "lifted",
    "dropped",
    "pushed_away",
    "reached_and_missed",
    "success_undone",
    "stuck",
    "fell_over",
    "left_the_rail",
    "strayed",
)
"""Events that throw an episode back. Of those that begin in the same control step the first decides."""

SHORTFALLS = ("never_moved", "never_reached", "almost", "out_of_time_while_progressing", "stalled")
"""Events that tell the progress of a failure."""

EVENTS = (*SETBACKS, *SHORTFALLS)
"""Every event that an episode may have that is no error; ``docs/reference/events.md`` explains each."""


@dataclass(frozen=True, kw_only=True)
class EpisodeEvents:
    """The events of an episode, from the states that the simulation went through.

    Attributes:
        progress: The greatest progress of the task, 0 to 1; 1 exactly if it was solved.
        decisive: The event that explains the failure; None for a success, and if no event explains it.
        seen: Event to the control step in which it first happened, counted from 1 with the start itself as 0, and its
            number of times.
    """

    progress: float
    decisive: str | None
    seen: Mapping[str, tuple[int, int]]


POLICY_LOST = "policy_lost"
"""Termination of an episode whose policy no longer answered."""

SOLVED_AT_START = "solved_at_start"
"""Termination of an episode whose goal was met before the first action."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of an episode beside its return, declared once; tables, page, services and comparisons then show it.

    Attributes:
        name: Its name among the episode's metrics, such as ``final_height_m``.
        unit: Its unit, such as ``m``; empty for a number without one.
        better: The direction of progress, None if there is none.
        summary: The summaries over episodes. The mean comes with its 95 % interval.

    Raises:
        ValueError: If there is no such direction or summary, or the name is empty.
    """

    name: str
    unit: str = ""
    better: Literal["higher", "lower"] | None = None
    summary: tuple[Literal["mean", "sd", "min", "median", "max"], ...] = ("mean", "sd")

    def __post_init__(self) -> None:
        unknown = {*self.summary} - {"mean", "sd", "min", "median", "max"}
        if not self.name or self.better not in (None, "higher", "lower") or unknown:
            raise ValueError(f"no metric: {self}")


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """A finished episode.

    Attributes:
        episode: The identity of the episode.
        env_id: Env slot in which it ran.
        outcome: The outcome; None if it ended without a time-out and success is not measured.
        success: Whether the task was solved; None if success is not measured or the episode is an error.
        length: Number of control steps.
        episode_return: Sum of the rewards.
        termination: The reason of its end: ``terminated``, ``time_limit``, ``policy_finished``, ``diverged``,
            ``episode_timeout``, ``solved_at_start``, ``bad_start``, ``policy_lost``, ``ranks_lost``.
        conditions: The conditions that it started from.
        language_instruction: The instruction for the policy.
        metrics: Further scalars that the environment reports, for example ``final_distance_m``.
        error: The error, for outcome ``error``.
        events: Its events, None for an error and if the environment does not tell them.
        saturated_action_share: Share of the entries of its actions that lay at or beyond their bounds before anything
            clipped them; None if actions have no bounds, and if it made no step.
    """

    episode: Episode
    env_id: int
    outcome: Outcome | None
    success: bool | None
    length: int
    episode_return: float
    termination: str
    conditions: Conditions
    language_instruction: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    events: EpisodeEvents | None = None
    saturated_action_share: float | None = None


# Drawing and reading the conditions of an episode: points, numbers and upright poses.


def draw_uniform(generator: np.random.Generator, low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...]:
    """Draw a point of a box, as plain numbers that fit into JSON."""
    # The same numbers as generator.uniform(low, high), in a quarter of the time.
    shares = generator.random(len(low)).tolist()
    return tuple(least + (most - least) * share for least, most, share in zip(low, high, shares, strict=True))


def upright_pose(position: ConditionValue, yaw: ConditionValue) -> tuple[float, ...]:
    """Return position and quaternion of an upright thing at ``position`` [m], turned by ``yaw`` [rad]."""
    half = number(yaw) / 2
    return (*point(position), math.cos(half), 0.0, 0.0, math.sin(half))


def point(value: ConditionValue) -> tuple[float, ...]:
    """Convert a condition to a point; TypeError for no sequence of numbers. JSON turns points into lists."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"a condition must be a sequence of numbers, got {value!r}")
    return tuple(map(float, value))


def number(value: ConditionValue) -> float:
    """Convert a condition to a number; TypeError for any other value."""
    if not isinstance(value, int | float):
        raise TypeError(f"a condition must be a number, got {value!r}")
    return float(value)
