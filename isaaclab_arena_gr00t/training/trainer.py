"""One rank's optimiser steps: samples, averaged weights, and a state to resume from."""

import copy
import json
import math
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.checkpoint import save_checkpoint
from gr00t.model.modeling import Gr00tSmall
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isaaclab_arena.config.options import Amount, Count, NotNegative, Positive, Share
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.models.rsl_rl_checkpoint import read_checkpoint
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_text
from isaaclab_arena_gr00t.training.demonstrations import DemonstrationBatch, DemonstrationSteps

# Read and write the checkpoints and settings of a training run, each in one atomic step.

TRAINING_FILE = "training.json"
_STATE_FILE = "training_state.pt"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


def checkpoint_directory(output_directory: Path, num_steps: int) -> Path:
    """Return the directory of the checkpoint after a number of steps."""
    return output_directory / f"checkpoint-{num_steps}"


def write_checkpoint(
    output_directory: Path,
    model: Gr00tSmall,
    processor: Gr00tSmallProcessor,
    state: Mapping[str, Any],
    *,
    num_steps: int,
    kept: int,
) -> Path:
    """Write a checkpoint atomically, keep the newest `kept`, and return its directory; StorageError if this fails."""
    target = checkpoint_directory(output_directory, num_steps)
    temporary = target.with_name(f".{target.name}.tmp")
    with storage_errors("write", target):
        # Write beside the target and rename, so that an interruption leaves no partial checkpoint.
        shutil.rmtree(temporary, ignore_errors=True)
        save_checkpoint(temporary, model, processor)
        torch.save(dict(state), state_path(temporary))
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        for older in checkpoints(output_directory)[:-kept]:
            shutil.rmtree(older)
    return target


def checkpoints(output_directory: Path) -> list[Path]:
    """Return the checkpoints of a training run, the newest last."""
    found = {
        int(match[1]): path
        for path in output_directory.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name))
    }
    return [found[number] for number in sorted(found)]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the state from which training resumes; ConfigError if missing or damaged, StorageError if unreadable."""
    path = state_path(checkpoint)
    # A checkpoint for evaluation only has no training state.
    if not path.is_file():
        raise ConfigError(Problem(f"{checkpoint} holds no {_STATE_FILE} to go on from", key="--resume"))
    return dict(read_checkpoint(path))


def state_path(checkpoint: Path) -> Path:
    """Return the file of a checkpoint from which training resumes."""
    return checkpoint / _STATE_FILE


def write_settings(output_directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a training run; StorageError if this fails."""
    write_text(output_directory / TRAINING_FILE, json_text(settings))


def read_settings(output_directory: Path) -> dict[str, Any]:
    """Return the settings of a training run; ConfigError if the directory contains no training run."""
    path = output_directory / TRAINING_FILE
    if not path.is_file():
        raise ConfigError(Problem(f"'{output_directory}' holds no {TRAINING_FILE} to go on with", key="--resume"))
    return json.loads(path.read_text(encoding="utf-8"))


# Choose the samples and random numbers of each rank at each step. Pure functions.
#
# Everything follows from the seed, the rank and the number of the step. So a resumed run draws the same as an
# uninterrupted one, and no state of a generator must be saved.

_ORDER, _NOISE, _AUGMENTATION = range(3)


def batch_numbers(step: int, *, rank: int, world_size: int, batch_size: int, num_samples: int, seed: int) -> np.ndarray:
    """Return the sample numbers of one rank's batch after `step` optimiser steps. Shape: (batch_size,), int64."""
    # Ranks take neighbouring pieces of one stream: two ranks with batches of n draw the same as one process with
    # batches of 2 n. Each pass over the samples has its own shuffled order.
    first = (step * world_size + rank) * batch_size
    positions = np.arange(first, first + batch_size)
    passes, places = np.divmod(positions, num_samples)
    return np.array([_order(int(turn), num_samples, seed)[place] for turn, place in zip(passes, places, strict=True)])


def noise_generator(step: int, *, rank: int, seed: int) -> torch.Generator:
    """Return the generator of a rank's noise and flow times at one step, on the CPU."""
    return _generator(seed, _NOISE, rank, step)


def augmentation_generator(step: int, *, rank: int, seed: int) -> torch.Generator:
    """Return the generator of a rank's image augmentation at one step, on the CPU."""
    return _generator(seed, _AUGMENTATION, rank, step)


@lru_cache(maxsize=2)
def _order(turn: int, num_samples: int, seed: int) -> np.ndarray:
    stream = np.random.SeedSequence(seed, spawn_key=(_ORDER, turn))
    return np.random.default_rng(stream).permutation(num_samples)


def _generator(*key: int) -> torch.Generator:
    seed, *rest = key
    stream = np.random.SeedSequence(seed, spawn_key=tuple(rest))
    return torch.Generator().manual_seed(int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1)))


