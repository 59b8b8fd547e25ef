"""Where classes written for Isaac Lab Arena find the decorator that registers a policy."""

from isaaclab_arena.policy.catalog import register_policy

__all__ = ["register_policy"]
