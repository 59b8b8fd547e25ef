"""Importing this puts every environment into Gymnasium's registry, under ids such as ``arena/LiftObject-v0``."""

# gymnasium.make("isaaclab_arena.gym:arena/LiftObject-v0", object="can") imports it first.
import gymnasium

from isaaclab_arena.environments.catalog import ENVIRONMENTS

_MAKING = "isaaclab_arena.evaluation.gym_ids"


def environment_id(name: str) -> str:
    """Return the id of a registered environment: ``arena/LiftObject-v0`` for ``lift_object``."""
    return f"arena/{''.join(word[:1].upper() + word[1:] for word in name.split('_'))}-v0"


# Under the first id stands whatever environment the keyword argument of this name says.
for _id, _kwargs in {
    environment_id("environment"): {},
    **{environment_id(name): {"environment": name} for name in ENVIRONMENTS.names()},
}.items():
    gymnasium.register(
        _id,
        entry_point=f"{_MAKING}:make_single_env",
        vector_entry_point=f"{_MAKING}:make_vector_env",
        kwargs=_kwargs,
    )