# Make one rank's optimiser steps, average the weights, and save a state to resume from.


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained.

    Attributes:
        max_steps: Optimiser steps.
        batch_size: Control steps in each rank's batch.
        noise_draws: Draws of noise and flow time for each control step; pictures are encoded once for all.
        learning_rate: Its largest value, after the warm-up.
        warmup_steps: Steps in which it rises from 0; then it falls along a cosine to a hundredth.
        weight_decay: Weight decay of AdamW, on matrices only.
        max_grad_norm: Longer gradients are scaled down to this norm.
        ema_decay: The saved weights are a moving average; each step it moves by ``1 - ema_decay``.
        random_shift_px: Largest random shift of training images in each direction [px].
        seed: Seed of weights, order and noise.
    """

    max_steps: Count = 10_000
    batch_size: Count = 64
    noise_draws: Count = 4
    learning_rate: Positive = 1e-3
    warmup_steps: NotNegative = 200
    weight_decay: Amount = 1e-4
    max_grad_norm: Positive = 1.0
    ema_decay: Share = 0.999
    random_shift_px: NotNegative = 1
    seed: NotNegative = 0


class DivergedError(ArenaError):
    """The loss became NaN or infinite, so training cannot continue."""


class Trainer:
    """Trains a model on the demonstrations of one robot."""

    def __init__(
        self,
        model: Gr00tSmall,
        processor: Gr00tSmallProcessor,
        embodiment_tag: str,
        data: DemonstrationSteps,
        settings: TrainingSettings,
        context: DistributedContext,
    ) -> None:
        self.settings = settings
        self.num_steps = 0
        # From now on the processor augments images, and the model is changed in place.
        self._processor = processor.train()
        self._processor.random_shift_px = settings.random_shift_px
        self._tag = embodiment_tag
        self._data = data
        self._context = context
        nn.Module.to(model, context.device)
        self._model = model.train()
        self._average = copy.deepcopy(self._model).eval().requires_grad_(requires_grad=False)
        # The forward pass uses torch's wrapper, so that the weights have the same bits on all ranks after every step.
        self._wrapped = self._model
        if context.is_distributed:
            # A dimension of size 1 may have any stride, and kernels of one pixel have two such dimensions.
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
            device_ids = [context.device] if context.device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self._model, device_ids=device_ids)
        self._optimizer = torch.optim.AdamW(_parameter_groups(self._model, settings), lr=settings.learning_rate)

    @property
    def model(self) -> Gr00tSmall:
        """The weights under training."""
        return self._model

    @property
    def average(self) -> Gr00tSmall:
        """The averaged weights, which checkpoints contain."""
        return self._average

    def step(self) -> float:
        """Make one optimiser step and return this rank's loss; DivergedError if it is NaN or infinite."""
        settings, rank = self.settings, self._context.rank
        learning_rate = self.learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        # Samples, augmentation and noise follow from seed, rank and step, so that a resumed run repeats them.
        numbers = batch_numbers(
            self.num_steps,
            rank=rank,
            world_size=self._context.world_size,
            batch_size=settings.batch_size,
            num_samples=len(self._data),
            seed=settings.seed,
        )
        inputs = self._inputs(
            self._data.batch(numbers),
            generator=augmentation_generator(self.num_steps, rank=rank, seed=settings.seed),
        )
        noise = noise_generator(self.num_steps, rank=rank, seed=settings.seed)
        with self._precision():
            loss = self._wrapped(inputs, noise_draws=settings.noise_draws, generator=noise).loss
        # Stop before the gradients spoil the weights.
        if not torch.isfinite(loss):
            message = f"the loss is {loss.item()} at step {self.num_steps}; a smaller --learning_rate may help"
            raise DivergedError(message)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), settings.max_grad_norm)
        self._optimizer.step()
        self.num_steps += 1
        self._move_average()
        return float(loss.detach())

    def learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        return learning_rate_at(self.num_steps, self.settings)

    @torch.no_grad()
    def validation_loss(self, data: DemonstrationSteps, *, max_samples: int = 512) -> float:
        """Return the averaged weights' loss on at most `max_samples` evenly spread steps; the same at every call."""
        self._processor.eval()
        numbers = torch.linspace(0, len(data) - 1, min(max_samples, len(data))).long().tolist()
        total = 0.0
        for start in range(0, len(numbers), self.settings.batch_size):
            part = numbers[start : start + self.settings.batch_size]
            inputs = self._inputs(data.batch(part), generator=None)
            generator = noise_generator(start, rank=0, seed=self.settings.seed + 1)
            with self._precision():
                total += float(self._average(inputs, noise_draws=4, generator=generator).loss) * len(part)
        self._processor.train()
        return total / len(numbers)

    def state(self) -> dict[str, Any]:
        """Return the tensors and numbers for `load_state`."""
        return {
            "num_steps": self.num_steps,
            "model": self._model.state_dict(),
            "average": self._average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another trainer with the same settings."""
        self.num_steps = int(state["num_steps"])
        self._model.load_state_dict(state["model"])
        self._average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _inputs(self, batch: DemonstrationBatch, *, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
        return dict(
            self._processor(
                batch.observation,
                self._tag,
                action=batch.action,
                action_is_padding=batch.is_padding,
                generator=generator,
                device=self._context.device,
            )
        )

    def _precision(self) -> AbstractContextManager[object]:
        if self._context.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def _move_average(self) -> None:
        # Early in training the random first weights must not weigh much in the average.
        decay = min(self.settings.ema_decay, (1 + self.num_steps) / (10 + self.num_steps))
        for average, trained in zip(self._average.parameters(), self._model.parameters(), strict=True):
            average.lerp_(trained, 1 - decay)


def learning_rate_at(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate after `step` steps: a linear warm-up, then a cosine decay to a hundredth."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    span = max(1, settings.max_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    return settings.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def _parameter_groups(model: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
