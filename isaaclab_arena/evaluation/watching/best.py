"""Choose the best checkpoint of a watch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.results.clusters import together
from isaaclab_arena.results.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class Score:
    """How often a checkpoint succeeded, over all jobs of a watch that have checkpoints together.

    Attributes:
        step: Its step.
        success_rate: Mean of the jobs' rates: each job weighs the same.
        interval: 95 % Wilson interval of all episodes together.
        scored: Episodes whose success was measured.
        distinct: How many different conditions these started from.
    """

    step: int
    success_rate: float
    interval: Interval
    scored: int
    distinct: int


def scores_of(points: Iterable[Point]) -> dict[int, Score]:
    """Return the score of each checkpoint by its step; baselines say nothing of a checkpoint."""
    by_step: dict[int, list[Point]] = {}
    for point in points:
        if not point.is_baseline:
            by_step.setdefault(point.step, []).append(point)
    scores = {}
    for step in sorted(by_step):
        own = by_step[step]
        episodes = together([point.episodes for point in own])
        interval = episodes.wilson()
        if interval is not None:
            rate = sum(point.success_rate for point in own) / len(own)
            scores[step] = Score(
                step=step,
                success_rate=rate,
                interval=interval,
                scored=len(episodes),
                distinct=episodes.num_distinct,
            )
    return scores


def best_of(scores: Mapping[int, Score]) -> Score | None:
    """Return the highest score, of equal ones that of the earliest step; None where there is none."""
    return max(scores.values(), key=lambda score: (score.success_rate, -score.step), default=None)
