"""Run the loop of every training run: step, save, evaluate, and stop all ranks after the same step."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from isaaclab_arena.distributed.collectives import highest_of_ranks
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation, Evaluated
from isaaclab_arena.training.progress import Progress

_LOG = logging.getLogger(__name__)
_INTERRUPTED = 128


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """After which steps a training run saves, evaluates and ends.

    Attributes:
        max_steps: The run ends after so many steps.
        save_every: Steps between checkpoints. There is one after the last step and before each evaluation too.
        evaluate_every: Steps between evaluations, None for the one after the last step only.
    """

    max_steps: int
    save_every: int
    evaluate_every: int | None

    def is_last(self, num_steps: int) -> bool:
        """Whether the run ends after so many steps."""
        return num_steps == self.max_steps

    def is_saved_after(self, num_steps: int) -> bool:
        """Whether there is a checkpoint after so many steps, evaluations left aside."""
        return self.is_last(num_steps) or num_steps % self.save_every == 0

    def is_evaluated_after(self, num_steps: int) -> bool:
        """Whether there is an evaluation after so many steps, in a run that evaluates."""
        if num_steps == 0:
            return False
        return self.is_last(num_steps) or (self.evaluate_every is not None and num_steps % self.evaluate_every == 0)


class Training(Protocol):
    """One rank of one kind of training: its steps and its checkpoints."""

    @property
    def num_steps(self) -> int:
        """Steps done, the same on all ranks."""
        ...

    @property
    def evaluation_measure(self) -> str:
        """How the name of a measure begins that each evaluation has in the progress file."""
        ...

    def step(self, progress: Progress) -> None:
        """Make one step, and write its measures; every rank calls it."""

    def save(self) -> None:
        """Write the checkpoint of this step; every rank calls it."""

    def checkpoint(self, num_steps: int) -> Path:
        """Return the checkpoint after so many steps."""
        ...

    def note_evaluation(self, evaluated: Evaluated, progress: Progress, *, evaluation_s: float) -> None:
        """Write the measures of an evaluation of the newest checkpoint; only the rank that writes calls it.

        Args:
            evaluated: Its results.
            progress: Where its measures go.
            evaluation_s: How long it took [s]; 0 if it was made before this run was interrupted.
        """


class TrainingLoop:
    """Runs a training to its end, on one rank; all ranks make the same decisions after each step.

    Args:
        training: What is trained.
        schedule: After which steps it saves, evaluates and ends.
        evaluation: Evaluates checkpoints; None if nothing does.
        progress: Where measures go.
        stop_file: The run ends after the step in which any rank sees this file, as it does after its last one; None
            where there is none, for all ranks alike.
    """

    def __init__(
        self,
        training: Training,
        schedule: Schedule,
        *,
        evaluation: ClosedLoopEvaluation | None,
        progress: Progress,
        stop_file: Path | None = None,
    ) -> None:
        self._training = training
        self._schedule = schedule
        self._evaluation = evaluation
        self._progress = progress
        self._stop_file = stop_file

    def run(self, interruption: Interruption) -> int:
        """Train to the end; return 0, or 128 plus the number of the signal that stopped the run.

        A signal to any rank stops all of them after the same step, with a checkpoint to go on from.

        Args:
            interruption: Whether this rank was told to stop.
        """
        return self._evaluate_if_left_out() or self._train(interruption)

    def _train(self, interruption: Interruption) -> int:
        training, schedule = self._training, self._schedule
        is_last = training.num_steps >= schedule.max_steps
        while not is_last:
            training.step(self._progress)
            is_last = schedule.is_last(training.num_steps) or self._is_told_to_end()
            is_evaluated = self._is_evaluated() or (is_last and self._evaluation is not None)
            if is_evaluated or is_last or schedule.is_saved_after(training.num_steps):
                training.save()
            code = self._evaluate() if is_evaluated else 0
            code = highest_of_ranks(code or interruption.exit_code)
            if code != 0 and (is_evaluated or not is_last):
                if not is_evaluated:
                    training.save()
                # A launcher ends the other ranks as soon as one has left, so none leaves before all have saved.
                return highest_of_ranks(code)
        return 0

    def _is_told_to_end(self) -> bool:
        """Whether any rank sees the file that ends the run, the same on all of them."""
        if self._stop_file is None or not highest_of_ranks(int(self._stop_file.exists())):
            return False
        if self._progress.is_writer:
            _LOG.info("ending after %d steps, because %s is there", self._training.num_steps, self._stop_file)
        return True

    def _is_evaluated(self) -> bool:
        return self._evaluation is not None and self._schedule.is_evaluated_after(self._training.num_steps)

    def _evaluate_if_left_out(self) -> int:
        """Complete the evaluation of the checkpoint that the run goes on from, if it was interrupted."""
        num_steps = self._training.num_steps
        if self._evaluation is None or not self._is_evaluated():
            return 0
        # All ranks look before any rank evaluates, because the evaluation writes the file that is looked at.
        if not highest_of_ranks(int(self._evaluation.is_complete(num_steps))):
            return self._evaluate()
        if self._progress.is_writer and not self._progress.has(num_steps, self._training.evaluation_measure):
            # The run was stopped between the end of the evaluation and the writing of its measures.
            self._training.note_evaluation(self._evaluation.results(num_steps), self._progress, evaluation_s=0.0)
        return 0

    def _evaluate(self) -> int:
        """Evaluate the newest checkpoint; return 0, or the exit code of an interruption, the same on all ranks."""
        if self._evaluation is None:
            return 0
        began = time.perf_counter()
        num_steps = self._training.num_steps
        evaluated = self._evaluation.run(self._training.checkpoint(num_steps), num_steps)
        interrupted = highest_of_ranks(evaluated.exit_code if evaluated.exit_code >= _INTERRUPTED else 0)
        if interrupted == 0 and self._progress.is_writer:
            duration_s = time.perf_counter() - began
            self._training.note_evaluation(evaluated, self._progress, evaluation_s=duration_s)
        return interrupted
