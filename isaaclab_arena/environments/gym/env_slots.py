"""The single environments behind a batch, in this process."""

import logging
import re
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, OwnGenerators, drawing_of, others_kept
from isaaclab_arena.environments.gym.worker.shared_arrays import (
    FIRST_ENTRY,
    REWARD,
    TERMINATED,
    TRUNCATED,
    SharedArrays,
    num_results,
)
from isaaclab_arena.environments.gym.worker.sources import source_of
from isaaclab_arena.environments.gym.worker.versions import versions_of
from isaaclab_arena.workers.worker_process import WorkerOptions

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SlotSource:
    """The recipe for a single environment."""

    kind: str  # key of `worker.sources.SOURCES`
    name: str  # its name in that source
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments for its maker
    max_episode_length: int | None = None  # steps until truncation; None for its own limit
    info_keys: tuple[str, ...] = ()  # wanted entries of info
    instruction_key: str | None = None  # holder of an episode's instruction; see `EnvSlot`
    checks_ranges: bool = True  # numbers beyond their space's bounds are errors
    # Identifies the loaded code if its environments leave no other traces in a process. Workers then also serve the
    # next source with the same code. None if they may leave traces.
    code: str | None = None

    def request(self) -> dict[str, Any]:
        """Return the recipe for a worker, as plain JSON values."""
        told = asdict(self)
        del told["code"]
        return {"source": told.pop("kind"), **told}

    def question(self) -> dict[str, Any]:
        """Return the question for a worker about the environment, as plain JSON values."""
        return {"request": "find", "source": self.kind, "name": self.name, "make_kwargs": dict(self.make_kwargs)}

    def served_by(self, options: WorkerOptions) -> Hashable:
        """Return a key: workers with equal keys can replace each other."""
        return self.kind, self.code, options.interpreter, tuple(sorted(options.environment_variables.items()))


@dataclass(frozen=True, kw_only=True)
class SlotReset:
    """The start of a single environment's episode."""

    seed: int
    # plain JSON values; None for an environment that does not receive the episode
    options: Mapping[str, Any] | None = None


class SlotWords(NamedTuple):
    """The result of a reset besides the observation."""

    instruction: str | None  # None without an instruction_key
    info: Mapping[str, float]  # the wanted numbers that are already there
    error: str | None = None  # mismatch of the observation with its space, None if it fits


