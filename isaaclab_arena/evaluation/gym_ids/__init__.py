"""Register environments with Gymnasium and Gym, for programs that make environments by id."""

from isaaclab_arena.environments.catalog import ENVIRONMENTS

ANY_ENVIRONMENT = "environment"
"""Stands in an id for whatever environment the keyword argument of this name says."""

ROBOMIMIC_ID = f"isaaclab_arena/{ANY_ENVIRONMENT}-v0"
"""The id in files that were written for robomimic, which have to stay readable."""


def environment_id(name: str) -> str:
    """Return the id of a registered environment: ``arena/LiftObject-v0`` for ``lift_object``."""
    return f"arena/{''.join(word[:1].upper() + word[1:] for word in name.split('_'))}-v0"


def ids_of_environments() -> dict[str, dict[str, str]]:
    """Return the keyword arguments of every environment id."""
    named = {environment_id(name): {ANY_ENVIRONMENT: name} for name in ENVIRONMENTS.names()}
    return {environment_id(ANY_ENVIRONMENT): {}, **named}
