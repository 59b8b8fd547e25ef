"""Single environments in worker processes of another interpreter, one or several env slots each."""

import logging
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotFailure, SlotReset, SlotSource
from isaaclab_arena.environments.gym.worker.env_slot import SlotStart, SlotStep
from isaaclab_arena.environments.gym.worker.shared_arrays import NOBODY, SharedArrays, num_bytes
from isaaclab_arena.environments.gym.worker_options import WorkerOptions
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, first_line
from isaaclab_arena.workers.kept_workers import ask_kept_worker
from isaaclab_arena.workers.worker_process import RequestError, WorkerError, WorkerProcess

ANSWERS = Path(__file__).with_name("worker")
"""The directory with what workers answer by."""

FAMILIES: Mapping[str, type[Exception]] = {"import": ImportError, "lookup": LookupError}
"""What a worker calls the error that it had, to the error that is raised here."""

_LOG = logging.getLogger(__name__)


class WorkerSlots(EnvSlots):
    """Environments in worker processes, which step at the same time.

    Observations lie in memory that is shared with the workers: they hold until the env slot moves again.

    Args:
        source: How they are made.
        num_envs: How many.
        options: How the workers are run.

    Raises:
        EnvironmentBuildError: If a worker cannot make its environments.
    """

    def __init__(self, source: SlotSource, num_envs: int, options: WorkerOptions) -> None:
        self._source, self._options = source, options
        size = options.envs_per_worker
        chunks = [range(first, min(first + size, num_envs)) for first in range(0, num_envs, size)]
        self._workers = [_Worker(source, options, chunk) for chunk in chunks]
        try:
            for worker in self._workers:
                worker.begin_making(worker.indices)
            self.description = [worker.finish_making() for worker in self._workers][-1]
        except ArenaError:
            self.close()
            raise

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotStart]:
        """Start episodes. See `EnvSlots.reset`.

        Raises:
            ArenaError: If an environment raises, or its worker dies twice or does not answer.
        """
        asked = [(worker, {index: resets[index] for index in indices}) for worker, indices in self._divided(resets)]
        for worker, part in asked:
            worker.begin_making([index for index in part if not worker.holds(index)])
        for worker, _ in asked:
            worker.finish_making()
        for worker, part in asked:
            worker.begin_resets(part, seen)
        starts: dict[int, SlotStart] = {}
        try:
            for worker, part in asked:
                starts.update(worker.finish_resets(part, seen))
        except RequestError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}\n{error.traceback}") from error
        except WorkerError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}") from error
        return starts

    def step(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> dict[int, SlotStep | SlotFailure]:
        """Make one step in all workers at once. See `EnvSlots.step`."""
        asked = [(worker, {index: actions[index] for index in indices}) for worker, indices in self._divided(actions)]
        for worker, part in asked:
            worker.begin_steps(part, seen)
        answers: dict[int, SlotStep | SlotFailure] = {}
        for worker, part in asked:
            answers.update(worker.finish_steps(part, seen))
        return answers

    def render(self, index: int) -> np.ndarray:
        """Return a picture; see `EnvSlots.render`.

        Raises:
            ArenaError: If the environment raises, or its worker dies or does not answer.
        """
        try:
            return self._workers[index // self._options.envs_per_worker].render(index)
        except (RequestError, WorkerError) as error:
            raise ArenaError(f"'{self._source.name}' failed to render: {error}") from error

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return actions, of which one worker thinks for all env slots. See `EnvSlots.expert_actions`.

        Raises:
            ArenaError: If the expert raises, or the worker dies or does not answer.
        """
        try:
            # It is the same whoever is asked.
            return self._workers[0].expert_actions(task, observations)
        except RequestError as error:
            if error.kind == "other":
                raise ArenaError(f"the expert for '{task}' failed: {error}\n{error.traceback}") from error
            raise FAMILIES[error.kind](str(error)) from error
        except WorkerError as error:
            raise ArenaError(f"the expert for '{task}' failed: {error}") from error

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.close()

    def _divided(self, indices: Iterable[int]) -> list[tuple["_Worker", list[int]]]:
        """Return the workers that hold env slots, each with those that it holds."""
        by_worker: dict[int, list[int]] = {}
        for index in indices:
            by_worker.setdefault(index // self._options.envs_per_worker, []).append(index)
        return [(self._workers[number], part) for number, part in by_worker.items()]


@dataclass(kw_only=True)
class _Played:
    """What an env slot has played of its episode, kept where its worker may die of another env slot's fault.

    Attributes:
        reset: What the episode started from.
        actions: What it was given since.
        numbers: What it observed last, without pictures.
    """

    reset: SlotReset
    actions: list[np.ndarray] = field(default_factory=list)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)


class _Worker:
    """A worker process and the env slots that it holds. It is started when one of them is made.

    If it dies in a step, the env slot that it was moving has failed. The others are brought to where they were in a new
    process, so only one episode is lost.
    """

    def __init__(self, source: SlotSource, options: WorkerOptions, indices: range) -> None:
        self.indices = indices
        self._source, self._options = source, options
        self._process: WorkerProcess | None = None
        self._shared: SharedArrays | None = None
        self._pictures: frozenset[str] = frozenset()
        self._making: list[int] = []
        self._held: set[int] = set()
        self._played: dict[int, _Played] = {}
        self._unsent: WorkerError | None = None

    def holds(self, index: int) -> bool:
        """Return whether an env slot has an environment."""
        return index in self._held

    def begin_making(self, indices: Iterable[int]) -> None:
        """Ask for environments in these env slots, if there are any."""
        self._making = list(indices)
        if not self._making:
            return
        if self._process is None:
            try:
                self._process = WorkerProcess(ANSWERS, self._options.interpreter, self._options.environment_variables)
            except WorkerError as error:
                raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}") from error
        told = {"slots": self._local(self._making), "num_slots": len(self.indices)}
        self._send({"request": "make", **told, **self._source.request()})

    def finish_making(self) -> dict[str, Any]:
        """Return what the environments that were asked for look like; see `EnvSlots.description`.

        Raises:
            EnvironmentBuildError: If one cannot be made.
        """
        if not self._making:
            return {}
        try:
            description, _ = self._receive(self._options.start_timeout_s * len(self._making))
        except (RequestError, WorkerError) as error:
            details = f"\n{error.traceback}" if isinstance(error, RequestError) else ""
            raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}{details}") from error
        if self._shared is None and self._process is not None:
            memory = self._process.share(num_bytes(description, len(self.indices)))
            self._shared = SharedArrays(memory, description, len(self.indices))
            self._pictures = frozenset(name for name, term in description["observation"].items() if term["image"])
        self._held.update(self._making)
        return description

    def begin_resets(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Ask for new episodes."""
        starts = [{"seed": each.seed, "options": each.options} for each in resets.values()]
        pictures = [index in seen for index in resets]
        self._send({"request": "reset", "slots": self._local(resets), "starts": starts, "pictures": pictures})

    def finish_resets(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotStart]:
        """Return what the episodes that were asked for start with.

        Raises:
            RequestError: If an environment raises.
            WorkerError: If the worker dies again once it was started anew, or does not answer.
        """
        timeout_s = self._options.start_timeout_s * len(resets)
        try:
            message, _ = self._receive(timeout_s)
        except WorkerError as error:
            if not error.died:
                raise
            # Killed between two episodes, it costs none.
            self._start_again(self._played.keys() - resets.keys(), resets)
            self.begin_resets(resets, seen)
            message, _ = self._receive(timeout_s)
        starts = {}
        for index, instruction in zip(resets, message["instructions"], strict=True):
            starts[index] = SlotStart(self._observed(index, pictures=index in seen), instruction)
            if len(self.indices) > 1:
                self._played[index] = _Played(reset=resets[index], numbers=self._numbers(index))
        return starts

    def begin_steps(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> None:
        """Ask for a step."""
        request = {"request": "step", "slots": self._local(actions), "pictures": [index in seen for index in actions]}
        self._send(request, {"actions": np.stack(list(actions.values()))})

    def finish_steps(
        self, actions: Mapping[int, np.ndarray], seen: Container[int]
    ) -> dict[int, SlotStep | SlotFailure]:
        """Return what the steps that were asked for gave."""
        try:
            return self._stepped(actions, seen)
        except WorkerError as error:
            _LOG.warning("'%s' failed in env slots %s: %s", self._source.name, [*actions], error)
            return self._go_on(error, actions, seen)

    def render(self, index: int) -> np.ndarray:
        """Return what an env slot renders of itself. Shape: (height, width, 3), uint8."""
        [slot] = self._local([index])
        self._send({"request": "render", "slot": slot})
        return self._receive(self._options.step_timeout_s)[1]["picture"]

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return what Meta-World's expert does. If the worker failed before, it is started again for it."""
        if self._process is None:
            self.begin_making(self.indices[:1])
            self.finish_making()
        self._send({"request": "expert", "task": task}, {"observations": observations})
        return self._receive(self._options.step_timeout_s)[1]["actions"]

    def close(self) -> None:
        """Stop the process, if there is one."""
        self._held.clear()
        self._shared, self._unsent = None, None
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _stepped(self, actions: Mapping[int, np.ndarray], seen: Container[int]) -> dict[int, SlotStep | SlotFailure]:
        message, _ = self._receive(self._options.step_timeout_s * len(actions))
        shared, notes = self._showing(), message["notes"]
        answers: dict[int, SlotStep | SlotFailure] = {}
        for index, action in actions.items():
            note = notes.get(str(index - self.indices[0]), {})
            if "error" in note:
                _LOG.warning("'%s' failed in env slot %d: %s", self._source.name, index, note["traceback"])
                self._drop(index)
                answers[index] = SlotFailure(reason=first_line(note["error"]))
                continue
            observation = self._observed(index, pictures=index in seen)
            results = shared.results(index - self.indices[0])
            answers[index] = SlotStep(observation, *results, info_names=tuple(note.get("info_names", ())))
            if index in self._played:
                self._played[index].actions.append(action.copy())
                self._played[index].numbers = self._numbers(index)
        return answers

    def _go_on(
        self, error: WorkerError, actions: Mapping[int, np.ndarray], seen: Container[int]
    ) -> dict[int, SlotStep | SlotFailure]:
        """Return what the steps give once more, after the process died or fell silent in one of them."""
        answers: dict[int, SlotStep | SlotFailure] = dict.fromkeys(actions, SlotFailure(reason=first_line(error)))
        others = dict(actions)
        while True:
            failed = self._moving(others)
            self._played.pop(failed, None)
            del others[failed]
            self.close()
            if not others:
                return answers
            try:
                self._start_again(others, ())
                self.begin_steps(others, seen)
                return {**answers, **self._stepped(others, seen)}
            except WorkerError as again:
                # The next one that does the same: there is one env slot less in each round.
                answers[self._moving(others)] = SlotFailure(reason=first_line(again))
            except (ArenaError, RequestError) as again:
                _LOG.warning("'%s' failed in env slots %s: %s", self._source.name, [*others], again)
                self.close()
                return answers

    def _moving(self, indices: Collection[int]) -> int:
        """Return which of some env slots moved last, the first where none did."""
        moving = NOBODY if self._shared is None else self.indices[0] + int(self._shared.moving[0])
        return moving if moving in indices else next(iter(indices))

    def _start_again(self, playing: Iterable[int], starting: Iterable[int]) -> None:
        """Start the process anew, and bring episodes to where they were.

        Args:
            playing: Env slots in which they run.
            starting: Env slots that need an environment beside these.

        Raises:
            ArenaError: If an episode does not repeat itself, or an environment cannot be made.
            RequestError: If an environment raises.
            WorkerError: If the new process dies too, or does not answer.
        """
        playing = sorted(playing)
        self.close()
        self.begin_making(sorted({*playing, *starting}))
        self.finish_making()
        for index in playing:
            played = self._played[index]
            self.begin_resets({index: played.reset}, ())
            self._receive(self._options.start_timeout_s)
            for action in played.actions:
                self.begin_steps({index: action}, ())
                self._receive(self._options.step_timeout_s)
            again = self._numbers(index)
            if not all(np.array_equal(again[name], value, equal_nan=True) for name, value in played.numbers.items()):
                raise ArenaError(f"the episode in env slot {index} does not repeat itself")

    def _drop(self, index: int) -> None:
        self._held.discard(index)
        self._played.pop(index, None)
        # An environment that raised may have left the process in any state, so the last one takes it with it.
        if not self._held:
            self.close()

    def _observed(self, index: int, *, pictures: bool) -> dict[str, np.ndarray]:
        arrays, slot = self._showing().arrays, index - self.indices[0]
        return {name: each[slot] for name, each in arrays.items() if pictures or name not in self._pictures}

    def _numbers(self, index: int) -> dict[str, np.ndarray]:
        return {name: value.copy() for name, value in self._observed(index, pictures=False).items()}

    def _local(self, indices: Iterable[int]) -> list[int]:
        """Return the numbers by which the process knows env slots."""
        return [index - self.indices[0] for index in indices]

    def _showing(self) -> SharedArrays:
        if self._shared is None:
            raise RuntimeError("a worker was asked what it observes before it was made")
        return self._shared

    def _send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        # Other workers are asked first; what became of this one is told when its answer is due.
        if self._process is None:
            raise RuntimeError("a worker was asked before it was started")
        try:
            self._process.send(message, arrays)
        except WorkerError as error:
            self._unsent = error

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        unsent, self._unsent = self._unsent, None
        if unsent is not None or self._process is None:
            raise unsent or RuntimeError("a worker was asked before it was started")
        return self._process.receive(timeout_s)


def find_in_worker(source: SlotSource, options: WorkerOptions) -> dict[str, Any]:
    """Return what `find` of the source says in another interpreter.

    Raises:
        RequestError: If it raises there.
        WorkerError: If the interpreter cannot be used.
    """
    request = {"request": "find", "source": source.kind, "name": source.name, "make_kwargs": dict(source.make_kwargs)}
    interpreter, variables = options.interpreter, options.environment_variables
    return ask_kept_worker(ANSWERS, interpreter, variables, request, options.start_timeout_s)
