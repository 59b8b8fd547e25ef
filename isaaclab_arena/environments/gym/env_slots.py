"""The single environments behind a batch, in this process."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from isaaclab_arena.environments.gym.worker.drawing import drawing_of
from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, SlotStart, SlotStep
from isaaclab_arena.environments.gym.worker.sources import source_of
from isaaclab_arena.environments.gym.worker.versions import versions_of

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
    """

    kind: str
    name: str
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_length: int | None = None
    info_keys: tuple[str, ...] = ()
    instruction_key: str | None = None

    def request(self) -> dict[str, Any]:
        """Return what a worker is told of it, plain JSON values."""
        told = asdict(self)
        return {"source": told.pop("kind"), **told}


@dataclass(frozen=True, kw_only=True)
class SlotReset:
    """What a single environment starts an episode from.

    Attributes:
        seed: Its seed.
        options: Its ``options``, plain JSON values; None for an environment that is not told the episode.
    """

    seed: int
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class SlotFailure:
    """A single environment could not make its step.

    Attributes:
        reason: What happened, in one line.
    """

    reason: str


class EnvSlots(ABC):
    """Single environments, each in an env slot of the batch.

    An env slot that failed is made anew when it is next reset. What an env slot observed holds until it moves again.

    Attributes:
        description: What each of them looks like; see `EnvSlot.description`, and ``versions`` of what it runs on.
    """

    description: Mapping[str, Any]

    @abstractmethod
    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotStart]:
        """Start episodes and return what they start with.

        Args:
            resets: Env slot to what its episode starts from.
            seen: Env slots whose pictures are wanted. The observations of others have none.
        """

    @abstractmethod
    def step(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> dict[int, SlotStep | SlotFailure]:
        """Make one step in the named env slots.

        Args:
            actions: Env slot to its action. Shape: (action_dim,), float32.
            seen: Env slots whose pictures are wanted. The observations of others have none.
        """

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
        self._slots: dict[int, EnvSlot] = {}
        for index in range(num_envs):
            self._slots[index] = self._made()
        first = self._slots[0]
        self.description = {**first.description(), "versions": versions_of(first.environment)}

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotStart]:
        """Start episodes; what an environment raises fails the job. See `EnvSlots.reset`."""
        starts = {}
        for index, reset in resets.items():
            if index not in self._slots:
                self._slots[index] = self._made()
            options = None if reset.options is None else dict(reset.options)
            starts[index] = self._slots[index].reset(reset.seed, pictures=index in seen, options=options)
        return starts

    def step(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> dict[int, SlotStep | SlotFailure]:
        """Make one step; see `EnvSlots.step`."""
        return {index: self._step(index, action, pictures=index in seen) for index, action in actions.items()}

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

    def _step(self, index: int, action: np.ndarray, *, pictures: bool) -> SlotStep | SlotFailure:
        try:
            return self._slots[index].step(action, pictures=pictures)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the other env slots go on
            _LOG.warning("'%s' failed in env slot %d", self._source.name, index, exc_info=True)
            # Its state is unknown, so it is not closed either: that is its code too.
            del self._slots[index]
            return SlotFailure(reason=f"{type(error).__name__}: {error}")

    def _made(self) -> EnvSlot:
        source = self._source
        make = source_of(source.kind).make
        environment = make(source.name, dict(source.make_kwargs), source.max_episode_length)
        return EnvSlot(environment, source.info_keys, drawing_of(environment), source.instruction_key)
