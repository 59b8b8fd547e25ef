"""Importing this puts every environment into Gymnasium's registry: ``isaaclab_arena/lift_object-v0`` and so on.

``gymnasium.make("isaaclab_arena.evaluation.gym_ids.gymnasium_ids:isaaclab_arena/lift_object-v0")`` imports it first.
"""

import gymnasium

from isaaclab_arena.evaluation.gym_ids.names import ids_of_environments

for _id, _kwargs in ids_of_environments().items():
    gymnasium.register(
        _id, entry_point="isaaclab_arena.evaluation.gym_ids.making:make_single_env", kwargs=dict(_kwargs)
    )
