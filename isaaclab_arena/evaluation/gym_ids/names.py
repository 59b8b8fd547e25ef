"""Map environments to their ids in registries. Pure functions."""

from isaaclab_arena.environments.catalog import ENVIRONMENTS

ANY_ENVIRONMENT = "environment"
"""Stands in an id for whatever environment the keyword argument of this name says."""


def environment_id(name: str) -> str:
    """Return the id of a registered environment: ``isaaclab_arena/lift_object-v0``."""
    return f"isaaclab_arena/{name}-v0"


def ids_of_environments() -> dict[str, dict[str, str]]:
    """Return every id and the keyword arguments that it stands for."""
    named = {environment_id(name): {ANY_ENVIRONMENT: name} for name in ENVIRONMENTS.names()}
    return {environment_id(ANY_ENVIRONMENT): {}, **named}
