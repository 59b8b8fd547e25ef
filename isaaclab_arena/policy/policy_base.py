"""Where classes written for Isaac Lab Arena find the base class of policies; it is defined in `interfaces.policy`."""

from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg

__all__ = ["PolicyBase", "PolicyCfg"]
