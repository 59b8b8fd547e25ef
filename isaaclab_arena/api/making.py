"""Make environments for a loop of one's own."""

from collections.abc import Mapping
from typing import Any, Literal

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv
from isaaclab_arena.evaluation.gym_ids import make_vector_env


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
