"""Define what a task of a robot on a floor says of an episode, and read its events from that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isaaclab_arena.environments.events.endings import last_growth, ran_out_of_time, summed_up
from isaaclab_arena.environments.events.spans import Span, ends, spans
from isaaclab_arena.interfaces.episode import SETBACKS, EpisodeEvents

BRIEF_S = 0.25
ROBOT_MOVED_M = 0.1
TURNED_RAD = 0.2
_MOST_OF_A_FAILURE = 0.9999


@dataclass(frozen=True, kw_only=True)
class FloorFacts:
    """One episode of a robot on a floor in numbers, moment after moment: its start, and then each control step's end.

    Every array has shape (moments,). What a task does not know is None, and has no event.

    Attributes:
        dt_s: Time between two moments [s].
        share: How much of what is asked for is done, 0 to 1.
        lost: Whether success has become impossible, for good, bool.
        fallen: Whether the robot, or what it balances, has fallen, bool.
        nearly: Whether the goal is met within twice its tolerances, or success has become impossible in an episode that
            never went beyond twice of them, bool.
        strayed: Whether the robot does or did something else than it was told, bool.
        met: Whether a goal that can be met again is met now, bool.
        moved: Whether the robot is elsewhere than it started, bool; None where nobody told it to move.
        off_rail: Whether it is beyond the end of its rail, bool.
    """

    dt_s: float
    share: np.ndarray
    lost: np.ndarray
    fallen: np.ndarray
    nearly: np.ndarray
    strayed: np.ndarray | None = None
    met: np.ndarray | None = None
    moved: np.ndarray | None = None
    off_rail: np.ndarray | None = None

    @property
    def brief_steps(self) -> int:
        """In how many control steps something can be seen."""
        return round(BRIEF_S / self.dt_s)


def floor_events_of(facts: FloorFacts, *, solved: bool, max_steps: int) -> EpisodeEvents:
    """Return what happened in an episode.

    Args:
        facts: The episode.
        solved: Whether it succeeded.
        max_steps: Control steps after which it would have run out of time.
    """
    progress = floor_progress_of(facts, solved=solved)
    found = _setbacks(facts)
    if not solved:
        found |= _shortfalls_on_floor(facts, progress, max_steps)
    found = {name: each for name, each in found.items() if each}
    decisive = None if solved else _decisive_on_floor(facts, found, progress)
    return summed_up(progress, found, decisive, solved=solved, max_steps=max_steps)


def floor_progress_of(facts: FloorFacts, *, solved: bool) -> np.ndarray:
    """Return how far a task had come up to each moment: never less than before, and no farther once it is lost.

    Args:
        facts: The episode.
        solved: Whether it succeeded; then its last moment has 1, and no other episode has 1 anywhere.

    Returns:
        0 to 1. Shape: (moments,), float64.
    """
    counts = np.where(facts.lost, 0.0, facts.share.astype(np.float64))
    so_far = np.maximum.accumulate(counts.clip(0, _MOST_OF_A_FAILURE))
    if solved:
        so_far[-1] = 1.0
    return so_far


def ever(holds: np.ndarray) -> np.ndarray:
    """Return whether something holds or has held before. Shape: (moments,), bool."""
    return np.logical_or.accumulate(holds)


def streak(holds: np.ndarray) -> np.ndarray:
    """Return for how many control steps something has held without a break; the start itself counts for nothing.

    Args:
        holds: Shape: (moments,), bool.

    Returns:
        Shape: (moments,), int64.
    """
    moments = np.arange(len(holds))
    if not holds.any():
        return np.zeros_like(moments)
    return moments - np.maximum.accumulate(np.where(holds, 0, moments))


def moved_from_start(pose: np.ndarray) -> np.ndarray:
    """Return whether a body is 10 cm from where it started, over the floor, or turned by 0.2 rad.

    Args:
        pose: Position [m] and orientation. Shape: (moments, 7).

    Returns:
        Shape: (moments,), bool.
    """
    x, y = (pose[:, :2] - pose[:1, :2]).T
    half_turn_cos = abs((pose[:, 3:] * pose[:1, 3:]).sum(axis=1))
    return (x * x + y * y > ROBOT_MOVED_M * ROBOT_MOVED_M) | (half_turn_cos < math.cos(TURNED_RAD / 2))


def _setbacks(facts: FloorFacts) -> dict[str, list[Span]]:
    """Return what threw an episode back."""
    brief = facts.brief_steps
    holds = {"fell_over": facts.fallen, "left_the_rail": facts.off_rail, "strayed": facts.strayed}
    found = {name: spans(each, gap=brief) for name, each in holds.items() if each is not None}
    if facts.met is not None:
        found["success_undone"] = ends(facts.met, shortest=brief, gap=1)
    return found


def _shortfalls_on_floor(facts: FloorFacts, progress: np.ndarray, max_steps: int) -> dict[str, list[Span]]:
    """Return what says how far an episode came that did not succeed."""
    at_end = [(len(progress) - 1, len(progress) - 1)]
    found = {"almost": spans(facts.nearly, gap=facts.brief_steps)}
    if facts.moved is not None and not bool(facts.moved.any()):
        found["never_moved"] = at_end
    if not bool(facts.lost[-1]) and ran_out_of_time(progress, max_steps):
        found["out_of_time_while_progressing"] = at_end
    return found


def _decisive_on_floor(facts: FloorFacts, found: Mapping[str, list[Span]], progress: np.ndarray) -> str | None:
    """Return what an onlooker would put a failure down to.

    What can be seen at the end comes first, and then the first setback after which the task came no further; nothing
    is made good where success had become impossible.
    """
    at_end = {name for name, each in found.items() if each[-1][1] >= len(progress) - facts.brief_steps}
    for name in ("fell_over", "left_the_rail", "never_moved", "almost"):
        if name in at_end:
            return name
    good_at = 0 if bool(facts.lost[-1]) else last_growth(progress)
    lasting = [
        (span[0], rank, name)
        for rank, name in enumerate(SETBACKS)
        for span in found.get(name, ())
        if span[1] >= good_at
    ]
    if lasting:
        return min(lasting)[2]
    return "out_of_time_while_progressing" if "out_of_time_while_progressing" in at_end else None
