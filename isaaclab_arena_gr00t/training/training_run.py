"""Run one rank's part of a GR00T training, from recordings to checkpoints."""

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gr00t.model.checkpoint import save_checkpoint

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.process import watch_for_interruption
from isaaclab_arena.evaluation.start_up import agree_on_versions
from isaaclab_arena.logs import log_file
from isaaclab_arena.storage.recordings import RecordedSteps
from isaaclab_arena.training.checkpoints import agreed_checkpoint
from isaaclab_arena.training.closed_loop import ClosedLoopEvaluation, Evaluated
from isaaclab_arena.training.learner import check_synchrony
from isaaclab_arena.training.settings.run_directory import training_versions
from isaaclab_arena.training.training_loop import Progress, TrainingLoop, tensorboard
from isaaclab_arena_gr00t.config import read_policy_config
from isaaclab_arena_gr00t.data.sources import jobs_of
from isaaclab_arena_gr00t.joint_files import read_joint_files
from isaaclab_arena_gr00t.training.checkpoints import (
    checkpoint_directory,
    checkpoints,
    read_settings,
    read_state,
    state_path,
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


class TrainingRun:
    """One rank's part of a training run; rank 0 alone writes.

    Args:
        options: The options.
        context: Who this process is.
        ranks: All ranks; their process group exists where there are several.
        command_line: The program and its arguments, by which ``isaaclab-arena resume`` goes on with the run.

    Raises:
        ArenaError: If an option, a recording or the directory is wrong.
    """

    evaluation_measure = "success_rate/"

    def __init__(
        self, options: FinetuneOptions, context: DistributedContext, ranks: Ranks, *, command_line: Sequence[str]
    ) -> None:
        self._options = options
        self._command_line = command_line
        self._context = context
        self._ranks = ranks
        self._asked = options.what_must_stay(context.world_size)
        if context.is_rank_zero:
            _check_directory(options, self._asked)
        agree_on_versions(ranks, training_versions())
        same = {**self._asked, "schedule": options.schedule(), "--output_dir": options.output_dir}
        # An optimiser's step has other last digits on a CPU than on a GPU, and weights must stay the same bits.
        same |= {"--resume": options.resume, "the kind of device": context.device.type}
        ranks.agree_on("training", {name: str(value) for name, value in same.items()})
        made, data, self._validation = _model_and_demonstrations(options)
        ranks.agree_on(
            "data",
            {
                "the demonstrations": _digest([data.demonstrations, self._validation.demonstrations]),
                "the model's inputs, outputs and their statistics": _digest(made.processor.embodiments),
            },
        )
        self._evaluation = _evaluation(options, ranks, made)
        self._processor = made.processor
        self._trainer = Trainer(
            made.model, made.processor, made.embodiment_tag, data, options.training_settings(), context
        )
        self._schedule = options.schedule()
        self._since_last_line = _SinceLastLine()
        if context.is_rank_zero:
            _LOG.info(
                "%d demonstrations of %d control steps, %d held out; %.1f million parameters",
                data.num_demonstrations,
                len(data),
                self._validation.num_demonstrations,
                sum(parameter.numel() for parameter in made.model.parameters()) / 1e6,
            )

    def execute(self) -> int:
        """Train to the end, and return the exit code: 0, or 130 or 143 if that was interrupted.

        A signal stops all ranks after the same step, with a checkpoint to go on from.
        """
        directory, rank = self._options.output_dir, self._context.rank
        with log_file(directory / "logs" / f"rank{rank}.log", rank):
            self._begin()
            return self._run_loop(directory)

    def _run_loop(self, directory: Path) -> int:
        is_rank_zero, after_step = self._context.is_rank_zero, self._trainer.num_steps
        writer = tensorboard(directory / "tensorboard", after_step=after_step) if is_rank_zero else None
        with (
            Progress(directory, is_writer=is_rank_zero, after_step=after_step, writer=writer) as progress,
            watch_for_interruption() as interruption,
        ):
            self._since_last_line = _SinceLastLine()
            loop = TrainingLoop(self, self._schedule, evaluation=self._evaluation, progress=progress)
            return loop.run(interruption)

    @property
    def num_steps(self) -> int:
        """Optimiser steps done."""
        return self._trainer.num_steps

    def step(self, progress: Progress) -> None:
        """Make one optimiser step; when due, write the measures and the loss on held-out episodes."""
        options, trainer = self._options, self._trainer
        self._since_last_line.add(trainer.step())
        if trainer.num_steps % options.log_every == 0 or self._schedule.is_last(trainer.num_steps):
            measures = {
                "loss": self._since_last_line.mean_loss(),
                "learning_rate": trainer.learning_rate(),
                "samples_per_s": self._since_last_line.steps_per_s() * options.batch_size * self._context.world_size,
            }
            progress.write(trainer.num_steps, measures)
            self._since_last_line = _SinceLastLine()
        if self._schedule.is_saved_after(trainer.num_steps):
            self._validate(progress)

    def checkpoint(self, num_steps: int) -> Path:
        """Return the checkpoint after so many steps."""
        return checkpoint_directory(self._options.output_dir, num_steps)

    def _begin(self) -> None:
        """Write the settings, or resume from the newest checkpoint."""
        directory, kept, ranks = self._options.output_dir, self._options.kept_checkpoints, self._ranks
        if self._context.is_rank_zero:
            _LOG.info("the newest %d checkpoints stay (--kept_checkpoints), older ones go, evaluated ones too", kept)
        if self._options.resume:
            newest = checkpoints(directory)[-1:] if self._context.is_rank_zero else []
            chosen = newest[0].name if newest else ""
            name = agreed_checkpoint(ranks, chosen, lambda name: [state_path(directory / name)])
            if name:
                self._trainer.load_state(read_state(directory / name))
                # No rank may wait in a collective for one that could not read it.
                ranks.gather("state to go on from", "read")
                _LOG.info("going on from %s", directory / name)
        elif self._context.is_rank_zero:
            began = {"command_line": list(self._command_line), "working_directory": str(Path.cwd())}
            write_settings(directory, {**self._asked, **began})
        self._check_synchrony()

    def _check_synchrony(self) -> None:
        """Refuse to go on with ranks that differ in anything they learn with; every rank calls it."""
        if self._context.is_distributed:
            check_synchrony(self._trainer.state())

    def _validate(self, progress: Progress) -> None:
        if self._context.is_rank_zero and len(self._validation):
            measures = {"validation_loss": self._trainer.validation_loss(self._validation)}
            progress.write(self._trainer.num_steps, measures)

    def save(self) -> None:
        """Write a checkpoint, on rank 0.

        Raises:
            OutOfSyncError: If the ranks do not hold the same; no file is written or removed then.
        """
        self._check_synchrony()
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

    def note_evaluation(self, evaluated: Evaluated, progress: Progress, *, evaluation_s: float) -> None:
        """Write the success rates of an evaluation."""
        del evaluation_s
        rates = {f"{self.evaluation_measure}{job}": rate for job, rate in evaluated.success_rates.items()}
        progress.write(self._trainer.num_steps, rates)
        self._since_last_line = _SinceLastLine()


class _SinceLastLine:
    """Losses and time since the last line of the log."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._losses: list[float] = []

    def add(self, loss: float) -> None:
        """Add the loss of a step."""
        self._losses.append(loss)

    def mean_loss(self) -> float:
        """Return the mean loss of these steps."""
        return sum(self._losses) / len(self._losses)

    def steps_per_s(self) -> float:
        """Return the speed of training [1/s]."""
        return len(self._losses) / (time.perf_counter() - self._began)


def _model_and_demonstrations(options: FinetuneOptions) -> tuple[NewModel, DemonstrationSteps, DemonstrationSteps]:
    """Return the model before its first step, its training data, and the held-out data."""
    steps = RecordedSteps()
    config = read_policy_config(options.policy_config_yaml_path)
    files = read_joint_files(config)
    interface = interface_of(config, files)
    found = find_demonstrations(recordings_of(options.dataset), only_successes=not options.include_failures)
    wiring = wire_recordings(found, interface, config, files, file=str(options.policy_config_yaml_path), steps=steps)
    learned, held_out = (
        DemonstrationSteps([found[index] for index in part], wiring, horizon=interface.horizon, steps=steps)
        for part in split(found, share=options.validation_share, seed=options.seed)
    )
    if options.base_model_path is None:
        return new_model(learned, found, interface, config, seed=options.seed), learned, held_out
    return based_on(options.base_model_path, learned, interface, config, seed=options.seed), learned, held_out


def _evaluation(options: FinetuneOptions, ranks: Ranks, made: NewModel) -> ClosedLoopEvaluation | None:
    """Return the evaluation of checkpoints, None if none is wanted."""
    if options.eval_jobs_config is None:
        return None
    evaluation = ClosedLoopEvaluation(
        load_jobs_file(options.eval_jobs_config, suites=SUITES),
        checkpoint_option="model_path",
        policy_type="gr00t_closedloop",
        output_directory=options.output_dir,
        ranks=ranks,
        device=options.device,
    )

    def save_untrained(directory: Path) -> Path:
        save_checkpoint(directory, made.model, made.processor)
        return directory

    evaluation.check(save_untrained)
    return evaluation


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def recordings_of(datasets: Sequence[str]) -> list[Path]:
    """Return the named recordings, in order, without duplicates.

    Args:
        datasets: Recordings, patterns, directories of jobs, or directories of runs.

    Raises:
        ConfigError: If one of them is not a recording.
    """
    return list(dict.fromkeys(path for dataset in datasets for files in jobs_of(Path(dataset)) for path in files))


def _check_directory(options: FinetuneOptions, asked: dict[str, Any]) -> None:
    """Refuse the directory of another run, and one that holds something else."""
    directory = options.output_dir
    if options.resume:
        before = read_settings(directory)
        changed = [
            Problem(f"was {before.get(key)} when the run began, now {value}", file=str(directory), key=key)
            for key, value in asked.items()
            if before.get(key) != value
        ]
        if changed:
            raise ConfigError(changed)
    elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        message = f"'{directory}' is not empty; go on with --resume, or name a new directory"
        raise ConfigError(Problem(message, key="--output_dir"))
