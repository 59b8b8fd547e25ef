"""Make the contact sheets of change: the effect of each axis at each level, as the head camera sees it.

Each axis shows the episode that it moves farthest, the robot's start the one whose robot stays most in the picture.
Look at the sheets before committing them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from benchmarks import ROOT
from benchmarks.artifacts.task_catalog import LEVELS, level_value, tasks
from benchmarks.harness.environments import CPU, episodes
from benchmarks.harness.measure import run
from isaaclab_arena.environments.arena.builder import TableTask
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, LANGUAGE, Axis, enabled_variations
from isaaclab_arena.environments.variations.senses import build_varied, offered_variations
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Conditions, Episode

CAMERA = "robot_head_cam"
UNSEEN = ("object_mass", "object_friction", "action_noise", "sensor_noise", "delay", LANGUAGE)
"""Axes that no still picture of the beginning of an episode shows."""

SHEETS = {
    "scene": [axis.name for axis in AXES.values() if not axis.name.startswith("picture_") and axis.name not in UNSEEN],
    "pictures": [axis.name for axis in AXES.values() if axis.name.startswith("picture_")],
}
"""Axes of the world, and axes of its picture."""

CLOSE: dict[str, int] = dict.fromkeys(("object_position", "object_yaw", "object_size", "object_color"), 3)
"""Axes that show a part of a larger picture, with the factor of its size and the object, if any, in the middle."""

TILE = 144
_LONGEST_CAPTION = 24
_CAPTION, _GAP, _LEFT, _TOP = 15, 4, 118, 20
_QUALITY = 75
_INK = (51, 65, 85)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    output: Path = ROOT / "docs" / "images" / "robustness"  # Directory of <task>_<sheet>.jpg.
    episodes: int = 40  # Episodes to choose from for each axis.
    only: tuple[str, ...] = ()  # Tasks to show; by default all.


def starts(environment: TableEnvironment, each: Sequence[Episode]) -> list[Conditions]:
    """Return the conditions of episodes."""
    drawn = [environment.draw_conditions(episode.conditions_generator()) for episode in each]
    return [environment.vary_conditions(own, episode) for own, episode in zip(drawn, each, strict=True)]


def farthest(axis: Axis, catalogue: Sequence[Variation], drawn: Sequence[Conditions]) -> int:
    """Return the episode that an axis moves farthest at its edge, as a share of the ranges of its variations."""
    on = enabled_variations(catalogue, axis.settings(catalogue, EDGE_LEVEL))

    def way(conditions: Conditions) -> float:
        shares = []
        for variation in on:
            low, high, middle = (
                np.array(each) for each in (variation.sampler.low, variation.sampler.high, variation.nominal)
            )
            span = np.maximum(high - middle, middle - low)
            moved = np.abs(np.atleast_1d(np.array(conditions[variation.key], float)) - middle)
            shares.append(float((moved / np.where(span > 0, span, 1.0)).mean()))
        return sum(shares)

    return max(range(len(drawn)), key=lambda index: way(drawn[index]))


def most_seen(environments: Sequence[TableEnvironment], numbered: Sequence[Episode]) -> int:
    """Return the episode with the largest robot in the picture, at the level with the smallest."""

    def share(environment: TableEnvironment, conditions: Conditions) -> float:
        shown = environment.reset(torch.tensor([0]), [conditions])["camera_obs"][f"{CAMERA}_segmentation"]
        model = environment.backend.model
        robot = [index for index in range(model.nbody) if model.body(index).name.startswith("robot/")]
        return float(np.isin(shown.numpy(), robot).mean())

    shares = [[share(each, conditions) for conditions in starts(each, numbered)] for each in environments]
    return int(np.argmax(np.min(shares, axis=0)))


def built(builder: TableTask, settings: dict[str, Any], size: int) -> Any:
    """Return a single env slot with cameras and variations on."""
    config = builder.config_class(enable_cameras=True, camera_size=size, camera_segmentation=True)
    variations = enabled_variations(offered_variations(builder, config), settings)
    return build_varied(builder, config, num_envs=1, device=CPU, num_threads=1, variations=variations)


def pictures_of(builder: TableTask, axis: Axis, thing: str | None, options: Options) -> list[np.ndarray]:
    """Return pictures of one episode at levels 0 to 5, with a thing in the middle. Shape: (height, width, 3)."""
    catalogue = offered_variations(builder, builder.config_class())
    numbered = episodes(options.episodes)
    size = TILE if thing is None else CLOSE.get(axis.name, 1) * TILE
    settings = ({}, *(axis.settings(catalogue, level) for level in LEVELS))
    environments = [built(builder, each, size) for each in settings]
    if axis.name == "robot_start":
        chosen = numbered[most_seen(environments, numbered)]
    else:
        chosen = numbered[farthest(axis, catalogue, starts(environments[EDGE_LEVEL], numbered))]
    seen, corner = [], (0, 0)
    for level, environment in enumerate(environments):
        cameras = environment.reset(torch.tensor([0]), starts(environment, [chosen]))["camera_obs"]
        if level == 0 and thing is not None and size > TILE:
            corner = corner_around(environment, cameras[f"{CAMERA}_segmentation"][0].numpy(), f"{thing}/body")
        picture = cameras[f"{CAMERA}_rgb"][0].numpy()
        seen.append(picture[corner[0] : corner[0] + TILE, corner[1] : corner[1] + TILE])
    return seen


def corner_around(environment: TableEnvironment, bodies: np.ndarray, body: str) -> tuple[int, int]:
    """Return the upper left corner of a tile around a body. Shape of the body of each pixel: (height, width, 1)."""
    shown = np.argwhere(bodies[..., 0] == environment.backend.model.body(body).id)
    y, x = (round(float(each)) - TILE // 2 for each in shown.mean(axis=0))
    most = len(bodies) - TILE
    return min(max(y, 0), most), min(max(x, 0), most)


def captions(axis: Axis, catalogue: Sequence[Variation]) -> list[str]:
    """Return the captions of levels 0 to 5."""
    key = axis.variations(catalogue)[0].key
    if axis.name == "object_color" or len(axis.names) > 1:
        return ["as it is", *(f"level {level}" for level in LEVELS)]
    values = {level: level_value(axis, catalogue, level, key) for level in LEVELS}
    shown = (value if len(value) <= _LONGEST_CAPTION else f"level {level}" for level, value in values.items())
    return ["as it is", *shown]


def sheet(builder: TableTask, names: Sequence[str], options: Options) -> Image.Image:
    """Return a sheet with a line for each axis of the task, and a column for each level."""
    catalogue = offered_variations(builder, builder.config_class())
    axes = [AXES[name] for name in names if AXES[name].variations(catalogue)]
    things = built(builder, {}, TILE).task.spec.rigid_objects
    thing = next(iter(things.values())).partition("/")[0] if things else None
    size = (_LEFT + (1 + EDGE_LEVEL) * (TILE + _GAP), _TOP + len(axes) * (TILE + _CAPTION + _GAP))
    image = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=12)
    for column in (0, *LEVELS):
        draw.text((_LEFT + column * (TILE + _GAP), 3), f"level {column}", fill=_INK, font=font)
    for line, axis in enumerate(axes):
        top = _TOP + line * (TILE + _CAPTION + _GAP)
        draw.text((2, top + TILE / 2 - 8), axis.name.replace("_", "\n", 1), fill=_INK, font=font)
        shown = zip(pictures_of(builder, axis, thing, options), captions(axis, catalogue), strict=True)
        for column, (picture, caption) in enumerate(shown):
            left = _LEFT + column * (TILE + _GAP)
            image.paste(Image.fromarray(picture), (left, top))
            draw.text((left, top + TILE), caption, fill=_INK, font=font)
    return image


def main(options: Options) -> None:
    """Make every sheet."""
    options.output.mkdir(parents=True, exist_ok=True)
    for task, builder in tasks().items():
        if options.only and task not in options.only:
            continue
        for name, axes in SHEETS.items():
            made = sheet(builder, axes, options)
            made.save(options.output / f"{task}_{name}.jpg", quality=_QUALITY, optimize=True)


if __name__ == "__main__":
    run(main, Options)
