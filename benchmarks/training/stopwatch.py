"""Time what learning takes within the iterations of a training."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness.timing import timed


class LearningStopwatch:
    """Counts the CPU time of an algorithm's updates.

    Args:
        algorithm: Its ``update`` is wrapped.
    """

    def __init__(self, algorithm: Any) -> None:
        self._update = algorithm.update
        self._learning_cpu_s = 0.0
        algorithm.update = self._timed_update

    def turn(self, iterate: Callable[[], object]) -> dict[str, float]:
        """Run iterations; return what they took, and ``learning_cpu_s``, their CPU time of updates alone [s]."""
        self._learning_cpu_s = 0.0
        took = timed(iterate)
        return {**vars(took), "learning_cpu_s": self._learning_cpu_s}

    def _timed_update(self) -> Any:
        began = time.process_time()
        losses = self._update()
        self._learning_cpu_s += time.process_time() - began
        return losses
