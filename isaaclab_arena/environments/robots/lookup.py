"""Find the robot that an ``embodiment`` option names, and refuse tasks beyond its reach."""

import math
from functools import lru_cache

import numpy as np

from isaaclab_arena.environments.catalog import EMBODIMENTS
from isaaclab_arena.environments.mdp.conditions import point
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.described import described_embodiment
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean

_SAMPLES = 16
_POSITION = ".position"


def find_embodiment(name: object) -> Embodiment:
    """Return the robot with that name, or the one that a description file describes.

    Args:
        name: A registered name, or the path of a YAML file, relative to the working directory.

    Raises:
        ConfigError: With ``key`` set to ``embodiment``, every problem of a description at once.
    """
    try:
        if isinstance(name, str) and name.lower().endswith((".yaml", ".yml")):
            return _described(name)
        if isinstance(name, str) and name in EMBODIMENTS:
            return EMBODIMENTS.get(name)
    except ConfigError as error:
        raise ConfigError([Problem(str(problem), key="embodiment") for problem in error.problems]) from error
    hint = did_you_mean(str(name), EMBODIMENTS.names())
    raise ConfigError(Problem(f"no embodiment called '{name}'{hint}", key="embodiment"))


def refuse_too_tall(thing: ObjectAsset, embodiment: Embodiment) -> None:
    """Refuse an object that the robot cannot bring its hand above or behind.

    Raises:
        ConfigError: If it is taller than the robot can grasp from above or push.
    """
    height_m, tallest_m = 2 * thing.half_height, embodiment.workspace.tallest_m
    if height_m > tallest_m:
        message = (
            f"object '{thing.name}' is {height_m:.2f} m tall, but '{embodiment.robot.name}' can bring its hand over "
            f"things of at most {tallest_m:.2f} m"
        )
        raise ConfigError(Problem(message, key="object"))


def refuse_out_of_reach(task: Task, embodiment: Embodiment) -> None:
    """Refuse a task that puts things where the robot cannot touch them.

    Raises:
        ConfigError: If any ``<thing>.position`` of some drawn starts is farther from the base than the robot reaches.
    """
    base_x, base_y, _ = embodiment.position
    for seed in range(_SAMPLES):
        for name, value in task.draw_conditions(np.random.default_rng(seed)).items():
            if not name.endswith(_POSITION):
                continue
            x, y, *_ = point(value)
            distance_m = math.hypot(x - base_x, y - base_y)
            if distance_m > embodiment.workspace.reach_m:
                thing, robot = name.removesuffix(_POSITION), embodiment.robot.name
                raise ConfigError(
                    Problem(
                        f"'{task.spec.name}' puts the {thing} {distance_m:.2f} m from the base of '{robot}', "
                        f"which reaches {embodiment.workspace.reach_m:.2f} m",
                        key="embodiment",
                    )
                )


@lru_cache(maxsize=32)
def _described(path: str) -> Embodiment:
    return described_embodiment(path)
