"""Run one rank's part of a training with rsl_rl, from the first sample to the last checkpoint."""

import logging
from pathlib import Path
from typing import Any

from isaaclab_arena.distributed.collectives import gather_bytes_to_rank_zero
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.evaluation.process import watch_for_interruption
from isaaclab_arena.logs import log_file
from isaaclab_arena.models.run_directory import model_path
from isaaclab_arena.training.checkpoints.best_checkpoint import keep_best, score_of
from isaaclab_arena.training.checkpoints.checkpoints import packed, read_together, write_checkpoint
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
from isaaclab_arena.training.training_loop import Schedule, TrainingLoop

_LOG = logging.getLogger(__name__)


class TrainingRun:
    """One rank's part of a training run; rank 0 alone writes.

    Args:
        config: The configuration.
        run_directory: The run's directory, which exists and is the same for all ranks.
        ranks: All ranks; their process group exists where there are several.
        learner: Collects samples on this rank and learns from them.
        evaluation: Evaluates checkpoints; None if nothing does.
        command_line: The command line.
        resume: Whether to go on from the newest checkpoint.
        began_with: The checkpoint whose weights the learner begins with, None for none.
    """

    evaluation_measure = EVALUATION_TIME

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
        self._directory = run_directory
        self._ranks = ranks
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

    def _save_untrained(self, directory: Path) -> Path:
        self._write_settings(directory)
        return write_checkpoint(directory, self._learned(), [], iterations=0, kept=1)

    def execute(self, *, stop_file: Path | None = None) -> int:
        """Train to the end, and return the exit code: 0, or 130 or 143 if that was interrupted.

        A signal to any rank stops all of them after the same iteration, with a checkpoint to go on from.

        Args:
            stop_file: The run ends after the iteration in which this file is there; None where there is none.

        Raises:
            ArenaError: If training cannot go on; a checkpoint of the last iteration but one may be there.
        """
        context = self._context
        with log_file(self._directory / "logs" / f"rank{context.rank}.log", context.rank):
            self._begin()
            code = self._run_loop(stop_file)
            if code == 0 and context.is_rank_zero:
                self._finish()
            return code

    def _run_loop(self, stop_file: Path | None) -> int:
        agent, is_rank_zero, after_step = self._config.agent, self._context.is_rank_zero, self._learner.iterations
        schedule = Schedule(
            max_steps=agent.max_iterations,
            save_every=agent.save_interval,
            evaluate_every=self._config.evaluation.interval or None,
        )
        writer = scalar_writer(self._config, self._directory, after_step=after_step) if is_rank_zero else None
        with (
            Progress(self._directory, is_writer=is_rank_zero, after_step=after_step, writer=writer) as progress,
            watch_for_interruption() as interruption,
        ):
            if after_step == 0:
                self.save()
            loop = TrainingLoop(self, schedule, evaluation=self._evaluation, progress=progress, stop_file=stop_file)
            return loop.run(interruption)

    def _begin(self) -> None:
        """Write the settings, and resume from the newest checkpoint if that is asked for."""
        context, learner = self._context, self._learner
        if self._began_with is not None:
            _LOG.info("%s", self._began_with)
        if self._resume:
            found = read_together(self._directory, self._ranks)
            exactly = learner.load(found.learned, found.rank_state)
            self._env_steps = env_steps_of(found.learned) or found.iterations * learner.env_steps_per_iteration
            _LOG.info("going on from %s", model_path(self._directory, found.iterations))
            if found.iterations >= self._config.agent.max_iterations:
                _LOG.warning("all %d iterations are done; --max_iterations says how many in all", found.iterations)
            if not exactly:
                _LOG.warning("env slots, ranks or random numbers are not those of the checkpoint: new episodes begin")
        self._check_synchrony()
        if context.is_rank_zero:
            self._write_settings(self._directory)
            _LOG.info("writing to %s", self._directory)

    def _write_settings(self, directory: Path) -> None:
        write_settings(
            directory,
            self._config,
            observation_terms=self._learner.environment.observation_terms,
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

    @property
    def num_steps(self) -> int:
        """Iterations done."""
        return self._learner.iterations

    def step(self, progress: Progress) -> None:
        """Take samples, learn from them, and write the measures of this iteration."""
        done = self._learner.iterate()
        self._env_steps += done.env_steps
        self._report(progress, done)
        every = self._config.distributed.check_sync_every
        if every and self._learner.iterations % every == 0:
            self._check_synchrony()

    def checkpoint(self, num_steps: int) -> Path:
        """Return the checkpoint after so many iterations."""
        return model_path(self._directory, num_steps)

    def save(self) -> None:
        """Write a checkpoint; every rank calls it, because each of them has something to keep.

        Raises:
            OutOfSyncError: If the ranks do not hold the same; no file is written or removed then.
        """
        learner, context = self._learner, self._context
        self._check_synchrony()
        states = gather_bytes_to_rank_zero(packed(learner.rank_state()))
        if not context.is_rank_zero:
            return
        path = write_checkpoint(
            self._directory,
            self._learned(),
            states,
            iterations=learner.iterations,
            kept=self._config.checkpoints.keep_last,
            stays=self._was_evaluated,
        )
        _LOG.debug("wrote %s", path)

    def _was_evaluated(self, iterations: int) -> bool:
        """Whether there is an evaluation of a checkpoint, whose numbers would else be those of a file that is gone."""
        return self._evaluation is not None and self._evaluation.directory(iterations).is_dir()

    def note_evaluation(self, evaluated: Evaluated, progress: Progress, *, evaluation_s: float) -> None:
        """Write the measures of an evaluation, and keep the checkpoint if it is the best so far; on rank 0 only."""
        iterations = self._learner.iterations
        if evaluated.exit_code != 0:
            _LOG.warning("the evaluation did not complete; %s says why", self._directory / "evaluations")
        progress.write(
            iterations,
            measures_of_evaluation(evaluated.jobs, evaluation_s=evaluation_s),
            told=line_of_evaluation(evaluated.jobs, iterations=iterations),
        )
        score = score_of(evaluated.jobs.values(), iterations, evaluation=evaluated.config_hash)
        if score is not None and keep_best(self._directory, score):
            _LOG.info("the best so far")
        self._pace.pause(evaluation_s)

    def _report(self, progress: Progress, done: Iteration) -> None:
        iterations, total = self._learner.iterations, self._config.agent.max_iterations
        left_s = self._pace.left_s(total - iterations)
        progress.write(
            iterations,
            measures_of_iteration(done, env_steps=self._env_steps),
            told=line_of_iteration(done, iterations=iterations, total=total, left_s=left_s),
        )

    def _check_synchrony(self) -> None:
        """Refuse to go on with ranks that differ in anything they learn with; every rank calls it."""
        if self._context.is_distributed:
            counts = {"iterations": self._learner.iterations, "env_steps": self._env_steps}
            check_synchrony({**learned_state(self._learner.algorithm), **counts})

    def _finish(self) -> None:
        if not self._config.checkpoints.export:
            return
        for path in export_policy(self._learner.algorithm, self._directory):
            _LOG.info("wrote %s", path)
