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
    MOVE,
    MOVE_AND_LOOK,
    REST,
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
    """How a single environment is made.

    Attributes:
        kind: Key of `worker.sources.SOURCES`.
        name: Its name there.
        make_kwargs: Keyword arguments for its maker.
        max_episode_length: Steps until it is truncated, None for its own limit.
        info_keys: Entries of ``info`` that are wanted.
        instruction_key: What holds the instruction of an episode; see `EnvSlot`.
        checks_ranges: Whether numbers beyond the bounds of their space are errors.
        code: What is loaded for it, where its environments leave nothing else in a process: workers then serve the next
            source of the same code too. None where they may leave anything.
    """

    kind: str
    name: str
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_length: int | None = None
    info_keys: tuple[str, ...] = ()
    instruction_key: str | None = None
    checks_ranges: bool = True
    code: str | None = None

    def request(self) -> dict[str, Any]:
        """Return what a worker is told of it, plain JSON values."""
        told = asdict(self)
        del told["code"]
        return {"source": told.pop("kind"), **told}

    def served_by(self, options: WorkerOptions) -> Hashable:
        """Return what workers must have in common to stand for each other."""
        return self.kind, self.code, options.interpreter, tuple(sorted(options.environment_variables.items()))


@dataclass(frozen=True, kw_only=True)
class SlotReset:
    """What a single environment starts an episode from.

    Attributes:
        seed: Its seed.
        options: Its ``options``, plain JSON values; None for an environment that is not told the episode.
    """

    seed: int
    options: Mapping[str, Any] | None = None


class SlotWords(NamedTuple):
    """What a reset said beside what it showed: the instruction, None where no key for it was given, and numbers.

    ``info`` holds the entries that are asked for in steps, as far as they are there already. ``error`` says what in the
    observation is not as its space declares, None where nothing is.
    """

    instruction: str | None
    info: Mapping[str, float]
    error: str | None = None


def reset_request(slots: Sequence[int], starting: Sequence[tuple[SlotReset, bool]]) -> dict[str, Any]:
    """Return what a worker is told of episodes that are to start, plain JSON values.

    Args:
        slots: The numbers by which it knows their env slots.
        starting: What each starts from, and whether its pictures are wanted.
    """
    starts = [{"seed": reset.seed, "options": reset.options} for reset, _ in starting]
    return {"request": "reset", "slots": slots, "starts": starts, "pictures": [is_seen for _, is_seen in starting]}


@dataclass(kw_only=True)
class PlayedEpisode:
    """What an env slot has played of its episode, kept where its worker may die of another env slot's fault.

    Attributes:
        reset: What the episode started from.
        actions: What the env slots of its worker were given in each step since. Shape of each: (num_slots, action_dim).
    """

    reset: SlotReset
    actions: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SlotMoves:
    """A step of some env slots.

    Attributes:
        actions: Of all env slots. Shape: (num_envs, action_dim), float32.
        moving: Those that make the step, in ascending order.
        seen: Those whose pictures are wanted.
        planned: Actions that follow in some env slots, whatever these show. Shape of each: (n, action_dim), float32.
    """

    actions: np.ndarray
    moving: Sequence[int]
    seen: Container[int] = ()
    planned: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def asked(self) -> np.ndarray:
        """What each env slot is to do, as in `SharedArrays.asked`. Shape: (num_envs,), uint8."""
        asked = np.full(len(self.actions), REST, np.uint8)
        asked[self.moving] = [MOVE_AND_LOOK if index in self.seen else MOVE for index in self.moving]
        return asked


