"""Watch a training until its end: evaluate its checkpoints, draw the curve, score the best again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.curve import Point, Score, best_of, points_of, scores_of, write_curve
from isaaclab_arena.evaluation.watching.evaluator import OTHER_SEED, Evaluator, best_of_watch, score_again
from isaaclab_arena.evaluation.watching.page import TrackedCurve, write_watch_page
from isaaclab_arena.evaluation.watching.watcher import Evaluate, Ledger, Pass, Verdict, Watched, Watcher, promote
from isaaclab_arena.results.rows import of_conditions
from isaaclab_arena.storage.atomic import write_text

_LOG = logging.getLogger(__name__)
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
        # Another watcher of the directory may have evaluated checkpoints too.
        if _read_new(watcher, points, say):
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
    return _exit_code(watcher, say)


def evaluators(evaluator: Evaluator) -> tuple[Evaluator, Evaluator]:
    """Return the evaluator of a watch's checkpoints, and the one that scores the best in other episodes."""
    return evaluator, replace(evaluator, seed_offset=OTHER_SEED)


def _read_new(watcher: Watcher, points: dict[int, list[Point]], say: Callable[[str], None]) -> bool:
    """Read the checkpoints evaluated since, by any watcher, and show their scores. True if there were any."""
    new = [record.step for record in watcher.done() if record.step not in points]
    for step in new:
        points[step] = points_of(watcher.ledger.run_directory(step), step)
    if not new:
        return False
    for step, score in scores_of(_together(points)).items():
        if step in new:
            say(f"step {step}: {_in_words(score)}")
    return True


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


def _exit_code(watcher: Watcher, say: Callable[[str], None]) -> int:
    for record in watcher.unfinished():
        say(f"step {record.step} was not evaluated: {record.reason or 'its evaluation did not end'}")
    return 1 if watcher.unfinished() else 0


def _in_words(score: Score) -> str:
    low, high = 100 * score.interval.low, 100 * score.interval.high
    repeats = of_conditions(score.distinct, score.scored)
    return f"{100 * score.success_rate:.1f} % [{low:.1f}, {high:.1f}] of {score.scored} episodes{repeats}"
