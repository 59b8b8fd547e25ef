"""How long queries take on this machine, as a sample of bounded size."""

from isaaclab_arena.storage.run.job_reports import MAX_QUERY_TIMES, QueryPace


class QueryTimes:
    """Keeps every query's time at first, then every second one's, and so on, so that all of a job are represented.

    Attributes:
        pace: How often the policy is asked while the world waits; None where it does not wait.
    """

    def __init__(self) -> None:
        self.pace: QueryPace | None = None
        self._kept_s: list[float] = []
        self._stride, self._number = 1, 0

    def add(self, seconds: float) -> None:
        """Count a query."""
        if self._number % self._stride == 0:
            self._kept_s.append(round(seconds, 7))
        self._number += 1
        if len(self._kept_s) > MAX_QUERY_TIMES:
            self._kept_s = self._kept_s[::2]
            self._stride *= 2

    def sample_s(self) -> tuple[float, ...]:
        """Return the times [s]."""
        return tuple(self._kept_s)
