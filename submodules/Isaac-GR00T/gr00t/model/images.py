"""Resizes images for the model, and shifts or tints them for training. Pure functions on uint8 tensors."""

import torch
from torch import Tensor
from torch.nn import functional


def fit_images(images: Tensor, size: int) -> Tensor:
    """Scale uint8 images (images, 3, height, width) to fit a square of `size` [px], with the rest black."""
    # Images that already have the size are returned as they are, not copied.
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


def tint_randomly(images: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Change brightness and contrast of each uint8 image by factors in [1 - strength, 1 + strength]."""
    # `generator` is on the CPU; None is torch's global generator.
    draws = torch.rand((2, len(images), 1, 1, 1), generator=generator).to(images.device)
    brightness, contrast = 1.0 + strength * (2.0 * draws - 1.0)
    values = images.float() * brightness
    mean = values.mean(dim=(1, 2, 3), keepdim=True)
    return ((values - mean) * contrast + mean).round().clamp(0, 255).to(torch.uint8)
