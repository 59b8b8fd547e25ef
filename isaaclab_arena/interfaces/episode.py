"""An episode: its random streams, its data before, while and after it runs, its conditions, and sets of episodes."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from isaaclab_arena.config.schema import MAX_SEED
from isaaclab_arena.errors import ArenaError

# Random streams that belong to an episode, never to a process.
#
# A stream is a function of ``(seed, use, episode_index)`` alone. Rank, world size, number of environments and the order
# in which episodes finish cannot reach it, so the conditions of an episode are the same wherever and whenever it runs.
# Streams are numpy ``SeedSequence`` objects with a spawn key, which needs no counter.

_BLOCK_SIZE = 256
"""Episodes whose streams are seeded together: numpy's own seed sequence takes ten times as long, one by one."""

_POOL_SIZE = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
"""Of numpy's seed sequence, which numpy promises never to change."""


class Stream(IntEnum):
    """The use of a stream. Values are part of every recorded seed: never renumber them."""

    CONDITIONS = 0
    POLICY = 1
    NOISE = 2
    VARIATION = 3
    LATENCY = 4


def episode_seed_sequence(
    seed: int, stream: Stream, episode_index: int, part: str | None = None
) -> np.random.SeedSequence:
    """Return the seed sequence of one use of one episode; `part` names one of several independent streams of it."""
    # The seed is 0 to 2**63 - 1, and the episode's index counts from 0 in its job.
    key = (int(stream), episode_index)
    if part is not None:
        key = (*key, zlib.crc32(part.encode("utf-8")))
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def episode_generator(seed: int, stream: Stream, episode_index: int, part: str | None = None) -> np.random.Generator:
    """Return a fresh generator at the start of one episode's stream; see `episode_seed_sequence`."""
    if not 0 <= episode_index <= MAX_SEED:
        raise ValueError(f"an episode's index must be 0 to 2**63 - 1, got {episode_index}")
    block, position = divmod(episode_index, _BLOCK_SIZE)
    words = _words_of_block(seed, stream, block, part)[position]
    sequence: Any = _WithKnownWords(words, (seed, stream, episode_index, part))
    return np.random.Generator(np.random.PCG64(sequence))


@dataclass(eq=False)
class _WithKnownWords(ISpawnableSeedSequence):
    """The seed sequence of an episode, with the PCG64's seed words known: shape (4,), uint64."""

    words: np.ndarray
    arguments: tuple[int, Stream, int, str | None]

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return episode_seed_sequence(*self.arguments)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Return words as numpy's seed sequence does. Shape: (n_words,)."""
        if n_words == len(self.words) and dtype == self.words.dtype:
            return self.words
        return self._sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Return new seed sequences as numpy's does."""
        return self._sequence.spawn(n_children)


