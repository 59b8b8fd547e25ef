"""Decide when a checkpoint may be loaded, while its training goes on."""

import time
from collections.abc import Callable
from pathlib import Path

from isaaclab_arena.checkpoints.completeness import Look, look_at


class Readiness:
    """Remembers how checkpoints looked before, because some formats show only by time that they are complete.

    Args:
        quiet_s: How long the files of a checkpoint whose writer leaves no sign must have stayed as they are [s].
        now: The time [s].
    """

    def __init__(self, quiet_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._quiet_s = quiet_s
        self._now = now
        self._since: dict[Path, tuple[Look, float]] = {}

    def why_not(self, path: Path) -> str | None:
        """Return why a checkpoint cannot be loaded yet, None if it can.

        Args:
            path: The file or directory that a policy loads.
        """
        look, now = look_at(path), self._now()
        before, since = self._since.get(path, (None, now))
        if before is None or before.fingerprint != look.fingerprint:
            since = now
        self._since[path] = (look, since)
        if look.missing is not None:
            return look.missing
        if look.is_finished or now - since >= self._quiet_s:
            return None
        return f"it has not changed for {now - since:.0f} s of {self._quiet_s:.0f} s"

    def fingerprint(self, path: Path) -> str:
        """Return the fingerprint of the last look at a checkpoint; see `Look`."""
        return self._since[path][0].fingerprint
