"""Importing this puts every environment into the registry of Gym, the predecessor of Gymnasium that robomimic uses.

Gym imports it by itself for an ``env_name`` of a file that `export_robomimic` wrote.
"""

import importlib

from isaaclab_arena.evaluation.gym_ids import ROBOMIMIC_ID

# An installation of robomimic's environments includes Gym. Neither of Gym's wrappers supports robomimic's old
# interface.
importlib.import_module("gym").register(
    ROBOMIMIC_ID,
    entry_point="isaaclab_arena.evaluation.robomimic:RobomimicEnv",
    kwargs={},
    disable_env_checker=True,
    order_enforce=False,
)
