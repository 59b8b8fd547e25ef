"""Convert between a robot's nested observations and the model's padded tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BatchFeature, PreTrainedTokenizerBase, ProcessorMixin

from gr00t import EmbodimentError
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.data.types import MODALITIES, KeyStatistics, ModalityConfig, ModalityConfigs

_NORMALIZATION = "min_max"
"""The only one: the range of the data becomes -1 to 1."""
# A normalised state beyond this limit is outside of the training data and would only disturb the network.
_STATE_LIMIT = 2.0
_SMALLEST_SCALE = 1e-6


def fit_images(images: Tensor, size: int) -> Tensor:
    """Scale uint8 images (images, 3, height, width) to fit a square of `size` [px], with the rest black."""
    # Images of the right size are not copied.
    height, width = images.shape[-2:]
    if height == width == size:
        return images
    ratio = size / max(height, width)
    new_height, new_width = max(1, round(height * ratio)), max(1, round(width * ratio))
    resized = functional.interpolate(
        images.float(), size=(new_height, new_width), mode="bilinear", antialias=True, align_corners=False
    )
    above, before = (size - new_height) // 2, (size - new_width) // 2
    padding = (before, size - new_width - before, above, size - new_height - above)
    return functional.pad(resized.round().clamp(0, 255).to(torch.uint8), padding)


def shift_randomly(images: Tensor, largest_px: int, generator: torch.Generator | None = None) -> Tensor:
    """Shift each image by whole pixels, at most `largest_px` in both directions, and repeat its border pixels."""
    count, _, height, width = images.shape
    # `generator` is on the CPU; None is torch's global generator.
    moves = torch.randint(-largest_px, largest_px + 1, (2, count, 1), generator=generator).to(images.device)
    lines = (torch.arange(height, device=images.device) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + moves[1]).clamp(0, width - 1)
    image = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, lines[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The shift and scale of some dimensions."""

    center: Tensor  # value that becomes 0; shape: (dimension,)
    scale: Tensor  # distance that becomes 1; shape: (dimension,)

    def state(self, values: Tensor) -> Tensor:
        """Normalise states. Shape: (..., dimension), kept."""
        return self._normalize(values).clamp(-_STATE_LIMIT, _STATE_LIMIT)

    def action(self, values: Tensor) -> Tensor:
        """Normalise actions to [-1, 1]. Shape: (..., dimension), kept."""
        return self._normalize(values).clamp(-1.0, 1.0)

    def physical_action(self, normalized: Tensor) -> Tensor:
        """Undo ``action``, and clip values to the range of the data. Shape: kept."""
        return normalized.clamp(-1.0, 1.0) * self.scale + self.center

    def _normalize(self, values: Tensor) -> Tensor:
        center, scale = (kept.to(values.device, non_blocking=True) for kept in (self.center, self.scale))
        return (values - center) / scale.clamp(min=_SMALLEST_SCALE)


def scaling(statistics: list[KeyStatistics]) -> Scaling:
    """Return the scaling of several keys, one after the other, which brings their range to [-1, 1]."""
    low, high = (
        torch.tensor([value for key in statistics for value in key[name]], dtype=torch.float32)
        for name in ("min", "max")
    )
    scale = (high - low) / 2
    still = scale < _SMALLEST_SCALE
    return Scaling(center=(low + high) / 2, scale=torch.where(still, torch.zeros_like(scale), scale))


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """One robot: its modalities and their statistics."""

    embodiment_id: int  # index of its projectors in the model
    modality_configs: ModalityConfigs
    statistics: dict[str, dict[str, KeyStatistics]]  # ``{"state": {key: statistics}, "action": {key: statistics}}``

    def __post_init__(self) -> None:
        for modality in MODALITIES:
            if modality not in self.modality_configs:
                raise EmbodimentError(
                    f"the modality configuration lacks '{modality}'; it needs {', '.join(MODALITIES)}"
                )
        # Policies use one instruction of the present step.
        language = self.modality_configs["language"]
        if not language.modality_keys or len(language.delta_indices) != 1:
            raise EmbodimentError(
                f"language needs a key and exactly one delta index, got {language.modality_keys} and "
                f"{language.delta_indices}"
            )
        for modality in ("state", "action"):
            for key in self.modality_configs[modality].modality_keys:
                if key not in self.statistics.get(modality, {}):
                    raise EmbodimentError(f"there are no statistics for {modality} '{key}'")

    @cached_property
    def dimensions(self) -> dict[str, dict[str, int]]:
        """Size of each key: ``{"state": {key: dimension}, "action": {key: dimension}}``, in the model's order."""
        return {
            modality: {
                key: len(self.statistics[modality][key]["min"]) for key in self.modality_configs[modality].modality_keys
            }
            for modality in ("state", "action")
        }

    def scaling(self, modality: str) -> Scaling:
        """Return the scaling of all keys of ``state`` or ``action``, one after the other."""
        return scaling([self.statistics[modality][key] for key in self.modality_configs[modality].modality_keys])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        configs = {
            modality: {"delta_indices": list(config.delta_indices), "modality_keys": list(config.modality_keys)}
            for modality, config in self.modality_configs.items()
        }
        return {"embodiment_id": self.embodiment_id, "modality_configs": configs, "statistics": self.statistics}


