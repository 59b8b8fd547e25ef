"""Importing this puts every environment into Gymnasium's registry, under ids such as ``arena/LiftObject-v0``."""

# gymnasium.make("isaaclab_arena.gym:arena/LiftObject-v0", object="can") imports it first.
import gymnasium

from isaaclab_arena.evaluation.gym_ids import ids_of_environments

_MAKING = "isaaclab_arena.evaluation.gym_ids.making"

for _id, _kwargs in ids_of_environments().items():
    gymnasium.register(
        _id,
        entry_point=f"{_MAKING}:make_single_env",
        vector_entry_point=f"{_MAKING}:make_vector_env",
        kwargs=dict(_kwargs),
    )