@dataclass(kw_only=True)
class PlayedEpisode:
    """The history of an env slot's episode, for replay if its worker dies because of another env slot."""

    reset: SlotReset
    # of each step since the reset, for all env slots of the worker, each (num_slots, action_dim)
    actions: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SlotMoves:
    """A step of some env slots."""

    actions: np.ndarray  # of all env slots, (num_envs, action_dim), float32
    moving: Sequence[int]  # env slots that make the step, ascending
    seen: Container[int] = ()  # env slots whose pictures are wanted
    # env slot -> its next actions, fixed in advance, each (n, action_dim), float32
    planned: Mapping[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SlotSteps:
    """The results of one step; entries of env slots that did not move, or failed, have no meaning."""

    results: np.ndarray  # as in `SharedArrays.results`, (num_envs, num_results), float64
    info_keys: Sequence[str]  # names of the entries of info, in order
    # env slot -> all names in its info, if a key is missing
    info_names: dict[int, Sequence[str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)  # env slot -> its error, in one line

    @property
    def rewards(self) -> np.ndarray:
        """Reward of each env slot. Shape: (num_envs,), float64."""
        return self.results[:, REWARD]

    @property
    def terminated(self) -> np.ndarray:
        """Env slots whose episode terminated. Shape: (num_envs,), bool."""
        return self.results[:, TERMINATED] != 0.0

    @property
    def truncated(self) -> np.ndarray:
        """Env slots whose episode was truncated. Shape: (num_envs,), bool."""
        return self.results[:, TRUNCATED] != 0.0

    def entry(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mask of env slots whose ``info`` has an entry, and its values. Shapes: (num_envs,)."""
        column = FIRST_ENTRY + 2 * self.info_keys.index(key)
        return self.results[:, column] != 0.0, self.results[:, column + 1]


class Failures:
    """Logs failures of the single environments of one source: each traceback once, then its count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._times: Counter[str] = Counter()

    def tell(self, where: str, details: str) -> None:
        """Log a failure at ``where``; a repeated one takes one line, as a warning at each power of ten."""
        before, newline, message = details.rstrip().rpartition("\n")
        # Messages that differ in numbers only count as equal.
        like = before + newline + re.sub(r"\d+", "#", message)
        self._times[like] += 1
        times = self._times[like]
        if times == 1:
            _LOG.warning("'%s' failed in %s: %s", self._name, where, details)
        else:
            level = logging.WARNING if str(times).strip("0") == "1" else logging.DEBUG
            _LOG.log(level, "'%s' failed in %s as before, %d times by now: %s", self._name, where, times, message)


class EnvSlots(ABC):
    """Single environments, each in an env slot of the batch; a failed one is made anew at its next reset."""

    steps_elsewhere = False  # other processes make the steps
    makes_steps_ahead = False  # they also make planned steps before the request
    steps_while_starting = 0  # steps of other env slots before a reset is waited for

    def __init__(self, description: Mapping[str, Any], num_envs: int) -> None:
        self.description, self.num_envs = description, num_envs
        # Last observations without pictures, by term, each (num_envs, *shape), float32. Resets and steps overwrite
        # them.
        self.numbers = {
            name: np.zeros((num_envs, *term["shape"]), np.float32)
            for name, term in description["observation"].items()
            if not term["image"]
        }
        self._pictures = [name for name, term in description["observation"].items() if term["image"]]

    def no_steps(self) -> SlotSteps:
        """Return empty results, for a step that no env slot has made yet."""
        results = np.zeros((self.num_envs, num_results(self.description)))
        return SlotSteps(results=results, info_keys=self.description["info_keys"])

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotWords]:
        """Start episodes; see `begin_reset` and `finish_reset`."""
        self.begin_reset(resets, seen)
        return self.finish_reset(list(resets))

    @abstractmethod
    def begin_reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Begin to start episodes; ``seen`` are the env slots whose pictures are wanted."""

    @abstractmethod
    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Wait for the episodes of env slots to start, and return the results of their resets."""

    def step(self, moves: SlotMoves) -> SlotSteps:
        """Make one step in some env slots."""
        self.begin_step(moves)
        return self.finish_step(moves)

    def begin_step(self, moves: SlotMoves) -> None:
        """Begin a step, if other processes make it."""
        del moves

    def unplanned(self, moving: Iterable[int]) -> Sequence[int]:
        """Return the env slots whose next step is not made ahead, so that a plan for them is of use."""
        del moving
        return ()

    @property
    def unanswered(self) -> Sequence[int]:
        """File descriptors; each becomes readable when a process has made its part of the step."""
        return ()

    @abstractmethod
    def finish_step(self, moves: SlotMoves) -> SlotSteps:
        """Return the results of the step that was begun."""

    @abstractmethod
    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return the last observed pictures of an env slot, by term. They change with its next move."""

    @abstractmethod
    def render(self, index: int) -> np.ndarray:
        """Return an env slot's own picture, if the description has ``renders``. Shape: (height, width, 3), uint8."""

    @abstractmethod
    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return the Meta-World expert's actions; ImportError without Meta-World, LookupError for no such expert."""

    @abstractmethod
    def close(self) -> None:
        """Close all environments. Can be called more than once."""


class LocalSlots(EnvSlots):
    """Environments in this process, one after the other."""

    def __init__(self, source: SlotSource, num_envs: int) -> None:
        self._source = source
        self._failures = Failures(source.name)
        self._slots: dict[int, EnvSlot] = {}
        self._starting: dict[int, tuple[SlotReset, bool]] = {}
        with others_kept():
            for index in range(num_envs):
                self._slots[index] = self._made()
        first = self._slots[0]
        super().__init__({**first.description(), "versions": versions_of(first.environment)}, num_envs)
        self._shown = SharedArrays(-1, self.description, num_envs)

    def begin_reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Store the starts of the episodes; see `EnvSlots.begin_reset`."""
        self._starting.update({index: (reset, index in seen) for index, reset in resets.items()})

    @others_kept()
    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Start episodes; an error in an environment fails the job. See `EnvSlots.finish_reset`."""
        words = {}
        for index in indices:
            reset, pictures = self._starting.pop(index)
            if index not in self._slots:
                self._slots[index] = self._made()
            options = None if reset.options is None else dict(reset.options)
            start = self._slots[index].reset(reset.seed, pictures=pictures, options=options)
            self._shown.put(index, start.observation)
            words[index] = SlotWords(start.instruction, start.info, start.error)
        for name, values in self.numbers.items():
            values[:] = self._shown.arrays[name]
        return words

    @others_kept()
    def finish_step(self, moves: SlotMoves) -> SlotSteps:
        """Make one step in each moving env slot; an error fails only its env slot."""
        steps = self.no_steps()
        for index in moves.moving:
            try:
                step = self._slots[index].step(moves.actions[index], pictures=index in moves.seen)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the other env slots go on
                self._failures.tell(f"env slot {index}", traceback.format_exc())
                # Its state is unknown, so it is not closed either: close would run its code too.
                del self._slots[index]
                steps.failures[index] = f"{type(error).__name__}: {error}"
                continue
            self._shown.put_step(index, step)
            if step.info_names:
                steps.info_names[index] = step.info_names
        steps.results[:] = self._shown.results
        for name, values in self.numbers.items():
            values[:] = self._shown.arrays[name]
        return steps

    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return pictures; see `EnvSlots.pictures`."""
        return {name: self._shown.arrays[name][index] for name in self._pictures}

    @others_kept()
    def render(self, index: int) -> np.ndarray:
        """Return a picture; see `EnvSlots.render`."""
        return self._slots[index].render()

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return actions; see `EnvSlots.expert_actions`."""
        return source_of("metaworld").expert_actions(task, observations)

    def close(self) -> None:
        """Close all of them."""
        while self._slots:
            self._slots.popitem()[1].close()

    def _made(self) -> EnvSlot:
        source = self._source
        make, generators = source_of(source.kind).make, OwnGenerators()
        with generators:
            environment = make(source.name, dict(source.make_kwargs), source.max_episode_length)
        return EnvSlot(
            environment,
            source.info_keys,
            drawing_of(environment),
            source.instruction_key,
            generators,
            checks_ranges=source.checks_ranges,
        )
