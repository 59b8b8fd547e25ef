"""Rebuild the environment of a recording from the recording's attributes."""

from collections.abc import Mapping
from typing import Any

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.plan.described_files import ENV_CAMERAS, ENV_NAME, ENV_OPTIONS, ENV_VARIATIONS
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.interfaces.variation import spelled


def environment_args(job: Job) -> dict[str, Any]:
    """Return what a recording says of its environment: all that builds it, whatever the number of env slots.

    Args:
        job: The job that is recorded.
    """
    config = job.config
    return {
        ENV_NAME: config.environment,
        ENV_OPTIONS: dict(config.environment_args),
        ENV_CAMERAS: config.enable_cameras,
        ENV_VARIATIONS: dict(spelled(job.variations)),
    }


def recorded_environment_job(
    env_args: Mapping[str, Any], *, source: str | None, num_envs: int, cameras: bool, may_import: bool = False
) -> Job:
    """Return a job whose environment is the one that a recording was made in.

    Args:
        env_args: What the recording says of it; see `environment_args`.
        source: The recording, for messages; None where there is none.
        num_envs: Env slots to build.
        cameras: Whether policies' pictures are needed; without them nothing is rendered.
        may_import: Whether a module or an interpreter that the recording names may be loaded. It runs with the rights
            of who replays, whoever made the recording.

    Raises:
        ConfigError: If the recording does not say what its environment was, or there is no such environment.
    """
    name = env_args.get(ENV_NAME)
    if not isinstance(name, str) or not name:
        raise ConfigError(Problem(f"does not say what its environment was: env_args has no {ENV_NAME}", file=source))
    config = JobConfig(
        index=0,
        name=name,
        environment=name,
        environment_args=_mapping(env_args, ENV_OPTIONS, source),
        enable_cameras=bool(env_args.get(ENV_CAMERAS)) and cameras,
        variations=_mapping(env_args, ENV_VARIATIONS, source),
        num_envs=num_envs,
        policy_type="zero_action",
        num_episodes=1,
    )
    (job,) = resolve_jobs([config], file=source, may_import=may_import)
    return job


def _mapping(env_args: Mapping[str, Any], key: str, source: str | None) -> Mapping[str, Any]:
    value = env_args.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError(Problem(f"env_args.{key} is no mapping but {value!r}", file=source))
    return value
