"""Environments: what yours implements, and the tables of those that have names."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.config.expansion.suites import Suite, SuiteTask
    from isaaclab_arena.config.options import ContentSources
    from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS, SUITES
    from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv
    from isaaclab_arena.interfaces.environment import Environment, Observation, Step
    from isaaclab_arena.interfaces.environment_builder import (
        Background,
        EnvironmentBuilder,
        EnvironmentWrapper,
        Sampler,
        Variation,
    )
    from isaaclab_arena.interfaces.episode import Episode, EpisodeEvents, Metric
    from isaaclab_arena.interfaces.specs import ArraySpec

__all__ = [
    "EMBODIMENTS",
    "ENVIRONMENTS",
    "OBJECTS",
    "SUITES",
    "ArraySpec",
    "Background",
    "ContentSources",
    "Environment",
    "EnvironmentBuilder",
    "EnvironmentVectorEnv",
    "EnvironmentWrapper",
    "Episode",
    "EpisodeEvents",
    "Metric",
    "Observation",
    "Sampler",
    "Step",
    "Suite",
    "SuiteTask",
    "Variation",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "config.expansion.suites": "Suite SuiteTask",
        "environments.catalog": "EMBODIMENTS ENVIRONMENTS OBJECTS SUITES",
        "environments.gym.vector_env": "EnvironmentVectorEnv",
        "config.options": "ContentSources",
        "interfaces.environment": "Environment Observation Step",
        "interfaces.environment_builder": "Background EnvironmentBuilder EnvironmentWrapper Sampler Variation",
        "interfaces.episode": "Episode EpisodeEvents Metric",
        "interfaces.specs": "ArraySpec",
    },
)
