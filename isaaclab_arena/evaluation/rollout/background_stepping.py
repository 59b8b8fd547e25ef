"""Control steps of one environment on a thread of their own, while the policy acts for another environment."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from isaaclab_arena.evaluation.rollout.attempts import attempt_of
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Step


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


class BackgroundStepping:
    """Makes steps on a thread of its own, and on a GPU in a stream of its own, so that neither waits for the policy.

    Only the time that `finish` waits is counted: what happens while the policy acts costs the job nothing.

    Args:
        environment: What is stepped. Nobody else uses it between `begin` and `finish`.
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
    def under_way(self) -> Future[Any]:
        """The step that was begun.

        Raises:
            RuntimeError: If none was.
        """
        if self._under_way is None:
            raise RuntimeError("no step was begun")
        return self._under_way

    def begin(self, action: torch.Tensor) -> None:
        """Begin a step. Shape of ``action``: (num_envs, action_dim)."""
        ready = None if self._stream is None else _noted(torch.cuda.current_stream(self._stream.device))
        self._under_way = self._thread.submit(self._make, action, ready)

    def finish(self) -> Step:
        """Wait for the step, and return it."""
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
