"""One rank's optimiser steps on recorded demonstrations: samples, averaged weights, and a state to resume from."""

import copy
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.modeling import Gr00tSmall
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from isaaclab_arena.config.options import Amount, Count, NotNegative, Positive, Share
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError, StorageError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.storage import episodes, layout
from isaaclab_arena_gr00t import observations

# Read recorded episodes as training data: every control step with the actions that followed it.


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """One recorded episode."""

    file: Path  # the recording
    episode_index: int  # in the recording
    num_steps: int
    instruction: str
    job: str  # the job that recorded it
    checksum: object = None  # of its arrays, as recorded; None if the recording has none


@dataclass(frozen=True, kw_only=True)
class DemonstrationBatch:
    """Some control steps of demonstrations."""

    observation: Mapping[str, Any]  # the model's input, as in an evaluation
    action: Mapping[str, np.ndarray]  # the following actions, by key; shape of each: (batch, horizon, size), float32
    is_padding: np.ndarray  # steps after the end of the episode; shape: (batch, horizon), bool


def find_demonstrations(files: Iterable[Path], *, only_successes: bool = True) -> list[Demonstration]:
    """Return the episodes of recordings by file and index; StorageError if unreadable, ConfigError if there is none."""
    found = []
    left_out = 0
    for file in files:
        for index in episodes.list_episodes(file):
            attributes = episodes.read_attributes(file, index)
            success = attributes.get("success")
            # Foreign recordings may hold any value; only a true boolean or integer counts as success.
            if only_successes and not (isinstance(success, bool | int) and success):
                left_out += 1
                continue
            # The recorded number of control steps must be that of the actions.
            actions, said = episodes.locate_arrays(file, index).get(layout.ACTIONS), attributes.get("num_samples")
            num_steps = 0 if actions is None or len(actions.shape) != 2 else actions.shape[0]
            if not isinstance(said, int) or said != num_steps:
                raise StorageError(
                    f"{file}: {layout.demo_name(index)}: num_samples: must be {num_steps}, the number of its actions, "
                    f"got {said!r:.80}"
                )
            if num_steps > 0:
                demonstration = Demonstration(
                    file=file,
                    episode_index=index,
                    num_steps=num_steps,
                    instruction=str(attributes.get("language_instruction", "")),
                    job=str(attributes.get("job", "")),
                    checksum=attributes.get("checksum"),
                )
                found.append(demonstration)
    if not found:
        why = f"; {left_out} did not succeed" if left_out else ""
        raise ConfigError(f"there is no demonstration in these recordings{why}", key="--dataset")
    return found


def recorded_spaces(demonstration: Demonstration, steps: episodes.RecordedSteps) -> observations.RecordedSpaces:
    """Return the observations and actions of a demonstration's environment; ConfigError if it has no pictures."""
    directories = {observations.CAMERA_GROUP: observations.CAMERA_GROUP, observations.STATE_GROUP: layout.OBSERVATIONS}
    groups: dict[str, dict[str, ArraySpec]] = {group: {} for group in directories}
    for name in steps.names(demonstration.file, demonstration.episode_index):
        for group, directory in directories.items():
            prefix = f"{directory}/"
            if name.startswith(prefix):
                array = _array(steps, demonstration, name)
                dtype = torch.uint8 if array.dtype == np.uint8 else torch.float32
                groups[group][name.removeprefix(prefix)] = ArraySpec(shape=tuple(array.shape[1:]), dtype=dtype)
    if not groups[observations.CAMERA_GROUP]:
        message = f"{demonstration.file} holds no pictures; record with isaaclab-arena collect"
        raise ConfigError(message, key="--dataset")
    action = _array(steps, demonstration, layout.ACTIONS)
    return observations.RecordedSpaces(observation_spec=groups, action_spec=ArraySpec(shape=tuple(action.shape[1:])))


