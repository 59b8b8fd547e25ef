"""Turn images into tokens by a convolutional backbone, modulation by the instruction, and keypoints.

Small data needs strong priors. Keypoints by spatial softmax (Levine et al. 2016; Diffusion Policy) locate an object to
a fraction of a cell. The instruction modulates the features first (FiLM, Perez et al. 2018) and so selects the object.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ConvNextBackbone

from gr00t.model.configuration import Gr00tSmallConfig


class VisionFeatures(NamedTuple):
    """The image features for the action head."""

    # Keypoints and coarse patches of every view. Shape: (batch, views * (keypoints + patches**2), hidden).
    tokens: Tensor
    # Positions of the keypoints of all views. Shape: (batch, hidden).
    summary: Tensor


def spatial_softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Turn maps (images, keypoints, height, width) into weights over cells and mean positions (x, y) in [-1, 1]."""
    height, width = logits.shape[-2:]
    # Shapes: weights (images, keypoints, height * width), positions (images, keypoints, 2). Both are float32: half
    # precision would round positions to a tenth of a cell.
    weights = logits.flatten(-2).float().softmax(dim=-1)
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height, device=logits.device),
        torch.linspace(-1, 1, width, device=logits.device),
        indexing="ij",
    )
    grid = torch.stack([x.flatten(), y.flatten()], dim=-1)
    return weights, weights @ grid


class VisionEncoder(nn.Module):
    """Encodes all views of a batch at once."""

    def __init__(self, config: Gr00tSmallConfig) -> None:
        super().__init__()
        self.num_patches = config.num_patches
        self.backbone = ConvNextBackbone(config.vision_config)
        channels = config.vision_feature_size
        self.laterals = nn.ModuleList([nn.Conv2d(size, channels, kernel_size=1) for size in self.backbone.channels])
        self.film_text = nn.Linear(config.text_config.hidden_size, 2 * channels)
        self.film_view = nn.Embedding(config.max_views, 2 * channels)
        self.keypoint_logits = nn.Conv2d(channels, config.num_keypoints, kernel_size=1)
        self.keypoint_sharpness = nn.Parameter(torch.empty(()))
        self.keypoint_token = nn.Linear(channels + 2, config.hidden_size)
        self.patch_token = nn.Linear(channels, config.hidden_size)
        tokens_per_view = config.num_keypoints + config.num_patches**2
        self.token_position = nn.Parameter(torch.empty(config.max_views, tokens_per_view, config.hidden_size))
        self.summary = nn.Parameter(torch.empty(config.max_views, 2 * config.num_keypoints, config.hidden_size))

    def reset_parameters(self) -> None:
        """Draw the parameters that belong to no layer; initially the instruction has no effect."""
        nn.init.constant_(self.keypoint_sharpness, 4.0)
        nn.init.normal_(self.token_position, std=0.02)
        nn.init.normal_(self.summary, std=self.summary.shape[1] ** -0.5)

    def forward(self, pixel_values: Tensor, view_mask: Tensor, text: Tensor) -> VisionFeatures:
        """Encode images (batch, views, 3, height, width) in [0, 255], modulated by text (batch, text_hidden)."""
        batch, views = pixel_values.shape[:2]
        pixels = pixel_values.flatten(0, 1).to(text.dtype) / 127.5 - 1.0
        feature_map = self._feature_map(pixels.contiguous(memory_format=torch.channels_last))
        feature_map = functional.gelu(self._modulate(feature_map.unflatten(0, (batch, views)), text))
        weights, positions = spatial_softmax(self.keypoint_sharpness * self.keypoint_logits(feature_map.flatten(0, 1)))
        cells = feature_map.flatten(0, 1).flatten(-2).transpose(1, 2)
        seen = torch.cat([weights.to(cells.dtype) @ cells, positions.to(cells.dtype)], dim=-1)
        patches = functional.adaptive_avg_pool2d(feature_map.flatten(0, 1), self.num_patches)
        tokens = torch.cat([self.keypoint_token(seen), self.patch_token(patches.flatten(-2).transpose(1, 2))], dim=1)
        tokens = tokens.unflatten(0, (batch, views)) + self.token_position[:views]
        places = positions.to(cells.dtype).unflatten(0, (batch, views)).flatten(-2)
        # `view_mask` (batch, views) is False for views that an embodiment does not have.
        places = places * view_mask.unsqueeze(-1).to(places.dtype)
        return VisionFeatures(tokens.flatten(1, 2), torch.einsum("bvk,vkh->bh", places, self.summary[:views]))

    def _feature_map(self, pixels: Tensor) -> Tensor:
        """Return one map with the backbone's finest resolution. Shape: (images, channels, height, width)."""
        maps = self.backbone(pixels).feature_maps
        combined = self.laterals[0](maps[0])
        for lateral, coarser in zip(list(self.laterals)[1:], maps[1:], strict=True):
            combined = combined + functional.interpolate(lateral(coarser), size=combined.shape[-2:], mode="nearest")
        return combined

    def _modulate(self, feature_map: Tensor, text: Tensor) -> Tensor:
        """Scale and shift each channel by instruction and camera (FiLM). Shape: (batch, views, C, H, W)."""
        views = feature_map.shape[1]
        film = self.film_text(text).unsqueeze(1) + self.film_view.weight[:views]
        scale, shift = film[..., None, None].chunk(2, dim=2)
        return feature_map * (1.0 + scale) + shift
