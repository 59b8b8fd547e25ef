"""Watch a training until its end: evaluate its checkpoints, draw the curve and the page, score the best again."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.watching.curve import Point, Score, best_of, points_of, scores_of, write_curve
from isaaclab_arena.evaluation.watching.evaluator import OTHER_SEED, Evaluator, best_of_watch, fresh_run, score_again
from isaaclab_arena.evaluation.watching.watcher import Evaluate, Ledger, Pass, Verdict, Watched, Watcher, promote
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
    width = steps[-1] - steps[0]
    curves = []
    for job in dict.fromkeys(point.job for point in points):
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
            for point in sorted((each for each in points if each.job == job), key=lambda point: point.step)
        )
        curves.append(Curve(key="step", of=plain_text(job), over_checkpoints=True, points=rates))
    left = [record for record in Ledger(directory).all() if not record.is_done and record.reason]
    page = WatchPage(
        title=plain_text(directory.absolute().name),
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        curves=tuple(curves),
        best=_best(directory, points, links_from),
        num_checkpoints=len(steps),
        num_episodes=sum(point.scored for point in points),
        unfinished=tuple(plain_text(f"Step {record.step} was not evaluated: {record.reason}") for record in left),
    )
    write_text(path, rendered("watch.html.j2", page=page), overwrite=True)
    return path


def _best(directory: Path, points: Sequence[Point], links_from: Path | None) -> BestOnPage | None:
    chosen = best_of(scores_of(points))
    if chosen is None:
        return None
    runs = {"in the episodes that it was chosen by": (chosen, Ledger(directory).run_directory(chosen.step))}
    best = best_of_watch(directory, chosen)
    if best is not None:
        runs[best.in_words] = (best.fresh, fresh_run(directory, chosen.step))
    scores = tuple(
        ScoreOnPage(
            name=name,
            rate=score.success_rate,
            interval=score.interval,
            text=percent_text(score.success_rate, score.interval.low, score.interval.high),
            scored=f"{score.scored}{of_conditions(score.distinct, score.scored)}",
            address=_address(run) if links_from else None,
        )
        for name, (score, run) in runs.items()
    )
    return BestOnPage(step=str(chosen.step), scores=scores, is_fresh=best is not None and best.alike == 0)


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
        measures = [
            CheckpointMeasures(
                series=point.job,
                step=point.step,
                values={
                    "success_rate": point.success_rate,
                    "success_low": point.success_low,
                    "success_high": point.success_high,
                    "episodes": float(point.scored),
                    "distinct_conditions": float(point.episodes.num_distinct),
                },
            )
            for point in points
        ]
        if best is not None:
            again = "again" if best.alike else "fresh"
            fresh = {f"{again}_{name}": value for name, value in _values_of_score(best.fresh).items()}
            values = _values_of_score(best.chosen) | fresh
            measures.append(CheckpointMeasures(series=best_name, step=best.chosen.step, values=values))
        run = TrackedRun(
            run_id="",
            name=self._directory.resolve().name,
            directory=self._directory / "logs",
            settings={"training": str(self._training)},
            jobs={},
            series=jobs,
        )
        self._series.tell(run, measures)


def _values_of_score(score: Score) -> dict[str, float]:
    return {
        "success_rate": score.success_rate,
        "success_low": score.interval.low,
        "success_high": score.interval.high,
        "episodes": float(score.scored),
        "distinct_conditions": float(score.distinct),
    }


# Watch a training until its end: evaluate its checkpoints, draw the curve, score the best again.

INTERRUPTED = 130
_ENDS = {Pass.INTERRUPTED: INTERRUPTED, Pass.REFUSED: 2}


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a watch is conducted.

    Attributes:
        watched: What is watched.
        directory: Directory of the watch, which several watchers may share.
        once: Whether to end when nothing is left to do.
        stop_file: The watch ends when this file is there, and writes it when the bar is reached; None for none.
        promote: Directory of the checkpoints that reach the bar; None for none.
        bar: The share of episodes that the lower end of a checkpoint's interval has to reach; None for none.
        tracking: The services that show the curve.
    """

    watched: Watched
    directory: Path
    once: bool = False
    stop_file: Path | None = None
    promote: Path | None = None
    bar: float | None = None
    tracking: Sequence[str] = ()


