"""Control steps of one environment on a thread or in workers, while the policy acts for another environment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for_pipes

import torch

from isaaclab_arena.evaluation.rollout.attempts import attempt_of, begins_steps
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import BeginsSteps, Environment, Step

_LONGEST_WAIT_S = 0.1


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A step that was made on another thread.

    Attributes:
        step: What came of it.
        taken_s: How long it took [s].
        rendered_s: How much of that went into pictures [s].
        done: When a GPU has done it.
    """

    step: Step
    taken_s: float
    rendered_s: float
    done: torch.cuda.Event | None


class Stepping(ABC):
    """Steps of an environment that nobody else uses between `begin` and `finish`.

    Only the time that `finish` waits is counted: what happens while the policy acts costs the job nothing.
    """

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether `finish` would return the step that was begun without waiting for it."""

    @abstractmethod
    def begin(self, action: torch.Tensor) -> None:
        """Begin a step. Shape of ``action``: (num_envs, action_dim)."""

    @abstractmethod
    def finish(self) -> Step:
        """Wait for the step, and return it."""

    @abstractmethod
    def close(self) -> None:
        """Wait for a step under way; no other one follows."""


def stepping_of(environment: Environment, stopwatch: Stopwatch) -> Stepping:
    """Return what makes steps of an environment while something else is done.

    Args:
        environment: What is stepped.
        stopwatch: Counts how long is waited.
    """
    if begins_steps(environment):
        return SteppingElsewhere(environment, stopwatch)
    return BackgroundStepping(environment, stopwatch)


def wait_for_one(steppings: Sequence[Stepping]) -> None:
    """Wait until one of some steps is done that were begun in environments of the same kind."""
    threads = [each.under_way for each in steppings if isinstance(each, BackgroundStepping)]
    if threads:
        wait_for_futures(threads, return_when=FIRST_COMPLETED)
        return
    elsewhere = [each for each in steppings if isinstance(each, SteppingElsewhere)]
    while not any(each.is_done for each in elsewhere):
        # A worker that never answers is done, too, when it is late.
        wait_for_pipes([pipe for each in elsewhere for pipe in each.unanswered], _LONGEST_WAIT_S)


class SteppingElsewhere(Stepping):
    """Has steps made by an environment's own processes, without a thread.

    Args:
        environment: What is stepped.
        stopwatch: Counts how long is waited.
    """

    def __init__(self, environment: BeginsSteps, stopwatch: Stopwatch) -> None:
        self._environment, self._stopwatch = environment, stopwatch
        self._is_under_way = False

    @property
    def unanswered(self) -> Sequence[int]:
        """What can be read when the step is done; see `BeginsSteps`."""
        return self._environment.unanswered

    @property
    def is_done(self) -> bool:
        """Whether all processes have answered; see `Stepping`."""
        return not self.unanswered

    def begin(self, action: torch.Tensor) -> None:
        """Begin a step; see `Stepping`."""
        with self._stopwatch.measure(Phase.SIMULATE):
            self._environment.begin_step(action)
        self._is_under_way = True

    def finish(self) -> Step:
        """Wait for the step; see `Stepping`."""
        self._is_under_way = False
        with self._stopwatch.measure(Phase.SIMULATE):
            return self._environment.finish_step()

    def close(self) -> None:
        """Wait for a step under way: its answer must not be taken for that of another request."""
        if self._is_under_way:
            # Whoever closes now has a reason of its own, which counts more than what becomes of this step.
            with suppress(Exception):
                self.finish()


class BackgroundStepping(Stepping):
    """Makes steps on a thread of its own, and on a GPU in a stream of its own, so that neither waits for the policy.

    Args:
        environment: What is stepped.
        stopwatch: Counts how long is waited.
    """

    def __init__(self, environment: Environment, stopwatch: Stopwatch) -> None:
        self._environment, self._attempt = environment, attempt_of(environment)
        self._stopwatch = stopwatch
        self._under_way: Future[_Made] | None = None
        is_gpu = environment.device.type == "cuda"
        self._stream = torch.cuda.Stream(environment.device) if is_gpu else None
        # Each thread has a current GPU of its own, at first the first one, which may be another rank's.
        begin = partial(torch.cuda.set_device, environment.device) if is_gpu else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulation", initializer=begin)

    @property
    def under_way(self) -> Future[_Made]:
        """The step that was begun.

        Raises:
            RuntimeError: If none was.
        """
        if self._under_way is None:
            raise RuntimeError("no step was begun")
        return self._under_way

    @property
    def is_done(self) -> bool:
        """Whether the thread has made it; see `Stepping`."""
        return self.under_way.done()

    def begin(self, action: torch.Tensor) -> None:
        """Begin a step; see `Stepping`."""
        ready = None if self._stream is None else _noted(torch.cuda.current_stream(self._stream.device))
        self._under_way = self._thread.submit(self._make, action, ready)

    def finish(self) -> Step:
        """Wait for the step; see `Stepping`."""
        under_way, self._under_way = self.under_way, None
        began_s = self._stopwatch.elapsed_s()
        made = under_way.result()
        waited_s = self._stopwatch.elapsed_s() - began_s
        render_share = made.rendered_s / made.taken_s if made.taken_s > 0 else 0.0
        self._stopwatch.add(Phase.RENDER, waited_s * render_share)
        self._stopwatch.add(Phase.SIMULATE, waited_s * (1.0 - render_share))
        if self._stream is not None and made.done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(made.done)
        return made.step

    def close(self) -> None:
        """Wait for a step under way, and end the thread."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            # Whoever closes now has a reason of its own, which counts more than what becomes of this step.
            with suppress(BaseException):
                under_way.result()
        self._thread.shutdown()

    # Whether gradients are recorded is settled for each thread anew.
    @torch.no_grad()
    def _make(self, action: torch.Tensor, ready: torch.cuda.Event | None) -> _Made:
        if self._stream is None or ready is None:
            return self._timed(action)
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            return self._timed(action)

    def _timed(self, action: torch.Tensor) -> _Made:
        began_s, rendered_s = self._stopwatch.elapsed_s(), self._environment.render_s
        step = self._attempt(action)
        return _Made(
            step=step,
            taken_s=self._stopwatch.elapsed_s() - began_s,
            rendered_s=self._environment.render_s - rendered_s,
            done=None if self._stream is None else _noted(self._stream),
        )


def _noted(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event that happens when a stream has done all that it was told so far."""
    event = torch.cuda.Event()
    stream.record_event(event)
    return event
