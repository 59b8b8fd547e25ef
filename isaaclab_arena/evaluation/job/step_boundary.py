"""What is looked at between two control steps of a job."""

from collections.abc import Callable
from dataclasses import dataclass

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import JobTimeoutError
from isaaclab_arena.evaluation.process.watchdog import Watchdog
from isaaclab_arena.evaluation.rollout.stopwatch import Stopwatch


@dataclass(frozen=True, kw_only=True)
class StepBoundary:
    """Sees to it between two steps that a job stops when it has to.

    Attributes:
        config: The job.
        stopwatch: Runs since the job was begun.
        watchdog: Is told that the job goes on.
        stop_requested: Whether the process was told to stop.
    """

    config: JobConfig
    stopwatch: Stopwatch
    watchdog: Watchdog
    stop_requested: Callable[[], bool]

    def must_stop(self) -> bool:
        """Return whether the job is to stop here; asked before every step.

        Raises:
            JobTimeoutError: If the job has taken longer than it may.
        """
        self.watchdog.step_finished()
        limit_s = self.config.timeout_s
        if limit_s is not None and self.stopwatch.elapsed_s() > limit_s:
            raise JobTimeoutError(f"job '{self.config.name}' took longer than {limit_s:g} s, its timeout_s")
        return self.stop_requested()
