"""The data of an episode: before it runs, while it runs, and when it has ended; and its conditions as numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from isaaclab_arena.seeding import Stream, episode_generator, episode_seed

# Define the data of an episode: before it runs, while it runs, and when it has ended.

ConditionValue: TypeAlias = float | int | str | tuple[float, ...]
Conditions: TypeAlias = Mapping[str, ConditionValue]
"""What an episode starts from: ``"<asset>.<what>"`` to a plain value, so that it fits into JSON and into a table."""


SEED_CONDITION = "gym.seed"
"""The condition from which an environment made elsewhere draws everything else; it stands before any others."""


def conditions_from_json(values: Mapping[str, Any]) -> Conditions:
    """Return conditions as environments take them, from what a JSON file holds: it has lists where they have tuples."""
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
        conditions_seed: Seed of the initial conditions where it differs from ``seed`` (Arena's ``placement_seed``).
        saved_conditions: What it starts from where that was saved earlier, instead of what its streams would give.
        start_state: A recorded state to start from, as `Restorable.episode_states` returned it; None to start from the
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
        seed = self.seed if self.conditions_seed is None else self.conditions_seed
        return episode_generator(seed, Stream.CONDITIONS, self.episode_index)

    def variation_generator(self, variation: str) -> np.random.Generator:
        """Return a fresh generator for one variation; each has a stream of its own, so none shifts the others.

        Args:
            variation: Its key, ``<asset>.<name>``.
        """
        seed = self.seed if self.conditions_seed is None else self.conditions_seed
        return episode_generator(seed, Stream.VARIATION, self.episode_index, variation)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise that the environment adds during the episode, 0 to 2**63 - 1."""
        seed = self.seed if self.conditions_seed is None else self.conditions_seed
        return episode_seed(seed, Stream.NOISE, self.episode_index)

    def policy_generator(self) -> np.random.Generator:
        """Return a fresh generator for the policy's own noise in this episode."""
        return episode_generator(self.seed, Stream.POLICY, self.episode_index)

    def latency_generator(self) -> np.random.Generator:
        """Return a fresh generator for how late the answers to a policy's queries are, the same for every policy."""
        seed = self.seed if self.conditions_seed is None else self.conditions_seed
        return episode_generator(seed, Stream.LATENCY, self.episode_index)

    @property
    def episode_seed(self) -> int:
        """One integer that stands for the episode's conditions, 0 to 2**63 - 1."""
        seed = self.seed if self.conditions_seed is None else self.conditions_seed
        return episode_seed(seed, Stream.CONDITIONS, self.episode_index)


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
"""Events that say how far a failure came."""

EVENTS = (*SETBACKS, *SHORTFALLS)
"""Every event that an episode may have that is no error; ``docs/reference/events.md`` says what each means."""


@dataclass(frozen=True, kw_only=True)
class EpisodeEvents:
    """What happened in an episode, read from the states that the simulation went through.

    Attributes:
        progress: How far the task had come at most, 0 to 1; 1 exactly where it was solved.
        decisive: The event that the failure is put down to; None for a success, and where no event explains it.
        seen: Event to the control step in which it first happened, counted from 1, and how often it happened; the
            start itself is 0.
    """

    progress: float
    decisive: str | None
    seen: Mapping[str, tuple[int, int]]


POLICY_LOST = "policy_lost"
"""Termination of an episode whose policy answered no more."""

SOLVED_AT_START = "solved_at_start"
"""Termination of an episode whose goal was met before its policy had done anything."""


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """A finished episode.

    Attributes:
        episode: Which episode it was.
        env_id: Env slot in which it ran.
        outcome: How it ended; None where it ended without a time-out and success is not measured.
        success: Whether the task was solved; None where success is not measured or the episode is an error.
        length: Number of control steps.
        episode_return: Sum of the rewards.
        termination: Why it ended: ``terminated``, ``time_limit``, ``policy_finished``, ``diverged``,
            ``episode_timeout``, ``solved_at_start``, ``bad_start``, ``policy_lost``, ``ranks_lost``.
        conditions: What it started from.
        language_instruction: What the policy was told.
        metrics: Further scalars that the environment reports, for example ``final_distance_m``.
        error: What went wrong, for outcome ``error``.
        events: What happened in it, None for an error and where the environment does not tell.
        saturated_action_share: Share of the entries of its actions that lay at or beyond their bounds before anything
            clipped them; None where actions have no bounds, and where it made no step.
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
