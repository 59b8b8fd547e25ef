"""The single environments behind a batch: in this process, or one worker process each."""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.options import Positive
from isaaclab_arena.environments.gym.worker.drawing import drawing_of
from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, SlotStart, SlotStep
from isaaclab_arena.environments.gym.worker.sources import source_of
from isaaclab_arena.environments.gym.worker.versions import versions_of
from isaaclab_arena.environments.gym.worker_process import RequestError, WorkerError, WorkerProcess
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, first_line

FAMILIES: Mapping[str, type[Exception]] = {"import": ImportError, "lookup": LookupError}
"""What a worker calls the error that it had, to the error that is raised here."""

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

    An env slot that failed is made anew when it is next reset.

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


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How workers are run.

    Attributes:
        python: Interpreter in which the environment runs, a worker process per env slot; this process by default.
        environment_variables: What the workers have beside this process's variables.
        start_timeout_s: How long a worker may take to make or reset its environment [s].
        step_timeout_s: How long a worker may take for a step [s].
    """

    python: str | None = None
    environment_variables: dict[str, str] = field(default_factory=dict)
    start_timeout_s: Positive = 300.0
    step_timeout_s: Positive = 60.0

    @property
    def interpreter(self) -> str:
        """Their interpreter, that of this process by default."""
        return str(Path(self.python or sys.executable).expanduser())


class WorkerSlots(EnvSlots):
    """Environments in worker processes, which step at the same time.

    Args:
        source: How they are made.
        num_envs: How many.
        options: How the workers are run.

    Raises:
        EnvironmentBuildError: If a worker cannot make its environment.
    """

    def __init__(self, source: SlotSource, num_envs: int, options: WorkerOptions) -> None:
        self._source = source
        self._options = options
        self._workers: dict[int, WorkerProcess] = {}
        try:
            self.description = self._make(range(num_envs))
        except ArenaError:
            self.close()
            raise

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotStart]:
        """Start episodes. See `EnvSlots.reset`.

        Raises:
            ArenaError: If an environment raises, or its worker dies or does not answer.
        """
        missing = [index for index in resets if index not in self._workers]
        if missing:
            self._make(missing)
        try:
            for index, reset in resets.items():
                told = {"seed": reset.seed, "options": reset.options, "pictures": index in seen}
                self._workers[index].send({"request": "reset", **told})
            answers = {index: self._workers[index].receive(self._options.start_timeout_s) for index in resets}
        except RequestError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}\n{error.traceback}") from error
        except WorkerError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}") from error
        return {index: SlotStart(arrays, message["instruction"]) for index, (message, arrays) in answers.items()}

    def step(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> dict[int, SlotStep | SlotFailure]:
        """Make one step in all workers at once. See `EnvSlots.step`."""
        failures: dict[int, SlotStep | SlotFailure] = {}
        for index, action in actions.items():
            try:
                self._workers[index].send({"request": "step", "pictures": index in seen}, {"action": action})
            except WorkerError as error:
                failures[index] = self._failed(index, error)
        return {index: failures.get(index) or self._answer(index) for index in actions}

    def render(self, index: int) -> np.ndarray:
        """Return a picture; see `EnvSlots.render`.

        Raises:
            ArenaError: If the environment raises, or its worker dies or does not answer.
        """
        try:
            return self._workers[index].ask({"request": "render"}, self._options.step_timeout_s)[1]["picture"]
        except (RequestError, WorkerError) as error:
            raise ArenaError(f"'{self._source.name}' failed to render: {error}") from error

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return actions, of which one worker thinks for all env slots. See `EnvSlots.expert_actions`.

        Raises:
            ArenaError: If the expert raises, or the worker dies or does not answer.
        """
        # It is the same whoever is asked. A worker that failed is gone until its env slot is reset.
        if not self._workers:
            self._make([0])
        worker = next(iter(self._workers.values()))
        request = {"request": "expert", "task": task}
        try:
            return worker.ask(request, self._options.step_timeout_s, {"observations": observations})[1]["actions"]
        except RequestError as error:
            if error.kind == "other":
                raise ArenaError(f"the expert for '{task}' failed: {error}\n{error.traceback}") from error
            raise FAMILIES[error.kind](str(error)) from error
        except WorkerError as error:
            raise ArenaError(f"the expert for '{task}' failed: {error}") from error

    def close(self) -> None:
        """Stop all workers."""
        while self._workers:
            self._workers.popitem()[1].close()

    def _answer(self, index: int) -> SlotStep | SlotFailure:
        try:
            message, observation = self._workers[index].receive(self._options.step_timeout_s)
        except (RequestError, WorkerError) as error:
            return self._failed(index, error)
        return SlotStep(observation=observation, **message)

    def _failed(self, index: int, error: RequestError | WorkerError) -> SlotFailure:
        details = error.traceback if isinstance(error, RequestError) else error
        _LOG.warning("'%s' failed in env slot %d: %s", self._source.name, index, details)
        self._workers.pop(index).close()
        return SlotFailure(reason=first_line(error))

    def _make(self, indices: Any) -> dict[str, Any]:
        source, options = self._source, self._options
        request = {
            "request": "make",
            "source": source.kind,
            "name": source.name,
            "make_kwargs": dict(source.make_kwargs),
            "max_episode_length": source.max_episode_length,
            "info_keys": list(source.info_keys),
            "instruction_key": source.instruction_key,
        }
        description: dict[str, Any] = {}
        try:
            for index in indices:
                self._workers[index] = WorkerProcess(options.interpreter, options.environment_variables)
                self._workers[index].send(request)
            for index in indices:
                description, _ = self._workers[index].receive(options.start_timeout_s)
        except RequestError as error:
            raise EnvironmentBuildError(f"'{source.name}' cannot be made: {error}\n{error.traceback}") from error
        except WorkerError as error:
            raise EnvironmentBuildError(f"'{source.name}' cannot be made: {error}") from error
        return description


def find_in_worker(source: SlotSource, options: WorkerOptions) -> dict[str, Any]:
    """Return what `find` of the source says in another interpreter.

    Raises:
        RequestError: If it raises there.
        WorkerError: If the interpreter cannot be used.
    """
    worker = WorkerProcess(options.interpreter, options.environment_variables)
    request = {"request": "find", "source": source.kind, "name": source.name, "make_kwargs": dict(source.make_kwargs)}
    try:
        return worker.ask(request, timeout_s=options.start_timeout_s)[0]
    finally:
        worker.close()
