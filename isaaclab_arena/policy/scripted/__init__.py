"""A policy that solves the built-in tasks by a fixed plan and reads the simulation's state."""

from isaaclab_arena.policy.scripted.policy import ScriptedPolicy, ScriptedPolicyCfg

__all__ = ["ScriptedPolicy", "ScriptedPolicyCfg"]
