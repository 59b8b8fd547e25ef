"""The robot that an ``embodiment`` option names, and the files of robots and objects."""

import logging
import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from isaaclab_arena.environments.catalog import EMBODIMENTS
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.robots.described import described_embodiment
from isaaclab_arena.environments.robots.description import read_description
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.robots.motions import Finding, findings, measured_motions
from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean
from isaaclab_arena.interfaces.episode import point
from isaaclab_arena.sim.scene import ASSETS, ContentKey, content_key, files_of, stamps

_LOG = logging.getLogger(__name__)
_SAMPLES = 16
_POSITION = ".position"

_known: dict[Path, tuple[Embodiment, Path, tuple[ContentKey, ContentKey]]] = {}
"""Described robots by the absolute path of the description, with the MJCF file that it names and all content."""


def find_embodiment(name: object) -> Embodiment:
    """Return the robot of a registered name or YAML path, tested; ConfigError with every problem."""
    # A robot from outside this package is simulated for two seconds first, once per process and content.
    embodiment = known_embodiment(name)
    asset = (ASSETS / embodiment.asset).resolve()
    if asset.is_relative_to(ASSETS):
        return embodiment
    try:
        failing = _failing(embodiment, content_key(asset), str(name))
    except OSError as error:
        raise ConfigError(Problem(f"cannot read {error.filename}: {error.strerror}", key="embodiment")) from error
    if failing:
        raise ConfigError([Problem(message, key="embodiment") for message in failing])
    return embodiment


def known_embodiment(name: object) -> Embodiment:
    """Return the robot of a registered name or YAML path without a test of its motions, else ConfigError."""
    try:
        if isinstance(name, str) and name.lower().endswith((".yaml", ".yml")):
            # A description is read again if it or a file of the robot has changed.
            path = Path(name).absolute()
            if path in _known:
                embodiment, mjcf, key = _known[path]
                if mjcf.resolve() == Path(embodiment.asset) and key == (stamps([path]), content_key(mjcf)):
                    return embodiment
            embodiment = described_embodiment(name)
            mjcf = path.parent / read_description(path).mjcf
            _known[path] = embodiment, mjcf, (stamps([path]), content_key(mjcf))
            return embodiment
        if isinstance(name, str) and name in EMBODIMENTS:
            return EMBODIMENTS.get(name)
    except ConfigError as error:
        raise ConfigError([Problem(str(problem), key="embodiment") for problem in error.problems]) from error
    hint = did_you_mean(str(name), EMBODIMENTS.names())
    raise ConfigError(Problem(f"no embodiment called '{name}'{hint}", key="embodiment"))


def refuse_too_tall(thing: ObjectAsset, embodiment: Embodiment) -> None:
    """Raise ConfigError for an object taller than the robot can grasp from above or push."""
    height_m, tallest_m = 2 * thing.half_height, embodiment.workspace.tallest_m
    if height_m > tallest_m:
        limit = f"can bring its hand over things of at most {tallest_m:.2f} m"
        message = f"object '{thing.name}' is {height_m:.2f} m tall, but '{embodiment.robot.name}' {limit}"
        raise ConfigError(Problem(message, key="object"))


def refuse_out_of_reach(task: Task, embodiment: Embodiment) -> None:
    """Raise ConfigError for a task that puts a thing beyond the robot's reach in some of 16 drawn starts."""
    base_x, base_y, _ = embodiment.position
    for seed in range(_SAMPLES):
        for name, value in task.draw_conditions(np.random.default_rng(seed)).items():
            if not name.endswith(_POSITION):
                continue
            x, y, *_ = point(value)
            distance_m = math.hypot(x - base_x, y - base_y)
            if distance_m > embodiment.workspace.reach_m:
                reaches = f"'{embodiment.robot.name}', which reaches {embodiment.workspace.reach_m:.2f} m"
                put = f"'{task.spec.name}' puts the {name.removesuffix(_POSITION)} {distance_m:.2f} m"
                raise ConfigError(Problem(f"{put} from the base of {reaches}", key="embodiment"))


@lru_cache(maxsize=32)
def _failing(embodiment: Embodiment, key: ContentKey, name: str) -> tuple[str, ...]:
    """Return the failures of a robot's motions, and log the doubtful ones; ``key`` invalidates the cache."""
    del key
    try:
        found = findings(embodiment, measured_motions(embodiment))
    except ValueError as error:
        found = (Finding(key="mjcf", message=f"does not compile in a scene: {error}"),)
    except KeyError as error:
        found = (Finding(key="mjcf", message=f"has no part called {error}"),)
    for each in found:
        if not each.fails:
            _LOG.warning("embodiment %s: %s: %s", name, each.key, each.message)
    return tuple(f"{name}: {each.key}: {each.message}" for each in found if each.fails)


def robot_files(name: str) -> dict[str, Path]:
    """Return a robot's description and MJCF files by role; empty for this package's robots."""
    description = {f"robot {Path(name).name}": Path(name)} if name.lower().endswith((".yaml", ".yml")) else {}
    return {**description, **part_files("robot", find_embodiment(name).asset)}


def part_files(what: str, asset: str) -> dict[str, Path]:
    """Return an MJCF file and its references by role and relative path; empty for a file of this package."""
    mjcf = (ASSETS / asset).resolve()
    if mjcf.is_relative_to(ASSETS):
        return {}
    try:
        files = sorted(set(files_of(mjcf).values()))
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
    directory = mjcf.parent
    names = [file.relative_to(directory).as_posix() if file.is_relative_to(directory) else str(file) for file in files]
    return {f"{what} {name}": file for name, file in zip(names, files, strict=True)}
