"""Resize pictures for a model to one size, with their aspect ratio kept."""

import torch
from torch.nn import functional


def resized_with_padding(images: torch.Tensor, *, height: int, width: int) -> torch.Tensor:
    """Return pictures in another size: scaled to fit, and centred on black.

    Shrinking averages over areas, enlarging is bilinear. A picture's result depends on that picture alone.

    Args:
        images: Shape: (n, any height, any width, channels), uint8.
        height: Height wanted [px].
        width: Width wanted [px].

    Returns:
        Shape: (n, height, width, channels), uint8; the argument itself where it has that size already.
    """
    now_height, now_width = images.shape[1:3]
    if (now_height, now_width) == (height, width):
        return images
    inner_height, inner_width = fitted_size(now_height, now_width, height=height, width=width)
    planes = images.permute(0, 3, 1, 2).to(torch.float32)
    if inner_height <= now_height and inner_width <= now_width:
        scaled = functional.interpolate(planes, size=(inner_height, inner_width), mode="area")
    else:
        scaled = functional.interpolate(planes, size=(inner_height, inner_width), mode="bilinear", align_corners=False)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    padded = torch.zeros((len(images), height, width, images.shape[3]), dtype=torch.uint8, device=images.device)
    inner = scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    padded[:, top : top + inner_height, left : left + inner_width] = inner
    return padded


def fitted_size(now_height: int, now_width: int, *, height: int, width: int) -> tuple[int, int]:
    """Return the largest height and width of the same aspect that fit, at least 1 each."""
    scale = min(height / now_height, width / now_width)
    return max(1, min(height, round(now_height * scale))), max(1, min(width, round(now_width * scale)))
