"""Measure the parts of a job's start-up until its first control step."""

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.sim.warp.kernel_times import KERNELS, KernelTimes
from isaaclab_arena.storage.run.job_reports import StartUp

_LOG = logging.getLogger(__name__)
_WORTH_SHOWING_S = 1.0
_SHORTEST_SHOWN_S = 0.005


class StartUpPart(StrEnum):
    """What a start-up consists of, in this order, beside imports and kernels."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    FIRST_RESET = "first reset"
    FIRST_STEP = "first step"


_DOING = {
    StartUpPart.ENVIRONMENT: "building the environment",
    StartUpPart.POLICY: "loading the policy",
    StartUpPart.FIRST_RESET: "starting its first episodes",
    StartUpPart.FIRST_STEP: "making its first step",
}
"""What a person is told while a part is under way."""


class StartUpClock(Observer):
    """Measures a job's start-up, from when the clock is made, and logs it once the first control step is made.

    Time that Warp's kernels take counts for them, whichever part needs them.

    Args:
        job: Name of the job.
        import_s: What the process took before; see `StartUp`.
        tell: Is told what happens now, in words, and None once the first control step is made.
        now_s: Tells the time [s].
        kernels: Tells what the process has spent on kernels so far.
    """

    sees_pictures = False

    def __init__(
        self,
        job: str,
        *,
        import_s: float | None,
        tell: Callable[[str | None], None] = lambda _: None,
        now_s: Callable[[], float] = time.perf_counter,
        kernels: Callable[[], KernelTimes] = KERNELS.times,
    ) -> None:
        self._job = job
        self._import_s = import_s
        self._now_s, self._kernels = now_s, kernels
        self._tell = tell
        self._seconds: dict[StartUpPart, float] = {}
        self._spent = KernelTimes()
        self._last = now_s(), kernels()
        tell(_DOING[StartUpPart.ENVIRONMENT])

    def finish(self, part: StartUpPart) -> None:
        """Say that a part is done, the first time at least; what has passed since the part before it is its own."""
        if part in self._seconds or StartUpPart.FIRST_STEP in self._seconds:
            return
        now_s, kernels = self._now_s(), self._kernels()
        last_s, last_kernels = self._last
        spent = kernels.since(last_kernels)
        # Threads may load kernels side by side, which together takes longer than it took.
        self._seconds[part] = max(0.0, now_s - last_s - spent.total_s)
        self._spent += spent
        self._last = now_s, kernels
        following = [later for later in list(StartUpPart) if later not in self._seconds]
        self._tell(_DOING[following[0]] if following else None)

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Take it that the first episodes have begun."""
        del environment, starts, observation
        self.finish(StartUpPart.FIRST_RESET)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Take it that the first step is made."""
        del environment, transition
        if StartUpPart.FIRST_STEP not in self._seconds:
            self.finish(StartUpPart.FIRST_STEP)
            start_up = self.start_up()
            level = logging.INFO if total_s(start_up) >= _WORTH_SHOWING_S else logging.DEBUG
            _LOG.log(level, "start-up of job '%s': %s", self._job, described(start_up))

    def start_up(self) -> StartUp:
        """Return what is known so far."""
        is_over = StartUpPart.FIRST_STEP in self._seconds
        spent = self._spent if is_over else self._spent + self._kernels().since(self._last[1])
        return StartUp(
            import_s=self._import_s,
            compile_s=spent.compile_s,
            kernel_wait_s=spent.wait_s,
            kernel_load_s=spent.load_s,
            build_environment_s=self._seconds.get(StartUpPart.ENVIRONMENT),
            build_policy_s=self._seconds.get(StartUpPart.POLICY),
            first_reset_s=self._seconds.get(StartUpPart.FIRST_RESET),
            first_step_s=self._seconds.get(StartUpPart.FIRST_STEP),
        )


def total_s(start_up: StartUp) -> float:
    """Return what a start-up took, as far as it is known [s]."""
    return sum(seconds or 0.0 for seconds in vars(start_up).values())


def described(start_up: StartUp) -> str:
    """Return a start-up in words, less what took next to nothing: ``imports 2.1 s, environment 0.8 s``."""
    parts = {
        "imports": start_up.import_s,
        "kernels compiled": start_up.compile_s,
        "kernels waited for": start_up.kernel_wait_s,
        "kernels loaded": start_up.kernel_load_s,
        "environment": start_up.build_environment_s,
        "policy": start_up.build_policy_s,
        "first reset": start_up.first_reset_s,
        "first step": start_up.first_step_s,
    }
    shown = {name: seconds for name, seconds in parts.items() if seconds is not None and seconds >= _SHORTEST_SHOWN_S}
    return ", ".join(f"{name} {seconds:.{1 if seconds >= 0.1 else 2}f} s" for name, seconds in shown.items())
