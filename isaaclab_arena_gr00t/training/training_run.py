"""One rank's part of a training run, from recordings to checkpoints; rank 0 alone writes."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gr00t.model.checkpoint import save_checkpoint

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.collectives import highest_of_ranks
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.process.interruption import Interruption, watch_for_interruption
from isaaclab_arena.logs import log_file
from isaaclab_arena.storage.recorded_steps import RecordedSteps
from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation
from isaaclab_arena.training.progress import Progress, tensorboard
from isaaclab_arena_gr00t.config import read_policy_config
from isaaclab_arena_gr00t.data.sources import jobs_of
from isaaclab_arena_gr00t.joint_files import read_joint_files
from isaaclab_arena_gr00t.training.checkpoints import (
    checkpoint_directory,
    checkpoints,
    read_settings,
    read_state,
    write_checkpoint,
    write_settings,
)
from isaaclab_arena_gr00t.training.demonstrations import (
    DemonstrationSteps,
    find_demonstrations,
    split,
)
from isaaclab_arena_gr00t.training.new_model import NewModel, based_on, interface_of, new_model, wire_recordings
from isaaclab_arena_gr00t.training.options import FinetuneOptions
from isaaclab_arena_gr00t.training.trainer import Trainer

_LOG = logging.getLogger("isaaclab_arena.gr00t")
_INTERRUPTED = 128


class TrainingRun:
    """A training run as one rank lives it.

    Args:
        options: What is asked for.
        context: Who this process is.
        ranks: All ranks; their process group exists where there are several.

    Raises:
        ArenaError: If an option, a recording or the folder is wrong.
    """

    def __init__(self, options: FinetuneOptions, context: DistributedContext, ranks: Ranks) -> None:
        self._options = options
        self._context = context
        self._asked = options.what_must_stay(context.world_size)
        if context.is_rank_zero:
            _check_folder(options, self._asked)
        ranks.agree("training", repr(self._asked))
        steps = RecordedSteps()
        config = read_policy_config(options.policy_config_yaml_path)
        files = read_joint_files(
            policy=config.policy_joints_config_path,
            state=config.state_joints_config_path,
            action=config.action_joints_config_path,
        )
        interface = interface_of(config, files)
        found = find_demonstrations(recordings_of(options.dataset), only_successes=not options.include_failures)
        wiring = wire_recordings(
            found, interface, config, files, file=str(options.policy_config_yaml_path), steps=steps
        )
        chosen, held_out = split(found, share=options.validation_share, seed=options.seed)
        data, self._validation = (
            DemonstrationSteps([found[index] for index in part], wiring, horizon=interface.horizon, steps=steps)
            for part in (chosen, held_out)
        )
        made = (
            new_model(data, found, interface, config, seed=options.seed)
            if options.base_model_path is None
            else based_on(options.base_model_path, data, interface, config, seed=options.seed)
        )
        self._evaluation = _evaluation(options, ranks, made)
        self._processor = made.processor
        self._trainer = Trainer(
            made.model, made.processor, config.embodiment_tag, data, options.training_settings(), context
        )
        if context.is_rank_zero:
            _LOG.info(
                "%d demonstrations of %d control steps, %d held out; %.1f million parameters",
                len(chosen),
                len(data),
                len(held_out),
                sum(parameter.numel() for parameter in made.model.parameters()) / 1e6,
            )

    def execute(self) -> int:
        """Train to the end, and return the exit code: 0, or 130 or 143 if that was interrupted.

        A signal stops all ranks after the same step, with a checkpoint to go on from.
        """
        context, folder = self._context, self._options.output_dir
        self._begin()
        after_step = self._trainer.num_steps
        board = tensorboard(folder / "tensorboard", after_step=after_step) if context.is_rank_zero else None
        with (
            log_file(folder / "logs" / f"rank{context.rank}.log", context.rank),
            Progress(folder, is_writer=context.is_rank_zero, after_step=after_step, writer=board) as progress,
            watch_for_interruption() as interruption,
        ):
            return self._evaluate_if_left_out(progress) or self._train(progress, interruption)

    def _train(self, progress: Progress, interruption: Interruption) -> int:
        options, trainer = self._options, self._trainer
        since, steps, total = time.perf_counter(), 0, 0.0
        while trainer.num_steps < options.max_steps:
            total += trainer.step()
            steps += 1
            is_last = trainer.num_steps == options.max_steps
            if trainer.num_steps % options.log_every == 0 or is_last:
                now = time.perf_counter()
                measures = {
                    "loss": total / steps,
                    "learning_rate": trainer.learning_rate(),
                    "samples_per_s": steps * options.batch_size * self._context.world_size / (now - since),
                }
                progress.write(trainer.num_steps, measures)
                since, steps, total = now, 0, 0.0
            if trainer.num_steps % options.save_every == 0 or is_last:
                self._validate(progress)
                self._save()
            if options.is_evaluated_after(trainer.num_steps):
                code = self._evaluate(progress)
                if code != 0:
                    return code
                since, steps, total = time.perf_counter(), 0, 0.0
            code = highest_of_ranks(interruption.exit_code)
            if code != 0 and not is_last:
                self._save()
                # A launcher ends the others as soon as one rank has left.
                return highest_of_ranks(code)
        return 0

    def _begin(self) -> None:
        """Write down what is asked for, or take up the newest checkpoint."""
        folder, kept = self._options.output_dir, self._options.kept_checkpoints
        if self._context.is_rank_zero:
            _LOG.info("the newest %d checkpoints stay (--kept_checkpoints), older ones go, evaluated ones too", kept)
        if self._options.resume:
            newest = checkpoints(folder)
            if newest:
                self._trainer.load_state(read_state(newest[-1]))
                _LOG.info("going on from %s", newest[-1])
        elif self._context.is_rank_zero:
            write_settings(folder, self._asked)

    def _validate(self, progress: Progress) -> None:
        if self._context.is_rank_zero and len(self._validation):
            measures = {"validation_loss": self._trainer.validation_loss(self._validation)}
            progress.write(self._trainer.num_steps, measures)

    def _save(self) -> None:
        if not self._context.is_rank_zero:
            return
        trainer = self._trainer
        path = write_checkpoint(
            self._options.output_dir,
            trainer.average,
            self._processor,
            trainer.state(),
            num_steps=trainer.num_steps,
            kept=self._options.kept_checkpoints,
        )
        _LOG.info("wrote %s", path)

    def _evaluate_if_left_out(self, progress: Progress) -> int:
        """Make the evaluation of the checkpoint that the run goes on from, if it was interrupted."""
        num_steps = self._trainer.num_steps
        if self._evaluation is None or num_steps == 0 or not self._options.is_evaluated_after(num_steps):
            return 0
        return 0 if self._evaluation.is_complete(num_steps) else self._evaluate(progress)

    def _evaluate(self, progress: Progress) -> int:
        """Evaluate the newest checkpoint; return 0, or the exit code of an interruption, the same on all ranks."""
        if self._evaluation is None:
            return 0
        num_steps = self._trainer.num_steps
        evaluated = self._evaluation.run(checkpoint_directory(self._options.output_dir, num_steps), num_steps)
        interrupted = highest_of_ranks(evaluated.exit_code if evaluated.exit_code >= _INTERRUPTED else 0)
        if interrupted != 0:
            return interrupted
        progress.write(num_steps, {f"success_rate/{job}": rate for job, rate in evaluated.success_rates.items()})
        return 0


def _evaluation(options: FinetuneOptions, ranks: Ranks, made: NewModel) -> ClosedLoopEvaluation | None:
    """Return what evaluates checkpoints, where that is wanted and the jobs are right."""
    if options.eval_jobs_config is None:
        return None
    evaluation = ClosedLoopEvaluation(
        load_jobs_file(options.eval_jobs_config),
        checkpoint_option="model_path",
        policy_type="gr00t_closedloop",
        output_directory=options.output_dir,
        ranks=ranks,
        device=options.device,
    )

    def save_untrained(folder: Path) -> Path:
        save_checkpoint(folder, made.model, made.processor)
        return folder

    evaluation.check(save_untrained)
    return evaluation


def recordings_of(datasets: Sequence[str]) -> list[Path]:
    """Return the recordings that are meant, in order, none twice.

    Args:
        datasets: Recordings, patterns, folders of jobs, or folders of runs.

    Raises:
        ConfigError: If one of them is none.
    """
    return list(dict.fromkeys(path for dataset in datasets for files in jobs_of(Path(dataset)) for path in files))


def _check_folder(options: FinetuneOptions, asked: dict[str, Any]) -> None:
    """Refuse the folder of another run, and one that holds something else."""
    folder = options.output_dir
    if options.resume:
        before = read_settings(folder)
        changed = [
            Problem(f"was {before.get(key)} when the run began, now {value}", file=str(folder), key=key)
            for key, value in asked.items()
            if before.get(key) != value
        ]
        if changed:
            raise ConfigError(changed)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"'{folder}' is not empty; go on with --resume, or name a new folder"
        raise ConfigError(Problem(message, key="--output_dir"))
