"""A registered environment with one env slot, made from the keyword arguments of ``gymnasium.make``."""

from collections.abc import Mapping
from typing import Any

import torch

from isaaclab_arena.environments.gym.single_env import SingleEnv
from isaaclab_arena.evaluation.plan.recorded_environment import recorded_environment_job


def make_single_env(
    environment: str,
    *,
    enable_cameras: bool = False,
    variations: Mapping[str, Any] | None = None,
    seed: int = 0,
    render_mode: str | None = None,
    device: str = "cpu",
    allow_import: bool = False,
    **options: Any,
) -> SingleEnv:
    """Build an environment with one env slot.

    Args:
        environment: Its name, as in a job file.
        enable_cameras: Whether what its cameras see is observed.
        variations: What varies from episode to episode, as in a job file.
        seed: Seed of the episodes until a reset gives another.
        render_mode: ``rgb_array`` or None.
        device: Where it is simulated.
        allow_import: Whether a module or an interpreter that the name or the options mention may be loaded.
        options: The environment's own, as in ``arena_env_args``.

    Raises:
        ConfigError: If there is no such environment, or it refuses its options.
    """
    job = recorded_environment_job(
        {
            "env_name": environment,
            "env_kwargs": options,
            "enable_cameras": enable_cameras,
            "variations": dict(variations or {}),
        },
        source=None,
        num_envs=1,
        cameras=True,
        may_import=allow_import,
    )
    built = job.build_environment(device=torch.device(device), num_threads=1)
    return SingleEnv(built, seed=seed, render_mode=render_mode)
