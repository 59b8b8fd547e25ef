"""Sum up an episode, in the same way for every kind of task."""

from collections.abc import Mapping

import numpy as np

from isaaclab_arena.environments.events.spans import Span
from isaaclab_arena.interfaces.episode import EVENTS, EpisodeEvents

GROWTH = 0.02
LATE = 0.2


def summed_up(
    progress: np.ndarray, found: Mapping[str, list[Span]], decisive: str | None, *, solved: bool, max_steps: int
) -> EpisodeEvents:
    """Return what happened in an episode.

    Args:
        progress: How far it had come up to each moment. Shape: (moments,).
        found: Event to the spans in which it happened.
        decisive: The event that a failure is put down to, None where none explains it: a failure that lasted to the
            time limit has stalled then.
        solved: Whether it succeeded.
        max_steps: Control steps after which it would have run out of time.
    """
    if not solved and decisive is None and len(progress) > max_steps:
        decisive = "stalled"
        found = {**found, decisive: [(max_steps, max_steps)]}
    seen = {name: (found[name][0][0], len(found[name])) for name in EVENTS if found.get(name)}
    return EpisodeEvents(progress=round(float(progress[-1]), 4), decisive=decisive, seen=seen)


def last_growth(progress: np.ndarray) -> int:
    """Return the moment from which on an episode came no further worth mentioning. Shape: (moments,)."""
    return int(np.argmax(progress >= progress[-1] - GROWTH))


def ran_out_of_time(progress: np.ndarray, max_steps: int) -> bool:
    """Return whether the time limit came while an episode was getting on. Shape: (moments,)."""
    last = len(progress) - 1
    return bool(last >= max_steps and progress[-1] - progress[last - round(LATE * last)] >= GROWTH)
