"""Make one rank's optimiser steps, average the weights, and save a state to resume from."""

import copy
import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.modeling import Gr00tSmall
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isaaclab_arena.config.options import Amount, Count, NotNegative, Positive, Share
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError
from isaaclab_arena_gr00t.training.demonstrations import DemonstrationBatch, DemonstrationSteps
from isaaclab_arena_gr00t.training.sampling import augmentation_generator, batch_numbers, noise_generator


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
    """The loss became NaN or infinite, so training cannot go on."""


class Trainer:
    """Trains a model on the demonstrations of one robot.

    The forward pass goes through torch's wrapper, so the weights have the same bits on all ranks after every step.

    Args:
        model: The model; it is moved to the rank's device and changed.
        processor: Its processor, whose images are augmented from now on.
        embodiment_tag: The robot.
        data: Control steps to learn from.
        settings: Settings of the training.
        context: Who this process is; the process group exists where there are several ranks.
    """

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
        self._processor = processor.train()
        self._processor.random_shift_px = settings.random_shift_px
        self._tag = embodiment_tag
        self._data = data
        self._context = context
        nn.Module.to(model, context.device)
        self._model = model.train()
        self._average = copy.deepcopy(self._model).eval().requires_grad_(requires_grad=False)
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
        """The averaged weights, which are the result."""
        return self._average

    def step(self) -> float:
        """Make one optimiser step and return this rank's loss.

        Raises:
            DivergedError: If the loss is NaN or infinite.
        """
        settings, rank = self.settings, self._context.rank
        learning_rate = self.learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
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
        """Return the averaged weights' loss on other demonstrations, the same at every call for the same weights.

        Args:
            data: The held-out demonstrations.
            max_samples: Largest number of control steps, spread evenly.
        """
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
        """Return the state for `load_state`: tensors and numbers."""
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
        # Early in training the average must not give the random first weights much weight.
        decay = min(self.settings.ema_decay, (1 + self.num_steps) / (10 + self.num_steps))
        for average, trained in zip(self._average.parameters(), self._model.parameters(), strict=True):
            average.lerp_(trained, 1 - decay)


def learning_rate_at(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate after a number of steps: a linear rise, then a cosine down to a hundredth."""
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
