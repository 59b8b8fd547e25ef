"""Show the learning curve of a watch in services that keep results, as one run of theirs for all checkpoints."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from isaaclab_arena.evaluation.watching.best import Score, best_of, scores_of
from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.evaluation.watching.fresh_score import best_of_watch
from isaaclab_arena.evaluation.watching.ledger import Ledger
from isaaclab_arena.tracking.series import TrackedSeries
from isaaclab_arena.tracking.tracker import CheckpointMeasures, TrackedRun, Tracker
from isaaclab_arena.tracking.trackers import open_tracker

_LOCK = "tracking"


class TrackedCurve:
    """Tells services of success by step, a series per job, and of the best checkpoint once it was scored again.

    Args:
        names: The services.
        ledger: Where the watch lies; files of services without a server are in its ``logs``.
        training: Directory of the training.
        opened: Makes a tracker of a name.
    """

    def __init__(
        self,
        names: Sequence[str],
        ledger: Ledger,
        training: Path,
        opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
    ) -> None:
        self._directory = ledger.directory
        self._training = training
        self._series = TrackedSeries(
            names,
            record=ledger.directory / "watch" / _LOCK / "told.json",
            held=partial(ledger.held, _LOCK),
            opened=opened,
        )

    def tell(self, points: Sequence[Point]) -> None:
        """Tell the services what they do not know yet.

        Args:
            points: All that is known, in any order.
        """
        jobs = sorted({point.job for point in points})
        best_name = "best"
        while best_name in jobs:
            best_name += "_"
        chosen = best_of(scores_of(points))
        best = None if chosen is None else best_of_watch(self._directory, chosen)
        measures = [_measures(point.job, point.step, _values(point)) for point in points]
        if best is not None:
            again = "again" if best.alike else "fresh"
            fresh = {f"{again}_{name}": value for name, value in _values_of_score(best.fresh).items()}
            measures.append(_measures(best_name, best.chosen.step, _values_of_score(best.chosen) | fresh))
        run = TrackedRun(
            run_id="",
            name=self._directory.resolve().name,
            directory=self._directory / "logs",
            settings={"training": str(self._training)},
            jobs={},
            series=jobs,
        )
        self._series.tell(run, measures)


def _measures(series: str, step: int, values: dict[str, float]) -> CheckpointMeasures:
    return CheckpointMeasures(series=series, step=step, values=values)


def _values(point: Point) -> dict[str, float]:
    return {
        "success_rate": point.success_rate,
        "success_low": point.success_low,
        "success_high": point.success_high,
        "episodes": float(point.scored),
        "distinct_conditions": float(point.episodes.num_distinct),
    }


def _values_of_score(score: Score) -> dict[str, float]:
    return {
        "success_rate": score.success_rate,
        "success_low": score.interval.low,
        "success_high": score.interval.high,
        "episodes": float(score.scored),
        "distinct_conditions": float(score.distinct),
    }