@dataclass(frozen=True, kw_only=True)
class SlotSteps:
    """What one step of some env slots gave. What is said of those that did not move, or failed, has no meaning.

    Attributes:
        results: Numbers as in `SharedArrays.results`. Shape: (num_envs, num_results), float64.
        info_keys: What the entries of ``info`` are called, in order.
        info_names: Env slot to all names in its ``info``, where one of the keys is not there.
        failures: Env slots that could not make their step, to what happened, in one line.
    """

    results: np.ndarray
    info_keys: Sequence[str]
    info_names: dict[int, Sequence[str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def rewards(self) -> np.ndarray:
        """Shape: (num_envs,), float64."""
        return self.results[:, REWARD]

    @property
    def terminated(self) -> np.ndarray:
        """Shape: (num_envs,), bool."""
        return self.results[:, TERMINATED] != 0.0

    @property
    def truncated(self) -> np.ndarray:
        """Shape: (num_envs,), bool."""
        return self.results[:, TRUNCATED] != 0.0

    def entry(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return where ``info`` has an entry, and its value. Shapes: (num_envs,), bool and float64."""
        column = FIRST_ENTRY + 2 * self.info_keys.index(key)
        return self.results[:, column] != 0.0, self.results[:, column + 1]


class Failures:
    """Logs how the single environments of one source fail: each traceback once, then how often it came.

    Args:
        name: The source's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._times: Counter[str] = Counter()

    def tell(self, where: str, details: str) -> None:
        """Log a failure; one like an earlier one in one line, at each tenfold as a warning.

        Args:
            where: The env slots.
            details: The traceback. Numbers in its last line, the message, make no difference.
        """
        before, newline, message = details.rstrip().rpartition("\n")
        like = before + newline + re.sub(r"\d+", "#", message)
        self._times[like] += 1
        times = self._times[like]
        if times == 1:
            _LOG.warning("'%s' failed in %s: %s", self._name, where, details)
        else:
            level = logging.WARNING if str(times).strip("0") == "1" else logging.DEBUG
            _LOG.log(level, "'%s' failed in %s as before, %d times by now: %s", self._name, where, times, message)


class EnvSlots(ABC):
    """Single environments, each in an env slot of the batch.

    An env slot that failed is made anew when it is next reset.

    Args:
        description: What each of them looks like; see `EnvSlot.description`, and ``versions`` of what it runs on.
        num_envs: How many there are.

    Attributes:
        description: The same.
        num_envs: The same.
        steps_elsewhere: Whether other processes make the steps.
        makes_steps_ahead: Whether they make those that are planned, too, before these are asked for.
        steps_while_starting: Steps that other env slots make before a reset is waited for.
        numbers: What env slots observed last, but for pictures, by term. They change with the next reset or step.
            Shape of each: (num_envs, *shape of the term), float32.
    """

    steps_elsewhere = False
    makes_steps_ahead = False
    steps_while_starting = 0

    def __init__(self, description: Mapping[str, Any], num_envs: int) -> None:
        self.description, self.num_envs = description, num_envs
        self.numbers = {
            name: np.zeros((num_envs, *term["shape"]), np.float32)
            for name, term in description["observation"].items()
            if not term["image"]
        }
        self._pictures = [name for name, term in description["observation"].items() if term["image"]]

    def no_steps(self) -> SlotSteps:
        """Return what is said of a step before any env slot has made it."""
        results = np.zeros((self.num_envs, num_results(self.description)))
        return SlotSteps(results=results, info_keys=self.description["info_keys"])

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotWords]:
        """Start episodes; see `begin_reset` and `finish_reset`."""
        self.begin_reset(resets, seen)
        return self.finish_reset(list(resets))

    @abstractmethod
    def begin_reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Begin to start episodes. Where `steps_while_starting` is above 0, other env slots may move before they begin.

        Args:
            resets: Env slot to what its episode starts from.
            seen: Env slots whose pictures are wanted.
        """

    @abstractmethod
    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Wait for episodes that were to start, and return what their resets said.

        Args:
            indices: Their env slots.
        """

    def step(self, moves: SlotMoves) -> SlotSteps:
        """Make one step in some env slots."""
        self.begin_step(moves)
        return self.finish_step(moves)

    def begin_step(self, moves: SlotMoves) -> None:
        """Begin a step, where other processes make it."""
        del moves

    def unplanned(self, moving: Iterable[int]) -> Sequence[int]:
        """Return of some env slots those whose next step is not made ahead, so that what they plan is of use."""
        del moving
        return ()

    @property
    def unanswered(self) -> Sequence[int]:
        """Descriptors of which each can be read once another process has made its part of the step."""
        return ()

    @abstractmethod
    def finish_step(self, moves: SlotMoves) -> SlotSteps:
        """Return what the step gave that was begun."""

    @abstractmethod
    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return the pictures that an env slot observed last, by term. They change when it moves again."""

    @abstractmethod
    def render(self, index: int) -> np.ndarray:
        """Return what an env slot renders of itself, where the description says that it does.

        Returns:
            Shape: (height, width, 3), uint8.
        """

    @abstractmethod
    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return what Meta-World's expert does, asked where the environments are; see `meta_world.expert_actions`.

        Raises:
            ImportError: If Meta-World is not installed there.
            LookupError: If it has no such expert.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all of them. May be called more than once."""


class LocalSlots(EnvSlots):
    """Environments in this process, one after the other.

    Args:
        source: How they are made.
        num_envs: How many.
    """

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
        """Keep what episodes start from; see `EnvSlots.begin_reset`."""
        self._starting.update({index: (reset, index in seen) for index, reset in resets.items()})

    @others_kept()
    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Start episodes; what an environment raises fails the job. See `EnvSlots.finish_reset`."""
        words = {}
        for index in indices:
            reset, pictures = self._starting.pop(index)
            if index not in self._slots:
                self._slots[index] = self._made()
            options = None if reset.options is None else dict(reset.options)
            start = self._slots[index].reset(reset.seed, pictures=pictures, options=options)
            self._shown.put(index, start.observation)
            words[index] = SlotWords(start.instruction, start.info, start.error)
        self._take_numbers()
        return words

    @others_kept()
    def finish_step(self, moves: SlotMoves) -> SlotSteps:
        """Make one step; see `EnvSlots.step`."""
        steps = self.no_steps()
        for index in moves.moving:
            try:
                step = self._slots[index].step(moves.actions[index], pictures=index in moves.seen)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the other env slots go on
                self._failures.tell(f"env slot {index}", traceback.format_exc())
                # Its state is unknown, so it is not closed either: that is its code too.
                del self._slots[index]
                steps.failures[index] = f"{type(error).__name__}: {error}"
                continue
            self._shown.put_step(index, step)
            if step.info_names:
                steps.info_names[index] = step.info_names
        steps.results[:] = self._shown.results
        self._take_numbers()
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

    def _take_numbers(self) -> None:
        for name, values in self.numbers.items():
            values[:] = self._shown.arrays[name]

    def _made(self) -> EnvSlot:
        source = self._source
        make, generators = source_of(source.kind).make, OwnGenerators()
        with generators:
            environment = make(source.name, dict(source.make_kwargs), source.max_episode_length)
        drawing = drawing_of(environment)
        told = source.info_keys, drawing, source.instruction_key, generators
        return EnvSlot(environment, *told, checks_ranges=source.checks_ranges)