class DemonstrationSteps:
    """All control steps of the demonstrations, numbered consecutively; `wiring` locates the model's data in them."""

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        wiring: observations.Wiring,
        *,
        horizon: int,
        steps: episodes.RecordedSteps,
    ) -> None:
        self.demonstrations = tuple(demonstrations)
        self._wiring = wiring
        self._horizon = horizon
        self._steps = steps
        # Number of the first step of each episode, and at the end the total number of steps.
        self._starts = np.cumsum([0, *(demonstration.num_steps for demonstration in self.demonstrations)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, numbers: Sequence[int] | np.ndarray) -> DemonstrationBatch:
        """Return the control steps of these numbers, each in [0, len(self)); shape of ``numbers``: (batch,)."""
        wiring = self._wiring
        places: list[tuple[Demonstration, int]] = []  # each with the step in the episode
        for each in numbers:
            number = int(each)
            episode = int(np.searchsorted(self._starts, number, side="right")) - 1
            places.append((self.demonstrations[episode], number - int(self._starts[episode])))

        def recorded(name: str) -> torch.Tensor:
            parts = [_array(self._steps, demonstration, name)[step] for demonstration, step in places]
            return torch.from_numpy(np.stack(parts))

        pictures, rows = observations.CAMERA_GROUP, list(range(len(places)))
        observed = {
            pictures: {camera: recorded(f"{pictures}/{camera}") for camera in wiring.cameras.values()},
            observations.STATE_GROUP: {term: recorded(f"{layout.OBSERVATIONS}/{term}") for term in wiring.state_terms},
        }
        # Use what an evaluation uses, so that the model sees the same inputs in training.
        instructions = [demonstration.instruction for demonstration, _ in places]
        inputs = observations.ModelInputs(wiring, num_envs=len(rows))
        observation = inputs.of(observed, rows, instructions, as_tensors=True)

        # The actions from each step on; at the end of an episode its last action is repeated.
        chunks: list[np.ndarray] = []
        paddings: list[np.ndarray] = []
        for demonstration, step in places:
            actions = _array(self._steps, demonstration, layout.ACTIONS)
            wanted = np.arange(step, step + self._horizon)
            chunks.append(np.asarray(actions[np.minimum(wanted, len(actions) - 1)], np.float32))
            paddings.append(wanted >= len(actions))
        groups = observations.to_groups(torch.from_numpy(np.stack(chunks)), wiring.action)
        return DemonstrationBatch(
            observation=observation,
            action={key: values.numpy() for key, values in groups.items()},
            is_padding=np.stack(paddings),
        )

    def states(self) -> dict[str, np.ndarray]:
        """Return the state at every step, by key. Shape of each: (num_steps, size), float32."""
        if not self._wiring.state_terms:
            return {}
        states = np.concatenate(
            [self._all(f"{layout.OBSERVATIONS}/{term}") for term in self._wiring.state_terms], axis=1
        )
        return {key: states[:, list(columns)] for key, columns in self._wiring.state.items()}

    def actions(self) -> dict[str, np.ndarray]:
        """Return the action at every step, by key. Shape of each: (num_steps, size), float32."""
        actions = self._all(layout.ACTIONS)
        return {key: actions[:, list(columns)] for key, columns in self._wiring.action.items()}

    def _all(self, name: str) -> np.ndarray:
        arrays = (_array(self._steps, demonstration, name) for demonstration in self.demonstrations)
        return np.concatenate([np.asarray(array, np.float32) for array in arrays])


def split(demonstrations: Sequence[Demonstration], *, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of the demonstrations to train on and to hold out, both ascending."""
    generator = np.random.default_rng(seed)
    by_job: dict[str, list[int]] = {}
    for position, demonstration in enumerate(demonstrations):
        by_job.setdefault(demonstration.job, []).append(position)
    held_out: list[int] = []
    # Take the share from every job, so that every task is validated. A job with two or more episodes holds out at least
    # one, unless the share is 0.
    for positions in by_job.values():
        number = round(share * len(positions))
        if share > 0 and len(positions) > 1:
            number = min(max(number, 1), len(positions) - 1)
        held_out += generator.permutation(positions)[:number].tolist()
    chosen = set(held_out)
    return [position for position in range(len(demonstrations)) if position not in chosen], sorted(chosen)


def _array(steps: episodes.RecordedSteps, demonstration: Demonstration, name: str) -> np.ndarray:
    return steps.array(demonstration.file, demonstration.episode_index, name)


# Choose the samples and random numbers of each rank at each step. Pure functions.
#
# Everything follows from the seed, the rank and the number of the step. So a resumed run draws the same as an
# uninterrupted one, and no state of a generator must be saved.

_ORDER, NOISE, AUGMENTATION = range(3)


def batch_numbers(step: int, *, rank: int, world_size: int, batch_size: int, num_samples: int, seed: int) -> np.ndarray:
    """Return the sample numbers of one rank's batch after `step` optimiser steps. Shape: (batch_size,), int64."""
    # Ranks take neighbouring pieces of one stream: two ranks with batches of n draw the same as one process with
    # batches of 2 n. Each pass over the samples has its own shuffled order.
    first = (step * world_size + rank) * batch_size
    positions = np.arange(first, first + batch_size)
    passes, places = np.divmod(positions, num_samples)
    return np.array([_order(int(turn), num_samples, seed)[place] for turn, place in zip(passes, places, strict=True)])


def step_generator(purpose: int, step: int, *, rank: int, seed: int) -> torch.Generator:
    """Return a rank's generator at one step on the CPU, for `NOISE` with flow times or `AUGMENTATION` of images."""
    stream = np.random.SeedSequence(seed, spawn_key=(purpose, rank, step))
    return torch.Generator().manual_seed(int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1)))


