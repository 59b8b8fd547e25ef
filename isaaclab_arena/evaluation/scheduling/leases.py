"""Whether the rank that claimed a piece of work is still there to do it."""

import time
from collections.abc import Callable

from isaaclab_arena.distributed.rendezvous import RankFate, RankWatch

_BLIND_AFTER_S = 5.0


class Leases:
    """Judges, from their status files, which ranks keep what they have claimed.

    A rank keeps it while it works and beats. It loses it when it has finished, was interrupted or died, and when it
    was silent for the length of a lease. Silence is what this process has seen itself, by its own monotonic clock. A
    process that did not look for a while, because it was stopped together with the others or busy, has seen nothing
    of that time, and gives everybody a whole lease from then on.

    Args:
        watch: Looks at the ranks; used by nobody else.
        lease_s: How long a rank may be silent [s].
        clock: Monotonic time [s]; the one that ``watch`` has.
    """

    def __init__(self, watch: RankWatch, *, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._lease_s = lease_s
        self._clock = clock
        self._looked_at: float | None = None
        self._looking_since = 0.0
        self._lapsed: frozenset[int] = frozenset()

    def look(self) -> None:
        """Read the status of every rank. To be called about once a second by those who wait."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > _BLIND_AFTER_S:
            self._looking_since = now
        self._looked_at = now
        self._lapsed = frozenset(
            report.rank
            for report in self._watch.look()
            if report.fate is not RankFate.WORKING or min(report.silent_s, now - self._looking_since) >= self._lease_s
        )

    def has_lapsed(self, rank: int) -> bool:
        """Whether what the rank has claimed may be taken over, as of the last look."""
        return rank in self._lapsed
