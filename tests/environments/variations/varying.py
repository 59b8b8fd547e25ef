"""Environments with variations on, for tests."""

from functools import cache
from typing import Any

import torch

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations import senses
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.backends import MujocoBackend
from tests.environments.building import CPU, episode


@cache
def catalogue_of(name: str, **options: Any) -> tuple[Variation, ...]:
    builder = ENVIRONMENTS.get(name)
    return offered_variations(builder, builder.config_class(**options))


def build_varied(
    name: str, overrides: dict[str, Any], *, num_envs: int = 1, device: torch.device = CPU, **options: Any
) -> Any:
    """Build an environment with the variations that a job would turn on."""
    builder = ENVIRONMENTS.get(name)
    return senses.build_varied(
        builder,
        builder.config_class(**options),
        num_envs=num_envs,
        device=device,
        num_threads=1,
        variations=enabled_variations(catalogue_of(name, **options), overrides),
    )


def everything(name: str, **options: Any) -> dict[str, Any]:
    """Return the overrides that turn everything on, of what an environment with these options has."""
    left_out = ("action.idle",) if options.get("enable_cameras") else ("action.idle", "picture.")
    keys = [each.key for each in catalogue_of(name, **options) if not each.key.startswith(left_out)]
    return {f"{key}.enabled": True for key in keys}


def fixed(key: str, *values: Any) -> dict[str, Any]:
    """Return the overrides that let a variation take one value, or values in turn."""
    return {key: {"enabled": True, "sampler_cfg": {"type": "sequential_choice", "choices": list(values)}}}


def conditions_of(env: TableEnvironment, index: int, seed: int = 0) -> Conditions:
    numbered = episode(index, seed)
    return env.vary_conditions(env.draw_conditions(numbered.conditions_generator()), numbered)


def begin(env: TableEnvironment) -> list[Conditions]:
    """Start episode r in env slot r, and return the conditions."""
    conditions = [conditions_of(env, env_id) for env_id in range(env.num_envs)]
    env.reset(torch.arange(env.num_envs, device=env.device), conditions)
    return conditions


def simulation(env: TableEnvironment) -> MujocoBackend:
    """Return the environment's simulation as what it is."""
    assert isinstance(env.backend, MujocoBackend)
    return env.backend