@lru_cache(maxsize=2)
def _order(turn: int, num_samples: int, seed: int) -> np.ndarray:
    stream = np.random.SeedSequence(seed, spawn_key=(_ORDER, turn))
    return np.random.default_rng(stream).permutation(num_samples)


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
        self.model = model.train()
        # The averaged weights, which checkpoints contain.
        self.average = copy.deepcopy(self.model).eval().requires_grad_(requires_grad=False)
        # The forward pass uses torch's wrapper, so that the weights have the same bits on all ranks after every step.
        self._wrapped = self.model
        if context.is_distributed:
            # A dimension of size 1 may have any stride, and kernels of one pixel have two such dimensions.
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
            device_ids = [context.device] if context.device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self.model, device_ids=device_ids)
        # Only matrices decay.
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [each for each in trained if each.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)

    def step(self) -> float:
        """Make one optimiser step and return this rank's loss; DivergedError if it is NaN or infinite."""
        settings, rank = self.settings, self._context.rank
        learning_rate = learning_rate_at(self.num_steps, settings)
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
        loss = self._loss(
            self._wrapped,
            self._data.batch(numbers),
            augmentation=step_generator(AUGMENTATION, self.num_steps, rank=rank, seed=settings.seed),
            noise=step_generator(NOISE, self.num_steps, rank=rank, seed=settings.seed),
            noise_draws=settings.noise_draws,
        )
        # Stop before the gradients spoil the weights.
        if not torch.isfinite(loss):
            message = f"the loss is {loss.item()} at step {self.num_steps}; a smaller --learning_rate may help"
            raise DivergedError(message)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_grad_norm)
        self._optimizer.step()
        self.num_steps += 1

        # Early in training the random first weights must not weigh much in the average.
        decay = min(settings.ema_decay, (1 + self.num_steps) / (10 + self.num_steps))
        with torch.no_grad():
            for average, weights in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.lerp_(weights, 1 - decay)
        return float(loss.detach())

    @torch.no_grad()
    def validation_loss(self, data: DemonstrationSteps, *, max_samples: int = 512) -> float:
        """Return the averaged weights' loss on at most `max_samples` evenly spread steps; the same at every call."""
        self._processor.eval()
        numbers = torch.linspace(0, len(data) - 1, min(max_samples, len(data))).long().tolist()
        total = 0.0
        for start in range(0, len(numbers), self.settings.batch_size):
            part = numbers[start : start + self.settings.batch_size]
            noise = step_generator(NOISE, start, rank=0, seed=self.settings.seed + 1)
            loss = self._loss(self.average, data.batch(part), augmentation=None, noise=noise, noise_draws=4)
            total += float(loss) * len(part)
        self._processor.train()
        return total / len(numbers)

    def state(self) -> dict[str, Any]:
        """Return the tensors and numbers for `load_state`."""
        return {
            "num_steps": self.num_steps,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another trainer with the same settings."""
        self.num_steps = int(state["num_steps"])
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _loss(
        self,
        model: nn.Module,
        batch: DemonstrationBatch,
        *,
        augmentation: torch.Generator | None,
        noise: torch.Generator,
        noise_draws: int,
    ) -> torch.Tensor:
        """Return the loss of a model on a batch, on a GPU in mixed precision; `augmentation` None: none."""
        inputs = self._processor(
            batch.observation,
            self._tag,
            action=batch.action,
            action_is_padding=batch.is_padding,
            generator=augmentation,
            device=self._context.device,
        )
        is_gpu = self._context.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16) if is_gpu else nullcontext():
            return model(dict(inputs), noise_draws=noise_draws, generator=noise).loss


def learning_rate_at(step: int, settings: TrainingSettings) -> float:
    """Return the learning rate after `step` steps: a linear warm-up, then a cosine decay to a hundredth."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    span = max(1, settings.max_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    return settings.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
