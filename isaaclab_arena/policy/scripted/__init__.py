"""A policy that solves the built-in tasks by a fixed plan, looking into the simulation."""

from isaaclab_arena.policy.scripted.policy import ScriptedPolicy, ScriptedPolicyCfg

__all__ = ["ScriptedPolicy", "ScriptedPolicyCfg"]
