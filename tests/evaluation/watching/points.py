"""What came of checkpoints, where no test asks how."""

from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.results.statistics import wilson_interval


def point(step: int, successes: int, scored: int = 100, job: str = "reach") -> Point:
    interval = wilson_interval(successes, scored)
    assert interval is not None
    return Point(
        job=job,
        step=step,
        successes=successes,
        scored=scored,
        success_rate=successes / scored,
        success_low=interval.low,
        success_high=interval.high,
    )