@lru_cache(maxsize=64)
def _words_of_block(seed: int, stream: Stream, block: int, part: str | None) -> np.ndarray:
    """Return a block's PCG64 seed words, equal to `episode_seed_sequence`'s. Shape: (_BLOCK_SIZE, 4), uint64."""
    first = block * _BLOCK_SIZE
    # numpy mixes the common part of all episodes: four words or more of the seed, and one of the stream.
    pool = np.tile(np.random.SeedSequence(entropy=seed, spawn_key=(int(stream),)).pool, (_BLOCK_SIZE, 1))
    num_mixed = max(_POOL_SIZE, -(-seed.bit_length() // 32)) + 1
    key = [np.arange(_BLOCK_SIZE) + first % 2**32, *([first >> 32] if first >> 32 else [])]
    for word in key if part is None else [*key, zlib.crc32(part.encode("utf-8"))]:
        # Each word is hashed once for each place of the pool, with another factor every time.
        factors = _powers(_INIT_A, _MULT_A, _POOL_SIZE * num_mixed, _POOL_SIZE + 1)
        words = np.broadcast_to(np.asarray(word, np.uint32), _BLOCK_SIZE)[:, None]
        pool = _folded(_MIX_LEFT * pool - _MIX_RIGHT * _folded((words ^ factors[:-1]) * factors[1:]))
        num_mixed += 1
    factors = _powers(_INIT_B, _MULT_B, 0, 2 * _POOL_SIZE + 1)
    halves = _folded((np.tile(pool, 2) ^ factors[:-1]) * factors[1:]).astype(np.uint64)
    known = halves[:, ::2] | halves[:, 1::2] << np.uint64(32)
    known.flags.writeable = False
    return known


def _powers(start: int, factor: int, first: int, count: int) -> np.ndarray:
    """Return ``start`` times consecutive powers of ``factor``, modulo 2**32. Shape: (count,), uint32."""
    return np.array([start * pow(factor, first + each, 2**32) % 2**32 for each in range(count)], np.uint32)


def _folded(words: np.ndarray) -> np.ndarray:
    return words ^ words >> np.uint32(16)


def episode_seed(seed: int, stream: Stream, episode_index: int) -> int:
    """Return one 63-bit integer for the stream, for libraries that want a number; 32 bits would collide."""
    # Among 100,000 episodes, 32 bits would collide.
    high, low = episode_seed_sequence(seed, stream, episode_index).generate_state(2, np.uint32)
    return (int(high) << 32 | int(low)) & MAX_SEED


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
        return episode_generator(self.world_seed, Stream.CONDITIONS, self.episode_index)

    def variation_generator(self, variation: str) -> np.random.Generator:
        """Return a fresh generator for one variation, by its key; each has its own, so none shifts the others."""
        return episode_generator(self.world_seed, Stream.VARIATION, self.episode_index, variation)

    @property
    def noise_seed(self) -> int:
        """The seed of the noise that the environment adds during the episode, 0 to 2**63 - 1."""
        return episode_seed(self.world_seed, Stream.NOISE, self.episode_index)

    def policy_generator(self) -> np.random.Generator:
        """Return a fresh generator for the policy's own noise in this episode."""
        return episode_generator(self.seed, Stream.POLICY, self.episode_index)

    def latency_generator(self) -> np.random.Generator:
        """Return a fresh generator for the delays of answers to a policy's queries, the same for every policy."""
        return episode_generator(self.world_seed, Stream.LATENCY, self.episode_index)

    @property
    def episode_seed(self) -> int:
        """One integer that stands for the episode's conditions, 0 to 2**63 - 1."""
        return episode_seed(self.world_seed, Stream.CONDITIONS, self.episode_index)

    @property
    def world_seed(self) -> int:
        """The seed of everything in the episode but the policy's own noise."""
        return self.seed if self.conditions_seed is None else self.conditions_seed


SETBACKS: Mapping[str, str] = {
    "wrong_object": "the hand held or approached another object",
    "wrong_order": "a later part was done before an earlier one",
    "fell_off_table": "an object left the table",
    "lifted": "an object to push was lifted",
    "dropped": "a held object or handle was let go too early",
    "pushed_away": "an object moved away while it was not held",
    "reached_and_missed": "the hand came to the object and left without a grasp, pull or push",
    "success_undone": "the goal was met, but lost too early",
    "stuck": "the hand stood still although a joint was commanded elsewhere or was at its limit",
    "fell_over": "the robot, or the pole, fell over",
    "left_the_rail": "the cart left its rail",
    "strayed": "the robot left its command or its motion",
}
"""Events that throw an episode back, with their meanings. Of those in the same control step the first decides."""

SHORTFALLS: Mapping[str, str] = {
    "never_moved": "the robot hardly left its start",
    "never_reached": "the hand never came to the object or goal",
    "almost": "the goal was met within about twice its tolerances",
    "out_of_time_while_progressing": "the time limit came while progress still grew",
    "stalled": "the time limit came, and no other event decided",
}
"""Events that tell the progress of a failure, with their meanings."""

EVENTS: Mapping[str, str] = {**SETBACKS, **SHORTFALLS}
"""Every event that an episode may have that is no error; ``docs/reference/events.md`` has the exact rules."""


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


def draw_around(generator: np.random.Generator, centre: Sequence[float], most: float) -> tuple[float, ...]:
    """Draw a point of a box around a centre, ``most`` away from it along each axis."""
    offset = draw_uniform(generator, (-most,) * len(centre), (most,) * len(centre))
    return tuple(middle + shift for middle, shift in zip(centre, offset, strict=True))


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


# Sets of episodes as ascending half-open ranges: 0 to 39 and 41 as ``((0, 40), (41, 42))``. Pure functions.

EpisodeRanges: TypeAlias = tuple[tuple[int, int], ...]


def as_ranges(indices: Iterable[int]) -> EpisodeRanges:
    """Return indices, in any order, as ranges: 0, 1, 2, 5 as ``((0, 3), (5, 6))``."""
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return tuple((begin, end) for begin, end in ranges)


def in_words(indices: Iterable[int], name: Callable[[int], str] = str) -> str:
    """Return indices, in any order, as text for people: ``0 to 4, 7``."""
    return ", ".join(
        name(begin) if end == begin + 1 else f"{name(begin)} to {name(end - 1)}" for begin, end in as_ranges(indices)
    )


def of_ranges(ranges: EpisodeRanges) -> frozenset[int]:
    """Return the indices within ranges."""
    return frozenset(index for begin, end in ranges for index in range(begin, end))


def contain(ranges: EpisodeRanges, index: int) -> bool:
    """True if an index lies in one of the ranges."""
    return any(begin <= index < end for begin, end in ranges)


def count_episodes(ranges: EpisodeRanges) -> int:
    """Return the number of episodes within ranges."""
    return sum(end - begin for begin, end in ranges)


def remaining_episodes(num_episodes: int, finished: EpisodeRanges) -> EpisodeRanges:
    """Return the episodes below ``num_episodes`` that are not finished."""
    remaining, begin = [], 0
    for finished_begin, finished_end in (*finished, (num_episodes, num_episodes)):
        end = min(finished_begin, num_episodes)
        if begin < end:
            remaining.append((begin, end))
        begin = max(begin, finished_end)
    return tuple(remaining)


def cut(ranges: EpisodeRanges, sizes: Sequence[int]) -> list[EpisodeRanges]:
    """Cut ranges into consecutive parts of the given sizes; ValueError if the sums differ."""
    if sum(sizes) != count_episodes(ranges):
        raise ValueError(f"parts of {sum(sizes)} episodes cannot be cut from {count_episodes(ranges)}")
    parts, left = [], list(reversed(ranges))
    for size in sizes:
        part: list[tuple[int, int]] = []
        wanted = size
        while wanted > 0:
            begin, end = left.pop()
            middle = min(begin + wanted, end)
            part.append((begin, middle))
            wanted -= middle - begin
            if middle < end:
                left.append((middle, end))
        parts.append(tuple(part))
    return parts


def cut_evenly(episodes: EpisodeRanges, num_parts: int) -> list[EpisodeRanges]:
    """Cut episodes into consecutive parts, the larger first. Their sizes differ by at most one."""
    size, longer = divmod(count_episodes(episodes), num_parts)
    return cut(episodes, [size + 1] * longer + [size] * (num_parts - longer))


def split_evenly(num_episodes: int, num_parts: int) -> list[range]:
    """Split episodes into consecutive ranges, the first ones longer by one; ArenaError for too many parts."""
    if num_parts > num_episodes:
        raise ArenaError(f"cannot split {num_episodes} episodes over {num_parts} rebuilds")
    return [range(begin, end) for ((begin, end),) in cut_evenly(((0, num_episodes),), num_parts)]
