"""The page of a watch, and its curve in services that keep results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.watching.curve import Point, Score, best_of, points_of, scores_of
from isaaclab_arena.evaluation.watching.evaluator import best_of_watch, fresh_run
from isaaclab_arena.evaluation.watching.watcher import Ledger
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.groups import Curve, PooledRate
from isaaclab_arena.report.jobs import percent_text
from isaaclab_arena.report.writing import REPORT_FILE, rendered
from isaaclab_arena.results.rows import of_conditions
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.tracking.trackers import CheckpointMeasures, TrackedRun, TrackedSeries, Tracker, open_tracker

# Write the page of a watch: success of every checkpoint, linked to its run, and both scores of the best.


@dataclass(frozen=True, kw_only=True)
class ScoreOnPage:
    """A score of the best checkpoint."""

    name: str  # the episodes, in words
    rate: float  # 0 to 1
    interval: Interval
    text: str  # rate and interval
    scored: str  # number of episodes, and of their conditions if some repeat
    address: str | None  # page of their run, if any


@dataclass(frozen=True, kw_only=True)
class BestOnPage:
    """The best checkpoint."""

    step: str
    scores: tuple[ScoreOnPage, ...]  # the second one once it was scored again
    is_fresh: bool  # no episode of the second started as one that chose it


@dataclass(frozen=True, kw_only=True)
class WatchPage:
    """The content of the page of a watch."""

    title: str
    made_at: str  # UTC
    curves: tuple[Curve, ...]  # success by step, one curve for each job
    best: BestOnPage | None  # None if no success was measured
    num_checkpoints: int
    num_episodes: int  # with measured success
    unfinished: tuple[str, ...]  # checkpoints without an evaluation, with the reason


def is_watch(directory: Path) -> bool:
    """Whether a directory is that of a watch."""
    return any(directory.glob("watch/step_*/evaluated.json"))


def points_of_watch(directory: Path) -> list[Point]:
    """Return the success of each job of every evaluated checkpoint, in the order of their steps."""
    ledger = Ledger(directory)
    done = [record.step for record in ledger.all() if record.is_done]
    return [point for step in done for point in points_of(ledger.run_directory(step), step)]


def write_watch_page(directory: Path, points: Sequence[Point], output: Path | None = None) -> Path:
    """Write the page of a watch over an earlier one; `ConfigError` if no checkpoint was evaluated."""
    if not points:
        raise ConfigError(Problem("no checkpoint of this watch has been evaluated yet", file=str(directory)))
    path = output or directory / REPORT_FILE
    # Links to the runs' pages are relative, so only a page in the directory of the watch has them.
    links_from = directory if path.resolve().parent == directory.resolve() else None
    steps = sorted({point.step for point in points})
    left = [record for record in Ledger(directory).all() if not record.is_done and record.reason]
    page = WatchPage(
        title=plain_text(directory.absolute().name),
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        curves=tuple(
            _curve(job, [point for point in points if point.job == job], steps, links_from)
            for job in dict.fromkeys(point.job for point in points)
        ),
        best=_best(directory, points, links_from),
        num_checkpoints=len(steps),
        num_episodes=sum(point.scored for point in points),
        unfinished=tuple(plain_text(f"Step {record.step} was not evaluated: {record.reason}") for record in left),
    )
    write_text(path, rendered("watch.html.j2", page=page), overwrite=True)
    return path


def _curve(job: str, points: Sequence[Point], steps: Sequence[int], links_from: Path | None) -> Curve:
    width = steps[-1] - steps[0]
    rates = tuple(
        PooledRate(
            label=str(point.step),
            x=(point.step - steps[0]) / width if width else 0.5,
            successes=point.successes,
            scored=point.scored,
            distinct=point.episodes.num_distinct,
            rate=point.success_rate,
            interval=Interval(low=point.success_low, high=point.success_high),
            jobs=1,
            address=None if links_from is None else _address(Ledger(links_from).run_directory(point.step)),
        )
        for point in sorted(points, key=lambda point: point.step)
    )
    return Curve(key="step", of=plain_text(job), over_checkpoints=True, points=rates)


def _best(directory: Path, points: Sequence[Point], links_from: Path | None) -> BestOnPage | None:
    chosen = best_of(scores_of(points))
    if chosen is None:
        return None
    runs = {"in the episodes that it was chosen by": (chosen, Ledger(directory).run_directory(chosen.step))}
    best = best_of_watch(directory, chosen)
    if best is not None:
        runs[best.in_words] = (best.fresh, fresh_run(directory, chosen.step))
    scores = (_score(name, score, run if links_from else None) for name, (score, run) in runs.items())
    is_fresh = best is not None and best.alike == 0
    return BestOnPage(step=str(chosen.step), scores=tuple(scores), is_fresh=is_fresh)


def _score(name: str, score: Score, run: Path | None) -> ScoreOnPage:
    return ScoreOnPage(
        name=name,
        rate=score.success_rate,
        interval=score.interval,
        text=percent_text(score.success_rate, score.interval.low, score.interval.high),
        scored=f"{score.scored}{of_conditions(score.distinct, score.scored)}",
        address=None if run is None else _address(run),
    )


def _address(run: Path) -> str | None:
    """Return the address of a run's page relative to the watch, None if the run has no page."""
    return f"{run.name}/{REPORT_FILE}" if (run / REPORT_FILE).is_file() else None


# Show the learning curve of a watch in tracking services, as one run of theirs for all checkpoints.

_LOCK = "tracking"


class TrackedCurve:
    """Sends success by step to tracking services, one series for each job, and the best checkpoint's scores."""

    def __init__(
        self,
        names: Sequence[str],
        ledger: Ledger,
        training: Path,
        opened: Callable[[str, TrackedRun], Tracker] = open_tracker,
    ) -> None:
        # Files of services without a server are in its `logs`.
        self._directory = ledger.directory
        self._training = training
        self._series = TrackedSeries(
            names,
            record=ledger.directory / "watch" / _LOCK / "told.json",
            held=partial(ledger.held, _LOCK),
            opened=opened,
        )

    def tell(self, points: Sequence[Point]) -> None:
        """Send the services the points that they do not have yet; `points` are all, in any order."""
        jobs = sorted({point.job for point in points})
        best_name = "best"
        while best_name in jobs:
            best_name += "_"
        # The best checkpoint is a series of its own, once it was scored again.
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
