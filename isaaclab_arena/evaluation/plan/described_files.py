"""Hold what a policy's files say of themselves against the job that uses them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from isaaclab_arena.config.job_fields import COMMON_ENVIRONMENT_KEYS
from isaaclab_arena.config.options import read_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.interfaces.connections import Description
from isaaclab_arena.interfaces.variation import spelled

ENV_NAME, ENV_OPTIONS, ENV_CAMERAS, ENV_VARIATIONS = "env_name", "env_kwargs", "enable_cameras", "variations"
"""Keys of a recording's ``env_args``."""

_SAY_NOTHING = ("camera_", "viewport_", ENV_CAMERAS, "backend")
"""Options of an environment, or beginnings of them, that leave the same actions the same."""


def held_against_files(job: Job) -> Job:
    """Return a job with what its policy's files decide: how many episodes there are, and in what they differ from it.

    Args:
        job: The job as it is without that.

    Raises:
        ConfigError: If they lack one of its episodes.
    """
    described = job.described
    if described is None:
        return job
    doubts = (*job.doubts, *described.doubts, *_doubts(job, described))
    if described.episodes is None or job.config.num_steps is not None:
        return dataclasses.replace(job, doubts=doubts)
    there, wanted = len(described.episodes), job.config.num_episodes
    number = min(there, job.config.max_episodes or there) if wanted is None else wanted
    for index in range(number):
        if index in described.unreadable:
            raise ConfigError(Problem(f"episode {index}: {described.unreadable[index]}", key="num_episodes"))
        if index not in described.episodes:
            message = f"{described.source} holds {described.holds}: none for episode {index} of {number}"
            raise ConfigError(Problem(f"{message}; {described.way_out}", key="num_episodes"))
    return dataclasses.replace(job, doubts=doubts, num_played=number)


def _doubts(job: Job, described: Description) -> list[str]:
    """Return in what a job differs from what its policy's files were made in, in one sentence if in anything."""
    config, source, name = job.config, described.source, described.environment.get(ENV_NAME)
    if name and name != config.environment:
        return [f"{source} was made in '{name}', and is used in '{config.environment}'"]
    differences = _differences(described.environment, job) if name else []
    varied = described.environment.get(ENV_VARIATIONS)
    if name and varied is not None and _plain(varied) != _plain(spelled(job.variations)):
        differences.append("other variations were on")
    seed = config.seed if config.placement_seed is None else config.placement_seed
    moved = next(((index, number) for index, number in (described.episodes or {}).items() if index != number), None)
    if described.seed is not None and job.saved_conditions is None and described.seed != seed:
        differences.append(f"episodes started from other conditions, with seed {described.seed} and not {seed}")
    elif described.seed is not None and job.saved_conditions is None and moved is not None:
        differences.append(f"episode {moved[0]} starts from other conditions than the recorded episode {moved[1]}")
    return [f"{source} was made otherwise: {'; '.join(differences)}"] if differences else []


def _differences(recorded: Mapping[str, Any], job: Job) -> list[str]:
    """Return the options of an environment that differ from those it had."""
    told, config_class = recorded.get(ENV_OPTIONS), job.builder.config_class
    if not isinstance(told, Mapping) or not dataclasses.is_dataclass(config_class):
        return []
    try:
        before = read_options(config_class, told, owner="it", other_names=COMMON_ENVIRONMENT_KEYS)
    except ConfigError as error:
        return [f"its environment was another, which had {error.problems[0].key}"]
    now = job.environment_config
    return [
        f"{option.name} was {getattr(before, option.name)!r}, and is {getattr(now, option.name)!r}"
        for option in dataclasses.fields(config_class)
        if option.init and not option.name.startswith(_SAY_NOTHING)
        if getattr(before, option.name) != getattr(now, option.name)
    ]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
