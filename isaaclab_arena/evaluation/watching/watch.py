"""Watch a training until its end: evaluate its checkpoints, draw the curve, score the best again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.checkpoints.finding import Checkpoint
from isaaclab_arena.evaluation.watching.best import Score, best_of, promote, scores_of
from isaaclab_arena.evaluation.watching.evaluator import Evaluator
from isaaclab_arena.evaluation.watching.job_document import OTHER_SEED
from isaaclab_arena.evaluation.watching.learning_curve import points_of, write_curve
from isaaclab_arena.evaluation.watching.ledger import Ledger
from isaaclab_arena.evaluation.watching.point import Point
from isaaclab_arena.evaluation.watching.watcher import Evaluate, Pass, Verdict, Watched, Watcher
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
    """

    watched: Watched
    directory: Path
    once: bool = False
    stop_file: Path | None = None
    promote: Path | None = None
    bar: float | None = None


def watch(
    settings: WatchSettings,
    evaluate: Evaluate,
    evaluate_again: Evaluate,
    *,
    say: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch a training to its end and return the exit code.

    Args:
        settings: How.
        evaluate: Evaluates one checkpoint.
        evaluate_again: The same in episodes by which nothing was chosen.
        say: Shows a line to the user.
        sleep: Waits [s].

    Returns:
        0 if every checkpoint was evaluated, 1 if not, 2 if the job file fits none, 130 if interrupted.
    """
    ledger = Ledger(settings.directory)
    watcher = Watcher(watched=settings.watched, ledger=ledger, evaluate=evaluate)
    points: dict[int, list[Point]] = {}
    while True:
        done = watcher.one_pass()
        if done in _ENDS:
            return _ENDS[done]
        if _read_new(watcher, points, say):
            _reach_bar(settings, ledger, watcher, points, say)
        is_stopped = settings.stop_file is not None and settings.stop_file.exists()
        if is_stopped or done is Pass.REACHED_END or (settings.once and done is Pass.NOTHING_TO_DO):
            break
        if done is Pass.NOTHING_TO_DO:
            sleep(settings.watched.poll_s)
    if not _scored_again(watcher, points, evaluate_again, say):
        return INTERRUPTED
    for record in watcher.unfinished():
        say(f"step {record.step} was not evaluated: {record.reason or 'its evaluation did not end'}")
    return 1 if watcher.unfinished() else 0


def evaluators(evaluator: Evaluator) -> tuple[Evaluator, Evaluator]:
    """Return what evaluates a watch's checkpoints, and what scores the best one on other episodes."""
    return evaluator, replace(evaluator, seed_offset=OTHER_SEED)


def _read_new(watcher: Watcher, points: dict[int, list[Point]], say: Callable[[str], None]) -> bool:
    """Read what was evaluated since, by others too, and write the curve; returns whether there was anything."""
    new = [record.step for record in watcher.done() if record.step not in points]
    for step in new:
        points[step] = points_of(watcher.ledger.run_directory(step), step)
    if not new:
        return False
    write_curve(watcher.ledger.directory, _together(points))
    for step, score in scores_of(_together(points)).items():
        if step in new:
            say(f"step {step}: {_in_words(score)}")
    return True


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
    jobs = list(dict.fromkeys(point.job for point in _together(points)))
    for score in scores_of(_together(points)).values():
        if score.interval.low < settings.bar:
            continue
        if settings.promote is not None and Path(records[score.step].path).exists():
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
    say: Callable[[str], None],
) -> bool:
    """Score the best checkpoint in episodes by which it was not chosen; returns whether nobody interrupted it."""
    ledger = watcher.ledger
    records = {record.step: record for record in watcher.done()}
    best = best_of(scores_of(_together(points)))
    if best is None or not Path(records[best.step].path).exists():
        return True
    checkpoint = Checkpoint(step=best.step, path=Path(records[best.step].path))
    directory = ledger.directory / f"best_step_{best.step}"
    with ledger.held(directory.name) as is_mine:
        if not is_mine:
            say(f"the best is step {best.step}: {_in_words(best)}; another watcher scores it again")
            return True
        outcome = evaluate_again(checkpoint, directory)
    if outcome.verdict is Verdict.INTERRUPTED:
        return False
    say(f"the best is step {best.step}: {_in_words(best)} in the episodes that it was chosen by")
    again = scores_of(points_of(directory, best.step)).get(best.step) if outcome.verdict is Verdict.DONE else None
    say(f"  in others: {_in_words(again)}" if again else f"  in others it could not be scored: {outcome.reason}")
    return True


def _in_words(score: Score) -> str:
    low, high = 100 * score.interval.low, 100 * score.interval.high
    return f"{100 * score.success_rate:.1f} % [{low:.1f}, {high:.1f}] of {score.scored} episodes"
