"""Single environments in worker processes of another interpreter, one or several env slots each."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from isaaclab_arena.environments.gym.env_slots import (
    EnvSlots,
    Failures,
    SlotMoves,
    SlotReset,
    SlotSource,
    SlotSteps,
    SlotWords,
)
from isaaclab_arena.environments.gym.env_worker import ANSWERS, EnvWorker
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.workers.kept_workers import ask_kept_worker, asked_worker
from isaaclab_arena.workers.worker_options import WorkerOptions
from isaaclab_arena.workers.worker_process import RequestError, WorkerError, WorkerProcess

FAMILIES: Mapping[str, type[Exception]] = {"import": ImportError, "lookup": LookupError}
"""What a worker calls the error that it had, to the error that is raised here."""


class WorkerSlots(EnvSlots):
    """Environments in worker processes, which step at the same time.

    What steps take and give lies in memory that is shared with the workers.

    Args:
        source: How they are made.
        num_envs: How many.
        options: How the workers are run.
        begun: A worker that was started for them, which becomes the first one; see `finding_worker`.

    Raises:
        EnvironmentBuildError: If a worker cannot make its environments.
    """

    steps_elsewhere = True

    def __init__(
        self, source: SlotSource, num_envs: int, options: WorkerOptions, begun: WorkerProcess | None = None
    ) -> None:
        self._source, self._options = source, options
        self.makes_steps_ahead = options.steps_per_message > 1
        # A worker answers one request after the other.
        self.steps_while_starting = options.steps_while_starting if options.envs_per_worker == 1 else 0
        self._stepping: list[tuple[EnvWorker, list[int]]] = []
        size = options.envs_per_worker
        chunks = [range(first, min(first + size, num_envs)) for first in range(0, num_envs, size)]
        started = [begun, *[None] * len(chunks)]
        failures = Failures(source.name)
        self._workers = [EnvWorker(source, options, failures, *each) for each in zip(chunks, started, strict=False)]
        try:
            for worker in self._workers:
                worker.begin_making(worker.indices)
            super().__init__([worker.finish_making() for worker in self._workers][-1], num_envs)
        except ArenaError:
            self.close()
            raise
        for worker in self._workers:
            worker.show_in(self.numbers)

    def begin_reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Begin to start episodes in all workers at once. See `EnvSlots.begin_reset`.

        Raises:
            EnvironmentBuildError: If an environment has to be made anew, and cannot be.
        """
        asked = [(worker, {index: resets[index] for index in indices}) for worker, indices in self._divided(resets)]
        for worker, part in asked:
            worker.begin_making([index for index in part if not worker.holds(index)])
        for worker, _ in asked:
            worker.finish_making()
        for worker, part in asked:
            worker.begin_resets(part, seen)

    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Wait for episodes that were to start. See `EnvSlots.finish_reset`.

        Raises:
            ArenaError: If an environment raises, or its worker dies twice or does not answer.
        """
        words: dict[int, SlotWords] = {}
        try:
            for worker, _ in self._divided(indices):
                words.update(worker.finish_resets())
        except RequestError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}\n{error.traceback}") from error
        except WorkerError as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}") from error
        return words

    def begin_step(self, moves: SlotMoves) -> None:
        """Begin a step in all workers at once. See `EnvSlots.begin_step`."""
        # A worker of several env slots keeps the actions until their episodes end.
        actions, asked = moves.actions.copy(), moves.asked
        self._stepping = self._divided(moves.moving)
        for worker, _ in self._stepping:
            worker.begin_steps(actions, asked, moves.planned)

    def unplanned(self, moving: Iterable[int]) -> Sequence[int]:
        """Return env slots; see `EnvSlots.unplanned`."""
        left = [each for worker in self._workers for each in worker.steps_left()]
        return [index for index in moving if not left[index]]

    @property
    def unanswered(self) -> Sequence[int]:
        """Pipes of the workers that are stepping."""
        pipes = [worker.unanswered() for worker, _ in self._stepping]
        return [pipe for pipe in pipes if pipe is not None]

    def finish_step(self, moves: SlotMoves) -> SlotSteps:
        """Wait for all workers. See `EnvSlots.finish_step`."""
        del moves
        steps = self.no_steps()
        stepping, self._stepping = self._stepping, []
        for worker, part in stepping:
            worker.finish_steps(part, steps)
        return steps

    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return pictures; see `EnvSlots.pictures`."""
        return self._workers[index // self._options.envs_per_worker].pictures(index)

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
            # It is the same whoever is asked; who starts an episode would answer late.
            asked = next((worker for worker in self._workers if not worker.starting), self._workers[0])
            return asked.expert_actions(task, observations)
        except RequestError as error:
            if error.kind == "other":
                raise ArenaError(f"the expert for '{task}' failed: {error}\n{error.traceback}") from error
            raise FAMILIES[error.kind](str(error)) from error
        except WorkerError as error:
            raise ArenaError(f"the expert for '{task}' failed: {error}") from error

    def close(self) -> None:
        """Stop all workers, but for those that the next environment can take."""
        for worker in self._workers:
            worker.let_go()

    def _divided(self, indices: Iterable[int]) -> list[tuple[EnvWorker, list[int]]]:
        """Return the workers that hold env slots, each with those that it holds."""
        by_worker: dict[int, list[int]] = {}
        for index in indices:
            by_worker.setdefault(index // self._options.envs_per_worker, []).append(index)
        return [(self._workers[number], part) for number, part in by_worker.items()]


def find_in_worker(source: SlotSource, options: WorkerOptions) -> dict[str, Any]:
    """Return what `find` of the source says in another interpreter.

    Raises:
        RequestError: If it raises there.
        WorkerError: If the interpreter cannot be used.
    """
    interpreter, variables = options.interpreter, options.environment_variables
    return ask_kept_worker(ANSWERS, interpreter, variables, _finding(source), options.start_timeout_s)


def finding_worker(source: SlotSource, options: WorkerOptions) -> WorkerProcess | None:
    """Return the worker that found this source and no other, which has imported it; None where there is none."""
    return asked_worker(ANSWERS, options.interpreter, options.environment_variables, _finding(source))


def _finding(source: SlotSource) -> dict[str, Any]:
    return {"request": "find", "source": source.kind, "name": source.name, "make_kwargs": dict(source.make_kwargs)}
