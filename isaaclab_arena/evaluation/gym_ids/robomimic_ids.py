"""Importing this puts every environment into the registry of Gym, the predecessor of Gymnasium that robomimic uses.

Gym imports it by itself for an ``env_name`` such as that of `robomimic_env_args`.
"""

import gym  # pyright: ignore[reportMissingImports]  who has robomimic's environments has it

from isaaclab_arena.evaluation.gym_ids.names import ids_of_environments

for _id, _kwargs in ids_of_environments().items():
    # Neither wrapper knows Gym's older interface, which robomimic speaks.
    gym.register(
        _id,
        entry_point="isaaclab_arena.evaluation.gym_ids.robomimic_env:make_robomimic_env",
        kwargs=dict(_kwargs),
        disable_env_checker=True,
        order_enforce=False,
    )
