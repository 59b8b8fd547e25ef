"""One rank's part of a training run, from the first sample to the last checkpoint; rank 0 alone writes."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.distributed.collectives import gather_bytes_to_rank_zero, highest_of_ranks
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.evaluation.process.interruption import Interruption, watch_for_interruption
from isaaclab_arena.logs import log_file
from isaaclab_arena.models.run_directory import model_path
from isaaclab_arena.training.checkpoints.best_checkpoint import keep_best, score_of
from isaaclab_arena.training.checkpoints.checkpoints import newest_readable, packed, read_rank_state, write_checkpoint
from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation, Evaluated
from isaaclab_arena.training.checkpoints.exporting import export_policy
from isaaclab_arena.training.learner.agent import learned_state
from isaaclab_arena.training.learner.first_weights import FirstWeights
from isaaclab_arena.training.learner.learner import Iteration, Learner
from isaaclab_arena.training.learner.synchrony import check_synchrony
from isaaclab_arena.training.logging_writer import scalar_writer
from isaaclab_arena.training.progress import Progress
from isaaclab_arena.training.reporting import (
    EVALUATION_TIME,
    Pace,
    line_of_evaluation,
    line_of_iteration,
    measures_of_evaluation,
    measures_of_iteration,
)
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.settings_files import checkpoint_infos, env_steps_of, write_settings

_LOG = logging.getLogger(__name__)
_INTERRUPTED = 128


class TrainingRun:
    """A training run as one rank lives it.

    Args:
        config: What is asked for.
        run_directory: The run's folder, which exists and is the same for all ranks.
        ranks: All ranks; their process group exists where there are several.
        learner: This rank's learning.
        evaluation: What evaluates checkpoints, None for nothing.
        command_line: What was typed.
        resume: Whether to go on from the newest checkpoint.
        began_with: The checkpoint whose weights the learner begins with, None for none.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        run_directory: Path,
        ranks: Ranks,
        learner: Learner,
        evaluation: ClosedLoopEvaluation | None,
        command_line: tuple[str, ...],
        resume: bool,
        began_with: FirstWeights | None = None,
    ) -> None:
        self._config = config
        self._folder = run_directory
        self._context = ranks.context
        self._learner = learner
        self._evaluation = evaluation
        self._command_line = command_line
        self._resume = resume
        self._began_with = began_with
        self._env_steps = 0
        # Every rank asks, so that each tells.
        self._devices = tuple(ranks.gather("device of learning", str(ranks.context.device)))
        self._simulation_devices = tuple(ranks.gather("device of simulation", str(learner.environment.device)))
        self._pace = Pace()

    def check_evaluation(self) -> None:
        """Refuse jobs that could not be evaluated, before hours of training; every rank calls it.

        Raises:
            ConfigError: With every problem of the jobs.
        """
        if self._evaluation is not None:
            self._evaluation.check(self._save_untrained)

    def _save_untrained(self, folder: Path) -> Path:
        self._write_settings(folder)
        return write_checkpoint(folder, self._learned(), [], iterations=0, kept=1)

    def execute(self) -> int:
        """Train to the end, and return the exit code: 0, or 130 or 143 if that was interrupted.

        A signal to any rank stops all of them after the same iteration, with a checkpoint to go on from.

        Raises:
            ArenaError: If training cannot go on; a checkpoint of the last iteration but one may be there.
        """
        context, learner = self._context, self._learner
        with log_file(self._folder / "logs" / f"rank{context.rank}.log", context.rank):
            self._begin()
            writer = None
            if context.is_rank_zero:
                writer = scalar_writer(self._config, self._folder, after_step=learner.iterations)
            with (
                Progress(
                    self._folder, is_writer=context.is_rank_zero, after_step=learner.iterations, writer=writer
                ) as progress,
                watch_for_interruption() as interruption,
            ):
                code = self._evaluate_if_left_out(progress) or self._train(progress, interruption)
            if code == 0 and context.is_rank_zero:
                self._finish()
            return code

    def _begin(self) -> None:
        """Write down what is asked for, and take up the newest checkpoint where that is asked for."""
        context, learner = self._context, self._learner
        if self._began_with is not None:
            _LOG.info("%s", self._began_with)
        if self._resume:
            iterations, learned = newest_readable(self._folder)
            state = read_rank_state(
                self._folder, iterations=iterations, rank=context.rank, world_size=context.world_size
            )
            exactly = learner.load(learned, state)
            self._env_steps = env_steps_of(learned) or iterations * learner.env_steps_per_iteration
            _LOG.info("going on from %s", model_path(self._folder, iterations))
            if iterations >= self._config.agent.max_iterations:
                _LOG.warning("all %d iterations are done; --max_iterations says how many in all", iterations)
            if not exactly:
                _LOG.warning("rows, ranks or random numbers are not those of the checkpoint: new episodes begin")
        if context.is_rank_zero:
            self._write_settings(self._folder)
            _LOG.info("writing to %s", self._folder)

    def _write_settings(self, folder: Path) -> None:
        write_settings(
            folder,
            self._config,
            observation_terms=self._learner.environment.observation_terms,
            world_size=self._context.world_size,
            devices=self._devices,
            simulation_devices=self._simulation_devices,
            command_line=self._command_line,
            began_with=None if self._began_with is None else str(self._began_with),
        )

    def _learned(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        learner = self._learner
        infos = checkpoint_infos(
            self._config,
            iterations=learner.iterations,
            env_steps=self._env_steps,
            world_size=self._context.world_size,
        )
        return {**learner.algorithm.save(), "iter": learner.iterations, "infos": infos}

    def _train(self, progress: Progress, interruption: Interruption) -> int:
        agent, learner = self._config.agent, self._learner
        if learner.iterations == 0:
            self._save()
        while learner.iterations < agent.max_iterations:
            done = learner.iterate()
            self._env_steps += done.env_steps
            self._report(progress, done)
            is_last = learner.iterations == agent.max_iterations
            self._check_synchrony(is_last=is_last)
            is_evaluated = self._is_evaluated_after(learner.iterations)
            if is_last or is_evaluated or learner.iterations % agent.save_interval == 0:
                self._save()
            code = self._evaluate(progress) if is_evaluated else 0
            code = highest_of_ranks(code or interruption.exit_code)
            if code != 0 and not (is_last and not is_evaluated):
                return self._leave(code, saved=is_evaluated)
        return 0

    def _leave(self, code: int, *, saved: bool) -> int:
        """Save before any rank leaves, because a launcher ends the others as soon as one has."""
        if not saved:
            self._save()
        return highest_of_ranks(code)

    def _check_synchrony(self, *, is_last: bool) -> None:
        every = self._config.distributed.check_sync_every
        if every and self._context.is_distributed and (is_last or self._learner.iterations % every == 0):
            check_synchrony(learned_state(self._learner.algorithm))

    def _save(self) -> None:
        """Write a checkpoint; every rank calls it, because each of them has something to keep."""
        learner, context = self._learner, self._context
        states = gather_bytes_to_rank_zero(packed(learner.rank_state()))
        if not context.is_rank_zero:
            return
        path = write_checkpoint(
            self._folder,
            self._learned(),
            states,
            iterations=learner.iterations,
            kept=self._config.checkpoints.keep_last,
            stays=self._was_evaluated,
        )
        _LOG.debug("wrote %s", path)

    def _was_evaluated(self, iterations: int) -> bool:
        """Whether there is an evaluation of a checkpoint, whose numbers would else be those of a file that is gone."""
        return self._evaluation is not None and self._evaluation.folder(iterations).is_dir()

    def _is_evaluated_after(self, iterations: int) -> bool:
        interval = self._config.evaluation.interval
        if self._evaluation is None or iterations == 0:
            return False
        return iterations == self._config.agent.max_iterations or (interval > 0 and iterations % interval == 0)

    def _evaluate_if_left_out(self, progress: Progress) -> int:
        """Make the evaluation of the checkpoint that the run goes on from, if it was interrupted."""
        iterations = self._learner.iterations
        if self._evaluation is None or not self._is_evaluated_after(iterations):
            return 0
        # Before anything else, because the first evaluation writes the file that is asked for.
        is_complete = bool(highest_of_ranks(int(self._evaluation.is_complete(iterations))))
        if not is_complete:
            return highest_of_ranks(self._evaluate(progress))
        if self._context.is_rank_zero and not progress.has(iterations, EVALUATION_TIME):
            # It was complete when the run was stopped, and nobody had taken note of it yet.
            self._keep(self._evaluation.results(iterations), progress, evaluation_s=0.0)
        return 0

    def _evaluate(self, progress: Progress) -> int:
        """Evaluate the newest checkpoint; return 0, or the exit code of an interruption, the same on all ranks."""
        if self._evaluation is None:
            return 0
        began = time.perf_counter()
        iterations = self._learner.iterations
        with _as_in_every_evaluation():
            evaluated = self._evaluation.run(model_path(self._folder, iterations), iterations)
        interrupted = highest_of_ranks(evaluated.exit_code if evaluated.exit_code >= _INTERRUPTED else 0)
        if interrupted == 0 and self._context.is_rank_zero:
            self._keep(evaluated, progress, evaluation_s=time.perf_counter() - began)
        self._pace.pause(time.perf_counter() - began)
        return interrupted

    def _keep(self, evaluated: Evaluated, progress: Progress, *, evaluation_s: float) -> None:
        iterations = self._learner.iterations
        if evaluated.exit_code != 0:
            _LOG.warning("the evaluation did not complete; %s says why", self._folder / "evaluations")
        progress.write(
            iterations,
            measures_of_evaluation(evaluated.jobs, evaluation_s=evaluation_s),
            told=line_of_evaluation(evaluated.jobs, iterations=iterations),
        )
        score = score_of(evaluated.jobs.values(), iterations, evaluation=evaluated.config_hash)
        if score is not None and keep_best(self._folder, score):
            _LOG.info("the best so far")

    def _report(self, progress: Progress, done: Iteration) -> None:
        iterations, total = self._learner.iterations, self._config.agent.max_iterations
        left_s = self._pace.left_s(total - iterations)
        progress.write(
            iterations,
            measures_of_iteration(done, env_steps=self._env_steps),
            told=line_of_iteration(done, iterations=iterations, total=total, left_s=left_s),
        )

    def _finish(self) -> None:
        if not self._config.checkpoints.export:
            return
        for path in export_policy(self._learner.algorithm, self._folder):
            _LOG.info("wrote %s", path)


@contextmanager
def _as_in_every_evaluation() -> Iterator[None]:
    """Evaluate alike on any number of ranks, and leave the random numbers of training as they were."""
    threads = torch.get_num_threads()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        # The last digits of a network's output depend on how many threads share the work.
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
