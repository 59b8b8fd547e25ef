"""Provide the decorator that registers a policy, at the place where Isaac Lab Arena has it."""

from isaaclab_arena.policy.catalog import register_policy

__all__ = ["register_policy"]
