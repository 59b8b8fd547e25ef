"""The single environments behind a batch, in workers or in this process: begun, waited for, and started again."""

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from isaaclab_arena import workers
from isaaclab_arena.environments.gym.worker import answers
from isaaclab_arena.environments.gym.worker.env_slot import others_kept
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, first_line
from isaaclab_arena.workers import program

ANSWERS = Path(__file__).parent / "worker" / "answers.py"  # the program of workers that hold env slots

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SlotSource:
    """The recipe for a single environment."""

    kind: str  # key of `worker.answers.SOURCES`
    name: str  # its name in that source
    make_kwargs: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments for its maker
    max_episode_length: int | None = None  # steps until truncation; None for its own limit
    info_keys: tuple[str, ...] = ()  # wanted entries of info
    instruction_key: str | None = None  # holder of an episode's instruction; see `EnvSlot`
    checks_ranges: bool = True  # numbers beyond their space's bounds are errors
    # Identifies the loaded code if its environments leave no other traces in a process. Workers then also serve the
    # next source with the same code. None if they may leave traces.
    code: str | None = None

    def request(self, what: str) -> dict[str, Any]:
        """Return the request to ``find`` or ``make`` such an environment, as plain JSON values."""
        return {"request": what, **vars(self)}


SlotReset: TypeAlias = Mapping[str, Any]
"""The ``seed`` and ``options`` of a reset, as plain JSON values; None are the options of most environments."""

SlotWords: TypeAlias = Mapping[str, Any]
"""The result of a reset besides the observation: ``instruction``, ``info`` and ``error``; see `EnvSlot.reset`."""