def watch(
    settings: WatchSettings,
    evaluate: Evaluate,
    evaluate_again: Evaluate,
    *,
    say: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch a training to its end. Return 0 if all checkpoints were evaluated, else 1; 2 if refused; 130 if stopped."""
    # `evaluate_again` evaluates in episodes that chose no checkpoint. `say` shows a line; `sleep` waits [s].
    ledger = Ledger(settings.directory)
    watcher = Watcher(watched=settings.watched, ledger=ledger, evaluate=evaluate)
    points: dict[int, list[Point]] = {}
    tracked = TrackedCurve(settings.tracking, ledger, settings.watched.training)
    while True:
        done = watcher.one_pass()
        if done in _ENDS:
            return _ENDS[done]

        # Read the checkpoints evaluated since the last pass, by this watcher or another one of the directory.
        new = [record.step for record in watcher.done() if record.step not in points]
        for step in new:
            points[step] = points_of(ledger.run_directory(step), step)
        if new:
            for step, score in scores_of(_together(points)).items():
                if step in new:
                    say(f"step {step}: {_in_words(score)}")
            _show(ledger, points, tracked)
            _reach_bar(settings, ledger, watcher, points, say)
        is_stopped = settings.stop_file is not None and settings.stop_file.exists()
        if is_stopped or done is Pass.REACHED_END or (settings.once and done is Pass.NOTHING_TO_DO):
            break
        if done is Pass.NOTHING_TO_DO:
            sleep(settings.watched.poll_s)
    if not _scored_again(watcher, points, evaluate_again, say=say, wait=lambda: sleep(settings.watched.poll_s)):
        return INTERRUPTED
    _show(ledger, points, tracked)
    for record in watcher.unfinished():
        say(f"step {record.step} was not evaluated: {record.reason or 'its evaluation did not end'}")
    return 1 if watcher.unfinished() else 0


def evaluators(evaluator: Evaluator) -> tuple[Evaluator, Evaluator]:
    """Return the evaluator of a watch's checkpoints, and the one that scores the best in other episodes."""
    return evaluator, replace(evaluator, seed_offset=OTHER_SEED)


def _show(ledger: Ledger, points: Mapping[int, Sequence[Point]], tracked: TrackedCurve) -> None:
    if points:
        write_curve(ledger.directory, _together(points))
        write_watch_page(ledger.directory, _together(points))
        tracked.tell(_together(points))


def _together(points: Mapping[int, Sequence[Point]]) -> list[Point]:
    return [point for step in sorted(points) for point in points[step]]


def _reach_bar(
    settings: WatchSettings,
    ledger: Ledger,
    watcher: Watcher,
    points: Mapping[int, Sequence[Point]],
    say: Callable[[str], None],
) -> None:
    if settings.bar is None:
        return
    records = {record.step: record for record in watcher.done()}
    jobs = list(dict.fromkeys(point.job for point in _together(points) if not point.is_baseline))
    for score in scores_of(_together(points)).values():
        if score.interval.low < settings.bar:
            continue
        if settings.promote is not None and Path(records[score.step].path).exists():
            # Only one watcher at a time may promote, because it compares with the last promotion.
            with ledger.held("promotion") as is_mine:
                record = records[score.step]
                target = promote(settings.promote, score, record, ledger, jobs=jobs) if is_mine else None
            if target is not None:
                say(f"step {score.step} was promoted: {target}")
        if settings.stop_file is not None and not settings.stop_file.exists():
            write_text(settings.stop_file, f"step {score.step}: {_in_words(score)}\n", overwrite=True)
            say(f"step {score.step} reached the bar of {100 * settings.bar:g} %: {settings.stop_file}")


def _scored_again(
    watcher: Watcher,
    points: Mapping[int, Sequence[Point]],
    evaluate_again: Evaluate,
    *,
    say: Callable[[str], None],
    wait: Callable[[], None],
) -> bool:
    """Score the best checkpoint in episodes that did not choose it. False if interrupted."""
    ledger = watcher.ledger
    chosen = best_of(scores_of(_together(points)))
    if chosen is None:
        return True
    paths = {record.step: Path(record.path) for record in watcher.done()}
    checkpoint = Checkpoint(step=chosen.step, path=paths[chosen.step])
    outcome = score_again(ledger, chosen, checkpoint, evaluate_again, wait=wait)
    if outcome.verdict is Verdict.INTERRUPTED:
        return False
    best = best_of_watch(ledger.directory, chosen)
    say(f"the best is step {chosen.step}: {_in_words(chosen)} in the episodes that it was chosen by")
    if best is None:
        say(f"  in others it could not be scored: {outcome.reason}")
    else:
        say(f"  {best.in_words}: {_in_words(best.fresh)}")
    return True


def _in_words(score: Score) -> str:
    low, high = 100 * score.interval.low, 100 * score.interval.high
    repeats = of_conditions(score.distinct, score.scored)
    return f"{100 * score.success_rate:.1f} % [{low:.1f}, {high:.1f}] of {score.scored} episodes{repeats}"
