"""Provide the base class of policies at Isaac Lab Arena's place; it is defined in `interfaces.policy`."""

from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg

__all__ = ["PolicyBase", "PolicyCfg"]
