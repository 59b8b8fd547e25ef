"""Environments of this package in Gymnasium: ids and makers, for programs with a loop of their own."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv, ObservationForm, SingleEnv
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.evaluation.validation import recorded_environment_job
from isaaclab_arena.paths import expanded

ROBOMIMIC_ID = "isaaclab_arena/environment-v0"
"""The id in files that were written for robomimic, which have to stay readable."""


def make_vector_env(
    environment: str,
    *,
    num_envs: int = 1,
    seed: int = 0,
    observations: str | None = None,
    enable_cameras: bool = False,
    variations: Mapping[str, Any] | None = None,
    device: str = "cpu",
    allow_import: bool = False,
    **options: Any,
) -> EnvironmentVectorEnv:
    """Build an environment from its name and options, as in a job file; ConfigError if one of them is wrong."""
    # seed: of the episodes until a reset sets another. observations: an `ObservationForm`, None for the form that
    # learning libraries accept without a wrapper: a vector, or a dict with pictures.
    # allow_import permits loading a module or an interpreter that the name or the options mention.
    if observations is not None and observations not in set(ObservationForm):
        message = f"there is no form '{observations}'{did_you_mean(observations, ObservationForm)}"
        raise ConfigError(message, key="observations")
    form = ObservationForm(observations or ("dict" if enable_cameras else "flat"))
    recorded = {
        "env_name": environment,
        "env_kwargs": expanded(options),
        "enable_cameras": enable_cameras,
        "variations": expanded(variations or {}),
    }
    job = recorded_environment_job(recorded, source=None, num_envs=num_envs, cameras=True, may_import=allow_import)
    num_threads = 1 if num_envs == 1 else default_num_threads(1)
    built = job.build_environment(device=torch.device(device), num_threads=num_threads)
    return EnvironmentVectorEnv(built, seed=seed, observations=form)


def make_single_env(environment: str, *, render_mode: str | None = None, **options: Any) -> SingleEnv:
    """Build an environment with one env slot; ``options`` are those of `make_vector_env`."""
    return SingleEnv(make_vector_env(environment, **options), render_mode=render_mode)


def make(
    environment: str,
    *,
    num_envs: int = 1,
    enable_cameras: bool = False,
    variations: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    observations: Literal["flat", "dict", "nested"] = "nested",
    **options: Any,
) -> EnvironmentVectorEnv:
    """Build an environment as a Gymnasium vector environment that never resets by itself.

    Args:
        environment: Its name, as in a job file.
        num_envs: Number of env slots.
        enable_cameras: Whether observations include the pictures of its cameras.
        variations: Variations between episodes, as in a job file.
        seed: Seed of the episodes until a reset gives another.
        device: ``cpu``, ``cuda`` or ``cuda:<index>``; None for a GPU if there is one.
        observations: ``nested`` is groups of terms, as policies see them; ``dict`` one dict of terms; ``flat`` one
            vector of group ``policy``.
        options: The environment's own, as in ``arena_env_args``.

    Raises:
        ConfigError: If there is no such environment, or it refuses its options.
    """
    return make_vector_env(
        environment,
        num_envs=num_envs,
        seed=seed,
        observations=observations,
        enable_cameras=enable_cameras,
        variations=variations,
        device=str(DistributedContext.from_environment({}, device=device).device),
        allow_import=True,
        **options,
    )
