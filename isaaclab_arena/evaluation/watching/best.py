"""Choose the best checkpoint of a watch, and promote those that reach a bar."""

import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.analysis.comparison import Question
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.analysis.report import compare_directories
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.watching.curve.point import Point
from isaaclab_arena.evaluation.watching.ledger import Evaluated, Ledger
from isaaclab_arena.results.statistics import Interval, wilson_interval
from isaaclab_arena.storage.atomic import storage_errors, temporary_path, write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned

_LOG = logging.getLogger(__name__)
_PROMOTED = "promoted.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Score:
    """How often a checkpoint succeeded, over all jobs of a watch that have checkpoints together.

    Attributes:
        step: Its step.
        success_rate: Mean of the jobs' rates: each job weighs the same.
        interval: 95 % Wilson interval of all episodes together.
        scored: Episodes whose success was measured.
    """

    step: int
    success_rate: float
    interval: Interval
    scored: int


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """The checkpoint that was promoted last.

    Attributes:
        step: Its step.
        source: Where it was found.
        name: What it is called in the directory of promoted checkpoints.
        success_rate: Mean of the jobs' rates.
        success_low: Lower end of the interval of all episodes together.
        success_high: Upper end.
        compared_with: Step of the one that was promoted before, None for the first.
        verdict: What the comparison with that one says; None for the first, and where they cannot be compared.
        schema_version: Version of the format.
    """

    step: int
    source: str
    name: str
    success_rate: float
    success_low: float
    success_high: float
    compared_with: int | None = None
    verdict: str | None = None
    schema_version: int = _SCHEMA_VERSION


def scores_of(points: Iterable[Point]) -> dict[int, Score]:
    """Return the score of each checkpoint by its step; baselines say nothing of a checkpoint."""
    by_step: dict[int, list[Point]] = {}
    for point in points:
        if not point.is_baseline:
            by_step.setdefault(point.step, []).append(point)
    scores = {}
    for step in sorted(by_step):
        own = by_step[step]
        scored = sum(point.scored for point in own)
        interval = wilson_interval(sum(point.successes for point in own), scored)
        if interval is not None:
            rate = sum(point.success_rate for point in own) / len(own)
            scores[step] = Score(step=step, success_rate=rate, interval=interval, scored=scored)
    return scores


def best_of(scores: Mapping[int, Score]) -> Score | None:
    """Return the highest score, of equal ones that of the earliest step; None where there is none."""
    return max(scores.values(), key=lambda score: (score.success_rate, -score.step), default=None)


def promote(directory: Path, score: Score, record: Evaluated, ledger: Ledger, *, jobs: Iterable[str]) -> Path | None:
    """Copy a checkpoint that reached the bar, if it is better than the one promoted before; return where it lies.

    Beside the copies lie ``promoted.json``, about the last of them, and ``comparison_<step>/`` with the paired
    comparison of each with the one before.

    Args:
        directory: Directory of the promoted checkpoints.
        score: Its score.
        record: What the watch knows of it.
        ledger: Where the runs of both lie.
        jobs: The jobs of the watch that have checkpoints, as its job file calls them.

    Raises:
        StorageError: If it cannot be copied.
    """
    with storage_errors("make", directory):
        directory.mkdir(parents=True, exist_ok=True)
    told = directory / _PROMOTED
    before = read_versioned(told, Promoted, _SCHEMA_VERSION) if told.is_file() else None
    if before is not None and (before.step == score.step or before.success_rate >= score.success_rate):
        return None
    source = Path(record.path)
    target = directory / f"step_{score.step}{source.suffix}"
    _copy(source, target)
    verdict = None if before is None else _compared(directory, ledger, before.step, score.step, jobs)
    promoted = Promoted(
        step=score.step,
        source=str(source),
        name=target.name,
        success_rate=score.success_rate,
        success_low=score.interval.low,
        success_high=score.interval.high,
        compared_with=None if before is None else before.step,
        verdict=verdict,
    )
    write_text(told, json_text(promoted), overwrite=True)
    return target


def _copy(source: Path, target: Path) -> None:
    temporary = temporary_path(target)
    with storage_errors("copy", target):
        shutil.rmtree(target, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, temporary)
        else:
            shutil.copy2(source, temporary)
        temporary.replace(target)


def _compared(directory: Path, ledger: Ledger, before: int, now: int, jobs: Iterable[str]) -> str | None:
    names = {f"{job}-{before}": f"{job}-{now}" for job in jobs}
    runs = [ledger.run_directory(before), ledger.run_directory(now)]
    try:
        report = compare_directories(runs, Question(alpha=0.05, margin=None), baseline=None, names=names, partial=False)
        write_comparison(directory / f"comparison_{now}", report)
    except ArenaError as error:
        _LOG.warning("steps %d and %d cannot be compared: %s", before, now, error)
        return None
    return str(report.verdict)
