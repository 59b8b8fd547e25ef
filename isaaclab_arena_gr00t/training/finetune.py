"""Train a GR00T model on recorded demonstrations, on one process or as one of many ranks.

python -m isaaclab_arena_gr00t.training.finetune --dataset outputs/demos --output_dir outputs/model
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena_gr00t.training.finetune --dataset … --output_dir …
"""

import dataclasses
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.process import die_with_parent, limit_threads
from isaaclab_arena.distributed.process_group import initialise
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.storage.recorded_steps import RecordedSteps
from isaaclab_arena_gr00t.config import read_policy_config
from isaaclab_arena_gr00t.data.sources import jobs_of
from isaaclab_arena_gr00t.joint_files import read_joint_files
from isaaclab_arena_gr00t.training.checkpoints import (
    checkpoints,
    read_settings,
    read_state,
    write_checkpoint,
    write_settings,
)
from isaaclab_arena_gr00t.training.demonstrations import DemonstrationSteps, find_demonstrations, split
from isaaclab_arena_gr00t.training.new_model import interface_of, new_model, wire_recordings
from isaaclab_arena_gr00t.training.progress import Progress
from isaaclab_arena_gr00t.training.trainer import Trainer, TrainingSettings

PROGRAM = "isaaclab_arena_gr00t.training.finetune"
PANDA_CONFIG = Path(__file__).parents[1] / "policy" / "config" / "panda_closedloop.yaml"
_LOG = logging.getLogger("isaaclab_arena.gr00t")


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """Train a GR00T model on recorded demonstrations."""

    dataset: tuple[str, ...]
    """Recordings, folders of jobs, or folders of runs; recorded with all observations."""
    output_dir: Path
    """Folder of the training run; missing or empty, or with --resume that of the run."""
    policy_config_yaml_path: Path = PANDA_CONFIG
    """YAML file of the policy to train, for its cameras, joints and horizon. By default that of the Panda."""
    max_steps: int = 10_000
    """Optimiser steps."""
    batch_size: int = 64
    """Control steps in each rank's batch."""
    noise_draws: int = 4
    """Noises and flow times that each of them is learned with."""
    learning_rate: float = 1e-3
    """Its largest value."""
    seed: int = 0
    """Of weights, order and noise."""
    validation_share: float = 0.05
    """How many of each job's episodes are held out."""
    save_every: int = 1000
    """Steps between checkpoints, at which the held-out episodes are looked at too."""
    log_every: int = 50
    """Steps between lines of the log."""
    kept_checkpoints: int = 3
    """How many checkpoints stay."""
    include_failures: bool = False
    """Learn from episodes that did not succeed as well."""
    resume: bool = False
    """Go on from the newest checkpoint of --output_dir."""
    device: str | None = None
    """Where to train: cpu, cuda or cuda:<index>. By default a GPU where there is one; each rank its own."""
    torch_threads: int = 1
    """Torch threads of this rank."""

    def training_settings(self) -> TrainingSettings:
        """Return what decides how the weights change."""
        known = {field.name for field in dataclasses.fields(TrainingSettings)}
        given = {name: value for name, value in dataclasses.asdict(self).items() if name in known}
        return TrainingSettings(**given)

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            ConfigError: With every problem.
        """
        counts = ("max_steps", "batch_size", "noise_draws", "save_every", "log_every", "kept_checkpoints")
        problems = [
            Problem(f"must be at least 1, got {getattr(self, name)}", key=f"--{name}")
            for name in (*counts, "torch_threads")
            if getattr(self, name) < 1
        ]
        if not 0 <= self.validation_share < 1:
            message = f"must be at least 0 and less than 1, got {self.validation_share:g}"
            problems.append(Problem(message, key="--validation_share"))
        if self.learning_rate <= 0:
            problems.append(Problem(f"must be positive, got {self.learning_rate:g}", key="--learning_rate"))
        if problems:
            raise ConfigError(problems)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 0, 1 for what went wrong on the way, 2 for a mistake of the user's.

    Args:
        argv: Arguments after the program's name; those of this process where None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = tyro.cli(
        FinetuneOptions,
        prog=f"python -m {PROGRAM}",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    return exit_code_of(lambda: _run(options))


def _run(options: FinetuneOptions) -> int:
    options.check()
    context = DistributedContext.from_environment(device=options.device)
    if context.launched_by_torchrun:
        die_with_parent()
    limit_threads(options.torch_threads)
    with initialise(context) as ranks:
        _TrainingRun(options, context, ranks).execute()
    return 0


class _TrainingRun:
    """One rank's part of a training run; rank 0 alone writes."""

    def __init__(self, options: FinetuneOptions, context: DistributedContext, ranks: Ranks) -> None:
        self._options = options
        self._context = context
        self._asked = _asked(options, context.world_size)
        ranks.agree("training", repr(self._asked))
        steps = RecordedSteps()
        file = str(options.policy_config_yaml_path)
        config = read_policy_config(options.policy_config_yaml_path)
        found = find_demonstrations(recordings_of(options.dataset), only_successes=not options.include_failures)
        files = read_joint_files(
            policy=config.policy_joints_config_path,
            state=config.state_joints_config_path,
            action=config.action_joints_config_path,
        )
        interface = interface_of(config, files)
        wiring = wire_recordings(found, interface, config, files, file=file, steps=steps)
        chosen, held_out = split(found, share=options.validation_share, seed=options.seed)
        self._data, self._validation = (
            DemonstrationSteps([found[index] for index in part], wiring, horizon=interface.horizon, steps=steps)
            for part in (chosen, held_out)
        )
        fresh = new_model(self._data, found, interface, wiring, config, seed=options.seed)
        self._processor = fresh.processor
        settings = options.training_settings()
        self._trainer = Trainer(fresh.model, fresh.processor, config.embodiment_tag, self._data, settings, context)
        self._prepare_folder()
        if context.is_rank_zero:
            _LOG.info(
                "%d demonstrations of %d control steps, %d held out; %.1f million parameters",
                len(chosen),
                len(self._data),
                len(held_out),
                sum(parameter.numel() for parameter in fresh.model.parameters()) / 1e6,
            )

    def execute(self) -> None:
        """Train to the end."""
        options, trainer = self._options, self._trainer
        with Progress(options.output_dir, is_writer=self._context.is_rank_zero) as progress:
            since, steps, total = time.perf_counter(), 0, 0.0
            while trainer.num_steps < options.max_steps:
                total += trainer.step()
                steps += 1
                is_last = trainer.num_steps == options.max_steps
                if trainer.num_steps % options.log_every == 0 or is_last:
                    now = time.perf_counter()
                    progress.write(
                        trainer.num_steps,
                        loss=total / steps,
                        learning_rate=trainer.learning_rate(),
                        samples_per_s=steps * options.batch_size * self._context.world_size / (now - since),
                    )
                    since, steps, total = now, 0, 0.0
                if trainer.num_steps % options.save_every == 0 or is_last:
                    self._save(progress)

    def _prepare_folder(self) -> None:
        folder = self._options.output_dir
        if self._options.resume:
            _refuse_another_run(read_settings(folder), self._asked, folder)
            newest = checkpoints(folder)
            if newest:
                self._trainer.load_state(read_state(newest[-1]))
                _LOG.info("going on from %s", newest[-1])
        elif self._context.is_rank_zero:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                message = f"'{folder}' is not empty; go on with --resume, or name a new folder"
                raise ConfigError(Problem(message, key="--output_dir"))
            write_settings(folder, self._asked)

    def _save(self, progress: Progress) -> None:
        if not self._context.is_rank_zero:
            return
        trainer = self._trainer
        if len(self._validation):
            progress.write(trainer.num_steps, validation_loss=trainer.validation_loss(self._validation))
        path = write_checkpoint(
            self._options.output_dir,
            trainer.average,
            self._processor,
            trainer.state(),
            num_steps=trainer.num_steps,
            kept=self._options.kept_checkpoints,
        )
        _LOG.info("wrote %s", path)


def recordings_of(datasets: Sequence[str]) -> list[Path]:
    """Return the recordings that are meant, in order, none twice.

    Args:
        datasets: Recordings, patterns, folders of jobs, or folders of runs.

    Raises:
        ConfigError: If one of them is none.
    """
    return list(dict.fromkeys(path for dataset in datasets for files in jobs_of(Path(dataset)) for path in files))


def _asked(options: FinetuneOptions, world_size: int) -> dict[str, Any]:
    """Return what must stay the same when a run is taken up again."""
    return {
        **dataclasses.asdict(options.training_settings()),
        "dataset": list(options.dataset),
        "policy_config_yaml_path": str(options.policy_config_yaml_path),
        "validation_share": options.validation_share,
        "include_failures": options.include_failures,
        "world_size": world_size,
        "torch": torch.__version__,
    }


def _refuse_another_run(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    changed = [
        Problem(f"was {before.get(key)} when the run began, now {value}", file=str(folder), key=key)
        for key, value in now.items()
        if before.get(key) != value
    ]
    if changed:
        raise ConfigError(changed)


if __name__ == "__main__":
    raise SystemExit(main())
