"""Make environments of this package for programs that bring a loop of their own, by name and keyword arguments."""

from collections.abc import Mapping
from typing import Any

import torch

from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv, ObservationForm, SingleEnv, default_form
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.evaluation.validation import recorded_environment_job
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.paths import expanded
from isaaclab_arena.sim.threads import default_num_threads


def make_single_env(
    environment: str,
    *,
    seed: int = 0,
    render_mode: str | None = None,
    observations: str | None = None,
    enable_cameras: bool = False,
    **options: Any,
) -> SingleEnv:
    """Build an environment with one env slot. `ConfigError` if the name is unknown or an option is wrong."""
    # render_mode: ``rgb_array`` or None. observations: an `ObservationForm`, None for `default_form`. seed: of the
    # episodes until a reset sets another. options: those of `_built`, which include the environment's own.
    form = _form(observations, enable_cameras=enable_cameras)
    built = _built(environment, num_envs=1, enable_cameras=enable_cameras, **options)
    return SingleEnv(built, seed=seed, render_mode=render_mode, observations=form)


def make_vector_env(
    environment: str,
    *,
    num_envs: int = 1,
    seed: int = 0,
    observations: str | None = None,
    enable_cameras: bool = False,
    **options: Any,
) -> EnvironmentVectorEnv:
    """Build an environment with ``num_envs`` env slots; see `make_single_env`."""
    form = _form(observations, enable_cameras=enable_cameras)
    built = _built(environment, num_envs=num_envs, enable_cameras=enable_cameras, **options)
    return EnvironmentVectorEnv(built, seed=seed, observations=form)


def _built(
    environment: str,
    *,
    num_envs: int,
    enable_cameras: bool,
    variations: Mapping[str, Any] | None = None,
    device: str = "cpu",
    allow_import: bool = False,
    **options: Any,
) -> Environment:
    """Build an environment from its name and options, as in a job file."""
    # `allow_import` permits loading a module or an interpreter that the name or the options mention.
    job = recorded_environment_job(
        {
            "env_name": environment,
            "env_kwargs": expanded(options),
            "enable_cameras": enable_cameras,
            "variations": expanded(variations or {}),
        },
        source=None,
        num_envs=num_envs,
        cameras=True,
        may_import=allow_import,
    )
    num_threads = 1 if num_envs == 1 else default_num_threads(1)
    return job.build_environment(device=torch.device(device), num_threads=num_threads)


def _form(observations: str | None, *, enable_cameras: bool) -> ObservationForm:
    if observations is None:
        return default_form(enable_cameras=enable_cameras)
    if observations not in set(ObservationForm):
        message = f"there is no form '{observations}'{did_you_mean(observations, ObservationForm)}"
        raise ConfigError(message, key="observations")
    return ObservationForm(observations)