@dataclass(frozen=True, kw_only=True)
class SlotSteps:
    """The results of one step; entries of env slots that did not move, or failed, have no meaning."""

    results: np.ndarray  # (num_envs, num_results), float64; see `SharedArrays`
    info_keys: Sequence[str]  # names of the entries of info, in order
    # env slot -> all names in the info of an episode's last step, where that lacks a key
    info_names: dict[int, Sequence[str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)  # env slot -> its error, in one line

    @property
    def rewards(self) -> np.ndarray:
        """Reward of each env slot. Shape: (num_envs,), float64."""
        return self.results[:, answers.REWARD]

    @property
    def terminated(self) -> np.ndarray:
        """Env slots whose episode terminated. Shape: (num_envs,), bool."""
        return self.results[:, answers.TERMINATED] != 0.0

    @property
    def truncated(self) -> np.ndarray:
        """Env slots whose episode was truncated. Shape: (num_envs,), bool."""
        return self.results[:, answers.TRUNCATED] != 0.0

    def entry(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mask of env slots whose ``info`` has an entry, and its values. Shapes: (num_envs,)."""
        column = answers.FIRST_ENTRY + 2 * self.info_keys.index(key)
        return self.results[:, column] != 0.0, self.results[:, column + 1]


@dataclass
class Failures:
    """Logs failures of the single environments of one source: each traceback once, then its count."""

    name: str  # of the source
    _times: Counter[str] = field(default_factory=Counter)

    def tell(self, where: str, details: str) -> None:
        """Log a failure at ``where``; a repeated one takes one line, as a warning at each power of ten."""
        before, newline, message = details.rstrip().rpartition("\n")
        # Messages that differ in numbers only count as equal.
        like = before + newline + re.sub(r"\d+", "#", message)
        self._times[like] += 1
        times = self._times[like]
        if times == 1:
            _LOG.warning("'%s' failed in %s: %s", self.name, where, details)
        else:
            level = logging.WARNING if str(times).strip("0") == "1" else logging.DEBUG
            _LOG.log(level, "'%s' failed in %s as before, %d times by now: %s", self.name, where, times, message)


class ThisProcess:
    """Answers like a `WorkerProcess`, in this process. An error of a request is raised as it is."""

    def __init__(self) -> None:
        self._memory_file, self.pid = workers.memory_file(), os.getpid()
        self.memory = self._memory_file.fileno()
        self._answers = answers.Answers(self.memory, program.told, alone=False)
        self._asked: tuple[Mapping[str, Any], Mapping[str, np.ndarray]] = {}, {}

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Keep a request for `receive`."""
        self._asked = message, arrays or {}

    @others_kept()
    def receive(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Answer the request."""
        del timeout_s
        message, arrays = self._asked
        return self._answers.answer(dict(message), dict(arrays))

    def close(self) -> None:
        """Close the environments."""
        with self._memory_file:
            self._answers.close()


class EnvWorker:
    """A worker and its env slots; it starts when the first of them is made."""

    def __init__(
        self, source: SlotSource, options: workers.WorkerOptions | None, failures: Failures, indices: range
    ) -> None:
        # If the process dies in a step, only the env slot that was moving has failed; a new process continues the
        # others from there. ``options`` is None for this process.
        self.indices, self._failures = indices, failures
        self.places = slice(indices.start, indices.stop)  # of its env slots in arrays of all
        self._source, self._is_here, self._options = source, options is None, options or workers.WorkerOptions()
        self._which: Hashable = None  # workers of equal keys can replace each other
        if source.code is not None and options is not None:
            variables = tuple(sorted(options.environment_variables.items()))
            self._which = source.kind, source.code, options.interpreter, variables
        self.process: workers.WorkerProcess | ThisProcess | None = None
        self.description: Mapping[str, Any] = {}  # of its environments; see `EnvSlot.description`
        self.shared: Any = None  # `SharedArrays`, once the process has started
        self.numbers: dict[str, np.ndarray] = {}  # last observations without pictures: its part of `EnvSlots.numbers`
        # Of each env slot, its episode for a replay if the worker dies because of another: the reset, and the actions
        # of each step since, for all env slots of the worker, each (num_slots, action_dim).
        self._played: dict[int, tuple[SlotReset, list[np.ndarray]]] = {}
        self.starting: dict[int, tuple[SlotReset, bool]] = {}  # resets under way; True: with pictures
        self._asked: tuple[np.ndarray, np.ndarray] = np.zeros(0), np.zeros(0)
        self._timeout_s = 0.0  # of the steps under way
        self._is_sound = True

    def begin_start(self) -> workers.WorkerProcess | ThisProcess:
        """Start the process, with an environment in each env slot; in a later one they are made at their resets."""
        command = ANSWERS, self._options.interpreter, self._options.environment_variables
        try:
            if self._is_here:
                self.process = ThisProcess()
            else:
                # A spare process has run such environments. One that has found this environment, and no other, has its
                # imports loaded.
                finder = workers.which_worker(*command), self._source.request("find")
                self.process = (
                    workers.taken_worker(self._which)
                    or workers.taken_worker(*finder)
                    or workers.WorkerProcess(*command)
                )
        except workers.WorkerError as error:
            raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}") from error
        num_slots = len(self.indices)
        sizes = {"num_slots": num_slots, "num_made": 0 if self.description else num_slots}
        self.process.send({**self._source.request("make"), **sizes})
        return self.process

    def finish_start(self) -> None:
        """Wait for the process to start, EnvironmentBuildError if an environment cannot be made."""
        num_slots = len(self.indices)
        try:
            description, _ = self._started.receive(self._options.start_timeout_s * num_slots)
        except (workers.RequestError, workers.WorkerError) as error:
            raise EnvironmentBuildError(f"'{self._source.name}' cannot be made: {error}{error.details}") from error
        self.description = self.description or description
        self.shared = answers.SharedArrays(self._started.memory, self.description, num_slots)

    def ask_resets(self, starting: Mapping[int, tuple[SlotReset, bool]]) -> None:
        """Request new episodes; True: with pictures."""
        starts, pictures = ([*each] for each in zip(*starting.values(), strict=True))
        told = {"slots": self._slots(starting), "starts": starts, "pictures": pictures}
        self._started.send({"request": "reset", **told})

    def finish_resets(self) -> dict[int, SlotWords]:
        """Return the results of the resets; RequestError if an environment raises, WorkerError if the worker fails."""
        starting, self.starting = self.starting, {}
        timeout_s = self._options.start_timeout_s * len(starting)
        try:
            message, _ = self._started.receive(timeout_s)
        except workers.WorkerError as error:
            if not error.died:
                raise
            # A process that died between two episodes is replaced without a failed episode.
            self._start_again(self._played.keys() - starting.keys())
            self.ask_resets(starting)
            message, _ = self._started.receive(timeout_s)
        self._take_numbers(starting)
        self._played.update((index, (reset, [])) for index, (reset, _) in starting.items())
        return dict(zip(starting, message["starts"], strict=True))

    def begin_steps(self, actions: np.ndarray, asked: np.ndarray) -> None:
        """Request a step of this worker's env slots."""
        # Arrays cover all env slots: ``actions`` (num_envs, action_dim), float32, which must not change any more;
        # ``asked`` (num_envs,), uint8, as in `SharedArrays.asked`.
        self._asked = actions[self.places], asked[self.places]
        self._ask_steps(*self._asked)

    def finish_steps(self, moving: Sequence[int], steps: SlotSteps) -> None:
        """Write the results of the requested steps of ``moving`` into ``steps``, which covers all env slots."""
        try:
            self._take_steps(moving, steps)
        except workers.WorkerError as error:
            self._failures.tell(f"env slots {[*moving]}", str(error))
            self._go_on(error, moving, steps)

    def asked(
        self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of the answer to a request."""
        self._started.send(message, arrays)
        return self._started.receive(self._options.step_timeout_s)[1]

    def let_go(self) -> None:
        """Close the environments, and keep the process as a spare if it is sound and its code allows it."""
        is_free = self._is_sound and not self.starting and self._which is not None
        if is_free and isinstance(self.process, workers.WorkerProcess):
            try:
                if workers.spare_worker(self._which, self.process, self._options.step_timeout_s):
                    self.process = None
            except (workers.RequestError, workers.WorkerError) as error:
                _LOG.info("a worker of '%s' stops, as it could not close: %s", self._source.name, first_line(error))
        self.close()

    def close(self) -> None:
        """Stop the process, if there is one."""
        self.starting, self.shared, self._is_sound = {}, None, True
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def _ask_steps(self, actions: np.ndarray, asked: np.ndarray) -> None:
        self._timeout_s = self._options.step_timeout_s * int(np.count_nonzero(asked))
        self.shared.actions[:], self.shared.asked[:] = actions, asked
        self._started.send({})

    def _take_steps(self, moving: Sequence[int], steps: SlotSteps) -> None:
        notes, _ = self._started.receive(self._timeout_s)
        for slot, note in notes.items():
            index = self.indices[int(slot)]
            if "error" in note:
                self._failures.tell(f"env slot {index}", note["traceback"])
                steps.failures[index] = first_line(note["error"])
            else:
                steps.info_names[index] = note["info_names"]
        # The shared memory holds the numbers, and the notes hold errors and names.
        steps.results[self.places] = self.shared.results
        self._take_numbers(moving)
        # The actions are stored for a replay, in case the worker dies later in the episode.
        for index in moving:
            if index in steps.failures:
                self._is_sound = False
                self._played.pop(index, None)
                if not self._played:  # An environment that raised may have left the process in any state.
                    self.close()
            else:
                self._played[index][1].append(self._asked[0])

    def _go_on(self, error: workers.WorkerError, moving: Sequence[int], steps: SlotSteps) -> None:
        """Repeat the steps after the process died or did not answer in one of them."""
        steps.failures.update(dict.fromkeys(moving, first_line(error)))
        actions, asked = self._asked
        playing = [*moving]
        while True:
            # The env slot that was moving has failed, and rests from here on.
            failed = self._moving(playing)
            playing.remove(failed)
            self._played.pop(failed, None)
            asked[failed - self.indices[0]] = answers.REST
            self.close()
            if not playing:
                return
            try:
                self._start_again(playing)
                again = replace(steps, failures={})
                self._ask_steps(actions, asked)
                self._take_steps(playing, again)
            except workers.WorkerError as error_again:
                # Another env slot kills the process too: each round drops one.
                steps.failures[self._moving(playing)] = first_line(error_again)
            except (ArenaError, workers.RequestError) as refusal:
                _LOG.warning("'%s' failed in env slots %s: %s", self._source.name, playing, refusal)
                self.close()
                return
            else:
                for index in playing:
                    del steps.failures[index]
                steps.failures.update(again.failures)
                return

    def _moving(self, indices: Collection[int]) -> int:
        """Return the env slot of ``indices`` that moved last, the first if none did."""
        moving = answers.NO_SLOT if self.shared is None else self.indices[0] + int(self.shared.moving[0])
        return moving if moving in indices else next(iter(indices))

    def _start_again(self, playing: Iterable[int]) -> None:
        """Restart the process, and replay the episodes of ``playing``."""
        # ArenaError: a replay differs, or an environment cannot be made. RequestError: an environment raises.
        # WorkerError: the new process fails too.
        self.close()
        for index in sorted(playing):
            reset, played = self._played[index]
            self.ask_resets({index: (reset, False)})
            self._started.receive(self._options.start_timeout_s)
            slot, asked = index - self.indices[0], np.full(len(self.indices), answers.REST, np.uint8)
            asked[slot] = answers.MOVE
            for actions in played:
                self._ask_steps(actions, asked)
                self._started.receive(self._timeout_s)
            for name, values in self.numbers.items():
                if not np.array_equal(self.shared.arrays[name][slot], values[slot], equal_nan=True):
                    raise ArenaError(f"the episode in env slot {index} does not repeat itself")

    def _slots(self, indices: Iterable[int]) -> list[int]:
        """Return the worker's own numbers of env slots."""
        return [index - self.indices[0] for index in indices]

    def _take_numbers(self, indices: Iterable[int]) -> None:
        """Take over the observations of env slots that have moved; the shared memory has no others."""
        slots = self._slots(indices)
        for name, values in self.numbers.items():
            values[slots] = self.shared.arrays[name][slots]

    @property
    def _started(self) -> workers.WorkerProcess | ThisProcess:
        """The process, which is started if it does not run."""
        if self.process is not None:
            return self.process
        process = self.begin_start()
        self.finish_start()
        return process


class EnvSlots:
    """Single environments, each in an env slot of the batch; a failed one is made anew at its next reset.

    They are in worker processes, which step at the same time and share their arrays' memory; without ``options`` in
    this process, one after the other.
    """

    def __init__(self, source: SlotSource, num_envs: int, options: workers.WorkerOptions | None) -> None:
        self.steps_elsewhere = options is not None  # other processes make the steps
        self._source, self._size = source, options.envs_per_worker if options else num_envs
        # Steps of other env slots before a reset is waited for. A worker answers requests in order, so a step would
        # wait for a reset in the same worker.
        self.steps_while_starting = options.steps_while_starting if options and self._size == 1 else 0
        self._stepping: list[tuple[EnvWorker, list[int]]] = []
        chunks = [range(first, min(first + self._size, num_envs)) for first in range(0, num_envs, self._size)]
        failures = Failures(source.name)
        self.workers = [EnvWorker(source, options, failures, chunk) for chunk in chunks]
        try:
            for worker in self.workers:
                worker.begin_start()
            # The other kept workers have answered all questions.
            workers.stop_kept_workers(ANSWERS)
            for worker in self.workers:
                worker.finish_start()
        except ArenaError:
            self.close()
            raise
        self.num_envs, self.description = num_envs, self.workers[0].description
        # Last observations without pictures, by term, each (num_envs, *shape), float32. Resets and steps overwrite
        # them.
        self.numbers = {
            name: np.zeros((num_envs, *term["shape"]), np.float32)
            for name, term in self.description["observation"].items()
            if not term["image"]
        }
        for worker in self.workers:
            worker.numbers = {name: values[worker.places] for name, values in self.numbers.items()}

    def reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> dict[int, SlotWords]:
        """Start episodes; see `begin_reset` and `finish_reset`."""
        self.begin_reset(resets, seen)
        return self.finish_reset(list(resets))

    def begin_reset(self, resets: Mapping[int, SlotReset], seen: Container[int]) -> None:
        """Begin to start episodes in all workers at once; ``seen`` are the env slots whose pictures are wanted."""
        # EnvironmentBuildError: a new process cannot be started.
        for worker, indices in self._divided(resets):
            worker.starting = {index: (resets[index], index in seen) for index in indices}
            worker.ask_resets(worker.starting)

    def finish_reset(self, indices: Sequence[int]) -> dict[int, SlotWords]:
        """Wait for the episodes to start; ArenaError if an environment raises, or its worker dies twice or hangs."""
        words: dict[int, SlotWords] = {}
        try:
            for worker, _ in self._divided(indices):
                words.update(worker.finish_resets())
        except (workers.RequestError, workers.WorkerError) as error:
            raise ArenaError(f"'{self._source.name}' failed to reset: {error}{error.details}") from error
        return words

    def step(self, actions: np.ndarray, moving: Sequence[int], seen: Container[int] = ()) -> SlotSteps:
        """Make one step in some env slots; see `begin_step`."""
        self.begin_step(actions, moving, seen)
        return self.finish_step()

    def begin_step(self, actions: np.ndarray, moving: Sequence[int], seen: Container[int] = ()) -> None:
        """Begin a step of the env slots ``moving`` in all workers at once."""
        # ``actions`` are those of all env slots, (num_envs, action_dim), float32; ``moving`` ascends; ``seen`` are the
        # env slots whose pictures are wanted.
        # A copy, because a worker of several env slots stores the actions until their episodes end.
        actions, asked = actions.copy(), np.full(len(actions), answers.REST, np.uint8)
        asked[moving] = [answers.MOVE_AND_LOOK if index in seen else answers.MOVE for index in moving]
        self._stepping = self._divided(moving)
        for worker, _ in self._stepping:
            worker.begin_steps(actions, asked)

    def finish_step(self) -> SlotSteps:
        """Return the results of the step that was begun; an error fails only its env slot."""
        results = np.zeros((self.num_envs, answers.num_results(self.description)))
        steps = SlotSteps(results=results, info_keys=self.description["info_keys"])
        stepping, self._stepping = self._stepping, []
        for worker, part in stepping:
            worker.finish_steps(part, steps)
        return steps

    def pictures(self, index: int) -> dict[str, np.ndarray]:
        """Return the last observed pictures of an env slot, by term. They change with its next move."""
        worker = self.workers[index // self._size]
        arrays, slot = worker.shared.arrays, index - worker.indices[0]
        return {name: values[slot] for name, values in arrays.items() if name not in self.numbers}

    def render(self, index: int) -> np.ndarray:
        """Return an env slot's own picture, if the description has ``renders``. Shape: (height, width, 3), uint8."""
        # ArenaError: the environment raises in a worker, or its worker dies or hangs.
        worker = self.workers[index // self._size]
        try:
            return worker.asked({"request": "render", "slot": index - worker.indices[0]})["picture"]
        except (workers.RequestError, workers.WorkerError) as error:
            raise ArenaError(f"'{self._source.name}' failed to render: {error}") from error

    def close(self) -> None:
        """Stop all workers, except those that the next environment can use. Can be called more than once."""
        for worker in self.workers:
            worker.let_go()

    def _divided(self, indices: Iterable[int]) -> list[tuple[EnvWorker, list[int]]]:
        """Group env slots by the worker that holds them."""
        by_worker: dict[int, list[int]] = {}
        for index in indices:
            by_worker.setdefault(index // self._size, []).append(index)
        return [(self.workers[number], part) for number, part in by_worker.items()]
