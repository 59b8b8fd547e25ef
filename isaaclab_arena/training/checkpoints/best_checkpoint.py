"""Keeps the checkpoint of a training run that its evaluations call the best."""

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.models.run_directory import BEST_FILE, model_path
from isaaclab_arena.storage.atomic import storage_errors, write_text, written_in_place
from isaaclab_arena.training.checkpoints.closed_loop import EvaluatedJob

_LOG = logging.getLogger(__name__)
_SCORE = "model_best.json"


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a checkpoint is: the larger, the better, success first.

    Attributes:
        success_rate: Share of evaluation episodes that succeeded; -1 where success is not measured.
        merit: What tells equals apart. Where success is measured, the mean reward of a control step, because success
            may end an episode, and then the sooner, the smaller the sum; elsewhere the mean sum of rewards.
        iterations: Iterations done.
        evaluation: Hash of the jobs that it was evaluated with; scores of other jobs are not compared.
    """

    success_rate: float
    merit: float
    iterations: int
    evaluation: str

    def is_better_than(self, other: "Score | None") -> bool:
        """Whether this is better than another one, or than none, or the first of its evaluation."""
        if other is None or other.evaluation != self.evaluation:
            return True
        return (self.success_rate, self.merit) > (other.success_rate, other.merit)


def score_of(jobs: Iterable[EvaluatedJob], iterations: int, *, evaluation: str) -> Score | None:
    """Return how good a checkpoint is, None where no episode says.

    Args:
        jobs: What came of its evaluation; each counts alike.
        iterations: Iterations done.
        evaluation: Hash of the jobs.
    """
    judged = [(job, job.mean_return, job.mean_length) for job in jobs if job.mean_return is not None]
    if not judged:
        return None
    rates = [-1.0 if job.success_rate is None else job.success_rate for job, _, _ in judged]
    merits = [total if job.success_rate is None or not length else total / length for job, total, length in judged]
    return Score(
        success_rate=sum(rates) / len(rates),
        merit=sum(merits) / len(merits),
        iterations=iterations,
        evaluation=evaluation,
    )


def keep_best(directory: Path, score: Score) -> bool:
    """Keep a checkpoint as the best one if it is better than the best so far; return whether it is.

    Args:
        directory: Directory of the training run, which holds the checkpoint.
        score: How good it is.

    Raises:
        StorageError: If it cannot be written.
    """
    before = best_score(directory)
    if not score.is_better_than(before):
        return False
    if before is not None and before.evaluation != score.evaluation:
        _LOG.warning(
            "the best checkpoint so far, of iteration %d, was evaluated with other jobs; it is replaced",
            before.iterations,
        )
    with written_in_place(directory / BEST_FILE, overwrite=True) as temporary:
        shutil.copyfile(model_path(directory, score.iterations), temporary)
    write_text(directory / _SCORE, json.dumps(vars(score), indent=2) + "\n", overwrite=True)
    return True


def best_score(directory: Path) -> Score | None:
    """Return how good the best checkpoint so far is, None where there is none or nothing legible says.

    Raises:
        StorageError: If the file cannot be read.
    """
    path = directory / _SCORE
    if not path.is_file():
        return None
    with storage_errors("read", path):
        text = path.read_text(encoding="utf-8")
    try:
        return Score(**json.loads(text))
    except (ValueError, TypeError):
        _LOG.warning("%s is damaged; the next evaluation replaces it", path)
        return None