class Gr00tSmallProcessor(ProcessorMixin):
    """Turns observations into tensors, and the model's answers into actions. The checkpoint holds it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        embodiments: Mapping[str, Any],
        capacity: Mapping[str, int],
        image_size: int = 64,
        normalization: str = _NORMALIZATION,
        max_instruction_tokens: int = 24,
        random_shift_px: int = 4,
    ) -> None:
        if normalization != _NORMALIZATION:
            raise EmbodimentError(f"no normalization called {normalization!r} is known, {_NORMALIZATION!r} is")
        super().__init__(tokenizer)
        # Robots by tag value, as ``Embodiment.to_dict`` gives them: plain values, because the checkpoint holds them.
        self.embodiments = dict(embodiments)
        # Sizes of padded tensors: ``max_views``, ``max_state_horizon``, ``max_state_dim``, ``action_horizon``
        # and ``max_action_dim``.
        self.capacity = dict(capacity)
        self.image_size = image_size  # edge of the model's images [px]
        self.normalization = normalization
        self.max_instruction_tokens = max_instruction_tokens  # cuts longer instructions
        self.random_shift_px = random_shift_px  # largest shift of training images [px]
        self.training = False
        self._known: dict[str, Embodiment] = {}
        for tag, content in self.embodiments.items():
            kept = content["modality_configs"]
            # JSON may have changed the order.
            configs = {modality: ModalityConfig(**kept[modality]) for modality in MODALITIES if modality in kept}
            self._known[tag] = Embodiment(
                embodiment_id=content["embodiment_id"], modality_configs=configs, statistics=content["statistics"]
            )

    def train(self) -> "Gr00tSmallProcessor":
        """Augment images from now on."""
        self.training = True
        return self

    def eval(self) -> "Gr00tSmallProcessor":
        """Stop augmenting images."""
        self.training = False
        return self

    def get_modality_configs(self) -> dict[str, dict[str, ModalityConfig]]:
        """Return the modality configuration of every robot, by tag value."""
        return {tag: dict(embodiment.modality_configs) for tag, embodiment in self._known.items()}

    def embodiment(self, tag: "str | EmbodimentTag") -> Embodiment:
        """Return a robot's description; EmbodimentError if the tag is unknown here or in the checkpoint."""
        value = EmbodimentTag.resolve(tag).value
        if value not in self._known:
            raise EmbodimentError(
                f"this checkpoint knows no embodiment '{value}'; it knows: {', '.join(sorted(self._known))}"
            )
        return self._known[value]

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  robots have no text-and-images signature
        self,
        observation: Mapping[str, Any],
        embodiment_tag: str | EmbodimentTag,
        *,
        action: Mapping[str, np.ndarray] | None = None,
        action_is_padding: np.ndarray | None = None,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ) -> BatchFeature:
        """Turn a batch of observations of one robot into the model's inputs on `device`."""
        # Formats: ``video`` {camera: uint8 (B, T, H, W, 3)}, ``state`` {key: (B, T, D)}, as arrays or tensors on any
        # device, and ``language`` {key: list of B lists of one str}. In training `action` is {key: (B, horizon, D)} in
        # physical units; the loss leaves out steps where `action_is_padding` (B, horizon) is True. Padding gives all
        # tensors the same sizes, so ``torch.cat`` joins batches of several robots. `generator` is on the CPU.
        embodiment = self.embodiment(embodiment_tag)
        # Images (B, max_views, 3, size, size), uint8, and the mask of existing views (B, max_views).
        views: list[Tensor] = []
        for key in embodiment.modality_configs["video"].modality_keys:
            frames = observation["video"][key]
            pixels = frames if isinstance(frames, Tensor) else torch.from_numpy(np.ascontiguousarray(frames))
            pixels = pixels.to(device, non_blocking=True)
            images = fit_images(pixels.flatten(0, 1).permute(0, 3, 1, 2), self.image_size)
            if self.training and self.random_shift_px:
                images = shift_randomly(images, self.random_shift_px, generator)
            views.append(images.unflatten(0, pixels.shape[:2]))
        images, max_views = torch.cat(views, dim=1), self.capacity["max_views"]
        batch, count = images.shape[:2]
        inputs: dict[str, Any] = {
            "pixel_values": functional.pad(images, (0, 0, 0, 0, 0, 0, 0, max_views - count)),
            "view_mask": torch.arange(max_views).expand(batch, -1) < count,
        }

        # The first key holds the instruction. A fixed length keeps an entry independent of the others' instructions.
        language_key = embodiment.modality_configs["language"].modality_keys[0]
        words = self.tokenizer(
            [texts[0] for texts in observation["language"][language_key]],
            padding="max_length",
            truncation=True,
            max_length=self.max_instruction_tokens,
            return_tensors="pt",
        )
        inputs |= {"input_ids": words["input_ids"], "attention_mask": words["attention_mask"].bool()}

        state = _concatenate(observation["state"], embodiment.modality_configs["state"].modality_keys)
        normalized = embodiment.scaling("state").state(state)
        inputs["state"] = _pad(normalized, self.capacity["max_state_horizon"], self.capacity["max_state_dim"])
        inputs["embodiment_id"] = torch.full((batch,), embodiment.embodiment_id)
        if action is not None:
            inputs["action"], inputs["action_mask"] = self._action(action, action_is_padding, embodiment)
        return BatchFeature({name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()})

    def decode_action(self, action: Tensor, embodiment_tag: str | EmbodimentTag) -> dict[str, np.ndarray]:
        """Turn normalised actions (B, action_horizon, max_action_dim) into physical {key: float32 (B, horizon, D)}."""
        embodiment = self.embodiment(embodiment_tag)
        dimensions = embodiment.dimensions["action"]
        horizon = len(embodiment.modality_configs["action"].delta_indices)
        normalized = action[:, :horizon, : sum(dimensions.values())].detach().float().cpu()
        physical = embodiment.scaling("action").physical_action(normalized)
        parts = physical.split(list(dimensions.values()), dim=-1)
        return {key: part.contiguous().numpy() for key, part in zip(dimensions, parts, strict=True)}

    def continuation(
        self, actions: Mapping[str, np.ndarray], weights: np.ndarray, embodiment_tag: str | EmbodimentTag
    ) -> tuple[Tensor, Tensor]:
        """Turn planned physical actions {key: (B, steps, D)} and weights (B, steps) into the model's format."""
        # Shape of both results: (B, action_horizon, max_action_dim). Weights are 0 in padding.
        planned, mask = self._action(actions, None, self.embodiment(embodiment_tag))
        counts = torch.from_numpy(np.asarray(weights, dtype=np.float32))
        counts = functional.pad(counts, (0, self.capacity["action_horizon"] - counts.shape[1]))
        return planned, counts.unsqueeze(-1) * mask

    def _action(
        self, action: Mapping[str, np.ndarray], is_padding: np.ndarray | None, embodiment: Embodiment
    ) -> tuple[Tensor, Tensor]:
        """Return normalised actions and the mask of those that count. Shapes: (B, action_horizon, max_action_dim)."""
        values = _concatenate(action, embodiment.modality_configs["action"].modality_keys)
        normalized = embodiment.scaling("action").action(values)
        mask = torch.ones_like(normalized, dtype=torch.bool)
        if is_padding is not None:
            mask &= ~torch.from_numpy(np.asarray(is_padding, dtype=bool)).unsqueeze(-1)
        size = self.capacity["action_horizon"], self.capacity["max_action_dim"]
        return _pad(normalized, *size), _pad(mask, *size)


def _concatenate(values: Mapping[str, Any], keys: list[str]) -> Tensor:
    if isinstance(values[keys[0]], Tensor):
        return torch.cat([values[key].to(torch.float32) for key in keys], dim=-1)
    return torch.from_numpy(np.concatenate([np.asarray(values[key], dtype=np.float32) for key in keys], axis=-1))


def _pad(values: Tensor, steps: int, dimension: int) -> Tensor:
    """Pad with zeros at the end. Shapes: (B, t, d) -> (B, steps, dimension)."""
    return functional.pad(values, (0, dimension - values.shape[2], 0, steps - values.shape[1]))
