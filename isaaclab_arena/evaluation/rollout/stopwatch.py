"""Measure how a job's time is divided among its phases."""

import time
from enum import StrEnum
from types import TracebackType

from isaaclab_arena.interfaces.environment import Environment


class Phase(StrEnum):
    """What a job's wall time is spent on; the rest of it is idle."""

    BUILD = "build"
    SIMULATE = "simulate"
    POLICY = "policy"
    RENDER = "render"
    RECORD = "record"


class Stopwatch:
    """Adds up the seconds of each phase.

    Attributes:
        pictures_looked_at: Pictures at which a policy or an observer said that it would look.
    """

    def __init__(self) -> None:
        self.pictures_looked_at = 0
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._started = time.perf_counter()
        self._rests_since: float | None = None

    def measure(self, phase: Phase, environment: Environment | None = None) -> "_Block":
        """Count the time inside the ``with`` block towards a phase. Blocks must not be nested.

        Args:
            phase: The phase.
            environment: What it renders within the block counts as `Phase.RENDER` instead.
        """
        return _Block(self, phase, environment)

    def add(self, phase: Phase, seconds: float) -> None:
        """Count seconds towards a phase that were measured elsewhere."""
        self._seconds[phase] += seconds

    def seconds(self, phase: Phase) -> float:
        """Return the seconds counted towards ``phase``."""
        return self._seconds[phase]

    def rest(self) -> None:
        """Stand still until `go_on`, because others have their turn."""
        self._rests_since = time.perf_counter()

    def go_on(self) -> None:
        """Run again, as if no time had passed."""
        if self._rests_since is not None:
            self._started += time.perf_counter() - self._rests_since
            self._rests_since = None

    def elapsed_s(self) -> float:
        """Return the seconds since the stopwatch was made in which it did not rest."""
        return (self._rests_since or time.perf_counter()) - self._started

    def idle_s(self) -> float:
        """Return the seconds of `elapsed_s` that belong to no phase."""
        return max(0.0, self.elapsed_s() - sum(self._seconds.values()))


class _Block:
    """A ``with`` block whose time is counted. A step has several, and a generator for each takes three times as long.

    Args:
        stopwatch: What counts.
        phase: See `Stopwatch.measure`.
        environment: The same.
    """

    def __init__(self, stopwatch: Stopwatch, phase: Phase, environment: Environment | None) -> None:
        self._stopwatch, self._phase, self._environment = stopwatch, phase, environment

    def __enter__(self) -> None:
        self._rendered_s = 0.0 if self._environment is None else self._environment.render_s
        self._began_s = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        taken_s = time.perf_counter() - self._began_s
        if self._environment is not None:
            rendered_s = self._environment.render_s - self._rendered_s
            self._stopwatch.add(Phase.RENDER, rendered_s)
            taken_s -= rendered_s
        self._stopwatch.add(self._phase, taken_s)
