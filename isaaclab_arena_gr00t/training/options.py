"""Define the options of a GR00T training run."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from isaaclab_arena.config.options import Count, Share, wrong_numbers
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.training.training_loop import Schedule
from isaaclab_arena_gr00t.training.trainer import TrainingSettings

PANDA_CONFIG = Path(__file__).parents[1] / "policy" / "config" / "panda_closedloop.yaml"


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(TrainingSettings):
    """Train a GR00T model on recorded demonstrations."""

    dataset: tuple[str, ...]
    """Recordings, directories of jobs, or directories of runs; recorded with all observations."""
    output_dir: Path
    """Directory of the training run; missing or empty, or with --resume that of the run."""
    base_model_path: Path | None = None
    """Checkpoint to begin with, instead of random weights; a robot that it does not know is added to it."""
    policy_config_yaml_path: Path = PANDA_CONFIG
    """YAML file of the policy to train, for its cameras, joints and horizon. By default that of the Panda."""
    validation_share: Share = 0.05
    """Share of each job's episodes that is held out."""
    save_every: Count = 1000
    """Steps between checkpoints; each also evaluates the loss on the held-out episodes."""
    kept_checkpoints: Count = 3
    """How many checkpoints stay."""
    eval_jobs_config: Path | None = None
    """Job file to evaluate checkpoints with, on all ranks; its GR00T policies get the checkpoint as model_path."""
    eval_every: Count | None = None
    """Steps between evaluations, a multiple of --save_every; by default as many. There is one at the end too."""
    log_every: Count = 50
    """Steps between lines of the log."""
    include_failures: bool = False
    """Also learn from episodes that did not succeed."""
    resume: bool = False
    """Resume from the newest checkpoint of --output_dir."""
    device: str | None = None
    """Device for training: cpu, cuda or cuda:<index>. By default a GPU of each rank's own if there is one."""
    torch_threads: Count = 1
    """Torch threads of this rank."""
    process_group: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend between ranks: auto is NCCL if each has a GPU of its own and it works, else gloo; or nccl, or gloo."""

    def training_settings(self) -> TrainingSettings:
        """Return the settings that determine how the weights change."""
        return TrainingSettings(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(TrainingSettings)}
        )

    def what_must_stay(self, world_size: int) -> dict[str, Any]:
        """Return the settings that must be the same when a run is resumed."""
        return {
            **dataclasses.asdict(self.training_settings()),
            "dataset": list(self.dataset),
            "base_model_path": None if self.base_model_path is None else str(self.base_model_path),
            "policy_config_yaml_path": str(self.policy_config_yaml_path),
            "validation_share": self.validation_share,
            "include_failures": self.include_failures,
            "world_size": world_size,
            "torch": torch.__version__,
        }

    def schedule(self) -> Schedule:
        """Return after which steps the run saves, evaluates and ends."""
        return Schedule(
            max_steps=self.max_steps,
            save_every=self.save_every,
            evaluate_every=self.eval_every or self.save_every,
        )

    def check(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            ConfigError: With every problem.
        """
        problems = wrong_numbers(self)
        if self.eval_every is not None and self.eval_jobs_config is None:
            problems.append(Problem("needs --eval_jobs_config: the jobs to evaluate with", key="--eval_every"))
        if self.eval_every is not None and self.save_every > 0 and self.eval_every % self.save_every:
            message = f"must be a multiple of --save_every {self.save_every}, got {self.eval_every}"
            problems.append(Problem(message, key="--eval_every"))
        if problems:
            raise ConfigError(problems)
