"""Tests that environments and policies of your own inherit."""

from isaaclab_arena.testing.environment_conformance import EnvironmentConformance, PictureConformance
from isaaclab_arena.testing.policy_conformance import PolicyConformance

__all__ = [
    "EnvironmentConformance",
    "PictureConformance",
    "PolicyConformance",
]
