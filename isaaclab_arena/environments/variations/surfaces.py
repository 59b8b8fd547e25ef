"""Cover the table and the floor with other patterns, more or less of each mixed into what is there."""

from collections.abc import Iterator, Mapping, Sequence

import mujoco
import numpy as np

from isaaclab_arena.environments.mdp.conditions import number
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Episode
from isaaclab_arena.interfaces.variation import Variation
from isaaclab_arena.sim.model_changes import ModelChange, retextured
from isaaclab_arena.sim.scene.scene import SceneTexture, texture_of

SURFACES: Mapping[str, str] = {"table": "wood", "background": "floor"}
"""Asset of a variation to the material of the scene that it covers."""

_COARSENESS = {"table": 1, "background": 2}
"""The floor repeats its texture on fewer metres."""

TEXTURE, PATTERN = "texture", "pattern"
WHOLE = 5
"""A texture counts in fifths: of so many parts nothing is left of the scene's own."""

_SIZE = 256
_CHARCOAL, _CREAM, _TAN, _VIOLET = (58, 60, 66), (236, 228, 206), (176, 148, 112), (126, 96, 150)
_GREY, _ASH, _TEAL, _ROSE = (150, 152, 156), (206, 208, 210), (84, 142, 140), (206, 160, 166)
_COLOURS = (
    (_CREAM, _TEAL),
    (_CHARCOAL, _GREY),
    (_ASH, _VIOLET),
    (_TAN, _CHARCOAL),
    (_ROSE, _CREAM),
    (_TEAL, _CHARCOAL),
)
NUM_PATTERNS = len(_COLOURS)


def covered(variations: Sequence[Variation]) -> tuple[str, ...]:
    """Return which surfaces variations change, by their asset."""
    return tuple(each.asset for each in variations if each.name == TEXTURE)


def surface_textures(scene: str, assets: Sequence[str]) -> Iterator[SceneTexture]:
    """Yield each mixture of each pattern with a surface's own texture.

    Args:
        scene: Path of the scene's MJCF file, relative to the package's assets.
        assets: The surfaces.
    """
    for asset in assets:
        own = _resized(texture_of(scene, SURFACES[asset])).astype(np.int64)
        for pattern in range(NUM_PATTERNS):
            other = pattern_pixels(pattern, _COARSENESS[asset]).astype(np.int64)
            for parts in range(1, WHOLE + 1):
                pixels = ((WHOLE - parts) * own + parts * other + WHOLE // 2) // WHOLE
                yield SceneTexture(name=_name(asset, pattern, parts), pixels=pixels.astype(np.uint8))


def pattern_pixels(pattern: int, coarseness: int) -> np.ndarray:
    """Return a pattern that repeats without a seam. Shape: (256, 256, 3), uint8.

    Args:
        pattern: Which one, from 0.
        coarseness: 1, or 2 for one that is twice as coarse.
    """
    y, x = np.mgrid[:_SIZE, :_SIZE] // coarseness
    of_first = (
        (x // 32) % 2 == 0,
        (x // 64 + y // 64) % 2 == 0,
        (x % 64 - 32) ** 2 + (y % 64 - 32) ** 2 > 18**2,
        _scatter(x // 8, y // 8) % 3 > 0,
        (x % 64 < 44) & (y % 64 < 44),
        (_wave(x, 128) + _wave(y, 128)) % 64 < 32,
    )[pattern]
    first, second = _COLOURS[pattern]
    return np.where(of_first[..., None], np.array(first), np.array(second)).astype(np.uint8)


def drawn_patterns(conditions: Conditions, episode: Episode) -> dict[str, ConditionValue]:
    """Return which pattern each surface gets, the same for every mixture.

    Args:
        conditions: The episode's, the mixtures among them.
        episode: The episode.
    """
    return {
        f"{asset}.{PATTERN}": int(NUM_PATTERNS * episode.variation_generator(f"{asset}.{PATTERN}").random())
        for asset in SURFACES
        if f"{asset}.{TEXTURE}" in conditions
    }


def surface_changes(model: mujoco.MjModel, conditions: Conditions) -> Iterator[ModelChange]:
    """Yield what is different in the model where surfaces are covered; none where nothing is mixed in."""
    for asset, material in SURFACES.items():
        parts = round(number(conditions.get(f"{asset}.{TEXTURE}", 0)))
        if parts > 0:
            pattern = round(number(conditions[f"{asset}.{PATTERN}"]))
            yield retextured(model, material, _name(asset, pattern, parts))


def _name(asset: str, pattern: int, parts: int) -> str:
    return f"{asset}_{TEXTURE}_{pattern}_{parts}"


def _resized(pixels: np.ndarray) -> np.ndarray:
    """Return a texture of 256 lines and columns, by means of the pixels that become one."""
    tall, wide = (side // _SIZE for side in pixels.shape[:2])
    blocks = pixels.reshape(_SIZE, tall, _SIZE, wide, 3).astype(np.int64)
    return (blocks.sum(axis=(1, 3)) + tall * wide // 2) // (tall * wide)


def _wave(values: np.ndarray, length: int) -> np.ndarray:
    """Return whole numbers that rise and fall with a period."""
    return np.abs(values % length - length // 2)


def _scatter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return whole numbers without an order that one would see, the same on every machine."""
    mixed = (x * 73856093) ^ (y * 19349663)
    return (mixed * 2654435761 % 2**32) >> 16
