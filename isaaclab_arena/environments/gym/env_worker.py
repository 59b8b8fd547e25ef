"""Workers of another interpreter that hold env slots: asked, watched, and started again where they die."""

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.environments.gym.env_slots import (
    EnvSlots,
    Failures,
    PlayedEpisode,
    SlotMoves,
    SlotReset,
    SlotSource,
    SlotSteps,
    SlotWords,
)
from isaaclab_arena.environments.gym.worker.shared_arrays import (
    MOVE,
    MOVE_AND_LOOK,
    NO_SLOT,
    REST,
    SharedArrays,
    StepsAhead,
    num_bytes,
)
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, PolicyError, first_line
from isaaclab_arena.workers.program import frames
from isaaclab_arena.workers.worker_process import (
    RequestError,
    WorkerError,
    WorkerOptions,
    WorkerProcess,
    can_spare_workers,
    spare_worker,
    taken_worker,
)

# Talk to a worker process that holds env slots, and restart it if it dies.

ANSWERS = Path(__file__).with_name("worker")
"""The directory with what workers answer by."""

_LOG = logging.getLogger(__name__)


class EnvWorker:
    """A worker process and its env slots; it starts when the first of them is made."""

    def __init__(
        self,
        source: SlotSource,
        options: WorkerOptions,
        failures: Failures,
        indices: range,
        begun: WorkerProcess | None = None,
    ) -> None:
        # If the process dies in a step, only the env slot that was moving has failed; a new process continues the
        # others from there. ``begun`` is a process that already runs.
        self.indices, self._failures = indices, failures
        self._places = slice(indices.start, indices.stop)  # of its env slots in arrays of all
        self._source, self._options = source, options
        self._process = None if begun is None else self._started(begun)
        self._shared: SharedArrays | None = None
        self._numbers: dict[str, np.ndarray] = {}
        self._making: list[int] = []
        self.held: set[int] = set()  # its env slots that have an environment
        self._played: dict[int, PlayedEpisode] = {}
        self.starting: dict[int, tuple[SlotReset, bool]] = {}  # resets under way; True: with pictures
        self._unsent: WorkerError | None = None
        self._asked: tuple[np.ndarray, np.ndarray] = np.zeros(0), np.zeros(0)
        self._ahead: StepsAhead | None = None
        self._most_ahead = options.steps_per_message - 1
        self._num_asked = self._num_ahead = 0
        self._is_sound = True

    def show_in(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Write observations, without pictures, into ``numbers``, the arrays of all env slots."""
        self._numbers = {name: values[self._places] for name, values in numbers.items()}
        for name, values in self._numbers.items():
            self._showing().arrays[name][:] = values

    def begin_making(self, indices: Iterable[int]) -> None:
        """Request environments in these env slots, if there are any."""
        self._making = list(indices)
        if not self._making:
            return
        if self._process is None:
            try:
                self._process = self._started()
            except WorkerError as error:
                raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}") from error
        slots = [index - self.indices[0] for index in self._making]
        told = {"slots": slots, "num_slots": len(self.indices), "num_ahead": self._most_ahead}
        self._send_frame(frames.encode({"request": "make", **told, **self._source.request()}, {}))

    def finish_making(self) -> dict[str, Any]:
        """Return the description of the requested environments, EnvironmentBuildError if one fails; see `EnvSlot`."""
        if not self._making:
            return {}
        try:
            description, _ = self._receive(self._options.start_timeout_s * len(self._making))
        except (RequestError, WorkerError) as error:
            details = f"\n{error.traceback}" if isinstance(error, RequestError) else ""
            raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}{details}") from error
        if self._shared is None and self._process is not None:
            sizes = description, len(self.indices), self._most_ahead
            self._shared = SharedArrays(self._process.share(num_bytes(*sizes)), *sizes)
            self._ahead = StepsAhead(self._shared, self._most_ahead) if self._most_ahead else None
            # Resting env slots will not write their known values again.
            for name, values in self._numbers.items():
                self._shared.arrays[name][:] = values
        self.held.update(self._making)
        return description

    def begin_resets(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Request new episodes."""
        self.starting = {index: (reset, index in seen) for index, reset in resets.items()}
        self._ask_resets(self.starting)

    def finish_resets(self) -> dict[int, SlotWords]:
        """Return the results of the resets; RequestError if an environment raises, WorkerError if the worker fails."""
        starting, self.starting = self.starting, {}
        timeout_s = self._options.start_timeout_s * len(starting)
        try:
            message, _ = self._receive(timeout_s)
        except WorkerError as error:
            if not error.died:
                raise
            # A process that died between two episodes is replaced without a failed episode.
            self._start_again(self._played.keys() - starting.keys(), starting)
            self._ask_resets(starting)
            message, _ = self._receive(timeout_s)
        arrays = self._showing().arrays
        for name, values in self._numbers.items():
            values[:] = arrays[name]
        if len(self.indices) > 1 or self._most_ahead:
            self._played.update((index, PlayedEpisode(reset=reset)) for index, (reset, _) in starting.items())
        return {index: SlotWords(*said) for index, said in zip(starting, message["starts"], strict=True)}

    def steps_left(self) -> list[int]:
        """Return the number of steps already made ahead for each of its env slots."""
        return [0] * len(self.indices) if self._ahead is None else self._ahead.left().tolist()

    def begin_steps(self, actions: np.ndarray, asked: np.ndarray, planned: Mapping[int, np.ndarray]) -> None:
        """Request a step of this worker's env slots, unless it was made ahead."""
        # Arrays cover all env slots: ``actions`` (num_envs, action_dim), float32, which must not change any more;
        # ``asked`` (num_envs,), uint8, as in `SharedArrays.asked`; ``planned`` (n, action_dim) each.
        self._asked = actions[self._places], asked[self._places]
        own = {index - self.indices[0]: each for index, each in planned.items() if index in self.indices}
        self._num_ahead = 0 if self._ahead is None else self._ahead.plan(self._asked[1], own)
        self._num_asked = np.count_nonzero(self._asked[1])
        if self._num_asked:
            self._ask_steps(*self._asked)

    def unanswered(self) -> int | None:
        """Return a descriptor that becomes readable when the steps are made; None if no answer is pending."""
        if self._process is None or self._unsent is not None or not self._num_asked:
            return None
        return self._process.unanswered(self._options.step_timeout_s * (self._num_asked + self._num_ahead))

    def finish_steps(self, moving: Sequence[int], steps: SlotSteps) -> None:
        """Write the results of the requested steps of ``moving`` into ``steps``, which covers all env slots."""
        made = [index for index in moving if self._asked[1][index - self.indices[0]] == REST]
        if made and self._ahead is not None:
            # These steps were made with an earlier message.
            slots = [index - self.indices[0] for index in made]
            try:
                names = self._ahead.show(slots, self._asked[0])
            except ValueError as error:
                # The worker may never read the next message.
                self._is_sound = False
                message = f"{error}; with steps_per_message its planned actions must stay as they are"
                raise PolicyError(message) from error
            steps.info_names.update({self.indices[slot]: each for slot, each in names.items()})
            # Only these env slots are read: the worker may be stepping its others.
            shared = self._showing()
            steps.results[made] = shared.results[slots]
            for name, values in self._numbers.items():
                values[slots] = shared.arrays[name][slots]
            for index in made:
                self._played[index].actions.append(self._asked[0])

        moving = [index for index in moving if index not in made]
        if not moving:
            return
        try:
            self._take_steps(moving, steps)
        except WorkerError as error:
            self._failures.tell(f"env slots {[*moving]}", str(error))
            self._go_on(error, moving, steps)

    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return the last observed pictures of an env slot."""
        slot = index - self.indices[0]
        return {name: each[slot] for name, each in self._showing().arrays.items() if name not in self._numbers}

    def render(self, index: int) -> np.ndarray:
        """Return an env slot's own picture. Shape: (height, width, 3), uint8."""
        self._send_frame(frames.encode({"request": "render", "slot": index - self.indices[0]}, {}))
        return self._receive(self._options.step_timeout_s)[1]["picture"]

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return the Meta-World expert's actions; a worker that failed before is restarted."""
        if self._process is None:
            self.begin_making(self.indices[:1])
            self.finish_making()
        self._send_frame(frames.encode({"request": "expert", "task": task}, {"observations": observations}))
        return self._receive(self._options.step_timeout_s)[1]["actions"]

    def let_go(self) -> None:
        """Close the environments, and keep the process as a spare if it is sound and its code allows it."""
        process = self._process
        is_free = self._is_sound and not self.starting
        if process is not None and self._source.code is not None and is_free and can_spare_workers():
            try:
                process.ask({"request": "forget"}, self._options.step_timeout_s)
            except (RequestError, WorkerError) as error:
                _LOG.info("a worker of '%s' stops, as it could not close: %s", self._source.name, first_line(error))
            else:
                self._process = None
                spare_worker(self._source.served_by(self._options), process)
        self.close()

    def close(self) -> None:
        """Stop the process, if there is one."""
        self.held, self.starting = set(), {}
        self._is_sound = True
        self._shared, self._ahead, self._unsent = None, None, None
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _ask_resets(self, starting: Mapping[int, tuple[SlotReset, bool]]) -> None:
        slots = [index - self.indices[0] for index in starting]
        if self._ahead is not None:
            self._ahead.forget(slots)
        starts = [{"seed": reset.seed, "options": reset.options} for reset, _ in starting.values()]
        pictures = [is_seen for _, is_seen in starting.values()]
        message = {"request": "reset", "slots": slots, "starts": starts, "pictures": pictures}
        self._send_frame(frames.encode(message, {}))

    def _ask_steps(self, actions: np.ndarray, asked: np.ndarray) -> None:
        shared = self._showing()
        shared.actions[:], shared.asked[:] = actions, asked
        self._send_frame(frames.EMPTY)

    def _take_steps(self, moving: Sequence[int], steps: SlotSteps) -> None:
        notes, _ = self._receive(self._options.step_timeout_s * (self._num_asked + self._num_ahead))
        for slot, note in notes.items():
            index = self.indices[int(slot)]
            if "error" in note:
                self._failures.tell(f"env slot {index}", note["traceback"])
                steps.failures[index] = first_line(note["error"])
                continue
            if "info_names" in note:
                steps.info_names[index] = note["info_names"]
            if self._ahead is not None:
                self._ahead.note(int(slot), note.get("ahead_names", {}))
        # The shared memory holds the numbers, and the notes hold errors and names.
        shared = self._showing()
        steps.results[self._places] = shared.results
        for name, values in self._numbers.items():
            values[:] = shared.arrays[name]
        # The actions are stored for a replay, in case the worker dies later in the episode.
        for index in moving:
            if index in steps.failures:
                self._is_sound = False
                self.held.discard(index)
                self._played.pop(index, None)
                if not self.held:  # An environment that raised may have left the process in any state.
                    self.close()
            elif self._played:
                self._played[index].actions.append(self._asked[0])

    def _go_on(self, error: WorkerError, moving: Sequence[int], steps: SlotSteps) -> None:
        """Repeat the steps after the process died or did not answer in one of them."""
        # After steps made ahead no env slot is at fault yet: only the requested steps are repeated.
        steps.failures.update(dict.fromkeys(moving, first_line(error)))
        actions, asked = self._asked
        playing = [
            index for index, left in zip(self.indices, self.steps_left(), strict=True) if left or index in moving
        ]
        while True:
            if self._num_ahead == 0:
                failed = self._moving(playing)
                playing.remove(failed)
                self._played.pop(failed, None)
                asked[failed - self.indices[0]] = REST
            self._num_ahead = 0
            self.close()
            if not playing:
                return
            try:
                self._start_again(playing, ())
                others = [index for index in playing if asked[index - self.indices[0]] != REST]
                self._num_asked = len(others)
                again = replace(steps, failures={})
                if others:
                    self._ask_steps(actions, asked)
                    self._take_steps(others, again)
            except WorkerError as error_again:
                # Another env slot kills the process too: each round drops one.
                steps.failures[self._moving(playing)] = first_line(error_again)
            except (ArenaError, RequestError) as refusal:
                _LOG.warning("'%s' failed in env slots %s: %s", self._source.name, playing, refusal)
                steps.failures.update((index, first_line(error)) for index in playing if index not in moving)
                self.close()
                return
            else:
                for index in others:
                    del steps.failures[index]
                steps.failures.update(again.failures)
                return

    def _moving(self, indices: Collection[int]) -> int:
        """Return the env slot of ``indices`` that moved last, the first if none did."""
        moving = NO_SLOT if self._shared is None else self.indices[0] + int(self._shared.moving[0])
        return moving if moving in indices else next(iter(indices))

    def _start_again(self, playing: Iterable[int], starting: Iterable[int]) -> None:
        """Restart the process, and replay the episodes of ``playing``; ``starting`` get an environment only."""
        # ArenaError: a replay differs, or an environment cannot be made. RequestError: an environment raises.
        # WorkerError: the new process fails too.
        playing = sorted(playing)
        self.close()
        self.begin_making(sorted({*playing, *starting}))
        self.finish_making()
        for index in playing:
            played = self._played[index]
            self._ask_resets({index: (played.reset, False)})
            self._receive(self._options.start_timeout_s)
            slot, asked = index - self.indices[0], np.full(len(self.indices), REST, np.uint8)
            asked[slot] = MOVE
            for actions in played.actions:
                self._ask_steps(actions, asked)
                self._receive(self._options.step_timeout_s)
            again = self._showing().arrays
            for name, values in self._numbers.items():
                if not np.array_equal(again[name][slot], values[slot], equal_nan=True):
                    raise ArenaError(f"the episode in env slot {index} does not repeat itself")

    def _started(self, begun: WorkerProcess | None = None) -> WorkerProcess:
        """Return a spare process that has run such environments, else ``begun``, else a new one."""
        spare = None if self._source.code is None else taken_worker(self._source.served_by(self._options))
        if spare and begun:
            begun.close()
        return spare or begun or WorkerProcess(ANSWERS, self._options.interpreter, self._options.environment_variables)

    def _showing(self) -> SharedArrays:
        if self._shared is None:
            raise RuntimeError("a worker was asked what it observes before it was made")
        return self._shared

    def _send_frame(self, frame: bytes) -> None:
        # Requests to the other workers go first; an error here is raised when the answer is due.
        if self._process is None:
            raise RuntimeError("a worker was asked before it was started")
        try:
            self._process.send_frame(frame)
        except WorkerError as error:
            self._unsent = error

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        unsent, self._unsent = self._unsent, None
        if unsent is not None or self._process is None:
            raise unsent or RuntimeError("a worker was asked before it was started")
        return self._process.receive(timeout_s)


# Hold single environments in worker processes of another interpreter, one or several env slots each.

FAMILIES: Mapping[str, type[Exception]] = {"import": ImportError, "lookup": LookupError}
"""A worker's name of an error to the error that is raised here."""


class WorkerSlots(EnvSlots):
    """Environments in worker processes, which step at the same time and share their arrays' memory."""

    steps_elsewhere = True

    def __init__(
        self, source: SlotSource, num_envs: int, options: WorkerOptions, begun: WorkerProcess | None = None
    ) -> None:
        self._source, self._options = source, options
        self.makes_steps_ahead = options.steps_per_message > 1
        # A worker answers requests in order, so a step would wait for a reset in the same worker.
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
        """Begin to start episodes in all workers at once; EnvironmentBuildError if a new environment cannot be made."""
        asked = [(worker, {index: resets[index] for index in indices}) for worker, indices in self._divided(resets)]
        for worker, part in asked:
            worker.begin_making([index for index in part if index not in worker.held])
        for worker, _ in asked:
            worker.finish_making()
        for worker, part in asked:
            worker.begin_resets(part, seen)

    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Wait for the episodes to start; ArenaError if an environment raises, or its worker dies twice or hangs."""
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
        # A copy, because a worker of several env slots stores the actions until their episodes end.
        actions, asked = moves.actions.copy(), np.full(len(moves.actions), REST, np.uint8)
        asked[moves.moving] = [MOVE_AND_LOOK if index in moves.seen else MOVE for index in moves.moving]
        self._stepping = self._divided(moves.moving)
        for worker, _ in self._stepping:
            worker.begin_steps(actions, asked, moves.planned)

    def unplanned(self, moving: Iterable[int]) -> Sequence[int]:
        """Return the env slots without a step made ahead; see `EnvSlots.unplanned`."""
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
        """Return an env slot's picture; ArenaError if the environment raises, or its worker dies or hangs."""
        try:
            return self._workers[index // self._options.envs_per_worker].render(index)
        except (RequestError, WorkerError) as error:
            raise ArenaError(f"'{self._source.name}' failed to render: {error}") from error

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return the expert's actions, computed by one worker for all env slots; ArenaError if it fails."""
        try:
            # Any worker gives the same answer; one with a reset under way would answer late.
            asked = next((worker for worker in self._workers if not worker.starting), self._workers[0])
            return asked.expert_actions(task, observations)
        except RequestError as error:
            if error.kind == "other":
                raise ArenaError(f"the expert for '{task}' failed: {error}\n{error.traceback}") from error
            raise FAMILIES[error.kind](str(error)) from error
        except WorkerError as error:
            raise ArenaError(f"the expert for '{task}' failed: {error}") from error

    def close(self) -> None:
        """Stop all workers, except those that the next environment can use."""
        for worker in self._workers:
            worker.let_go()

    def _divided(self, indices: Iterable[int]) -> list[tuple[EnvWorker, list[int]]]:
        """Group env slots by the worker that holds them."""
        by_worker: dict[int, list[int]] = {}
        for index in indices:
            by_worker.setdefault(index // self._options.envs_per_worker, []).append(index)
        return [(self._workers[number], part) for number, part in by_worker.items()]
