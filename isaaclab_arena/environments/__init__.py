"""Environments: what yours implements, and the tables of those that have names."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.config.expansion.suites import Suite, SuiteTask
    from isaaclab_arena.environments.capabilities import (
        BeginsResets,
        BeginsSteps,
        ContentBuilder,
        Filmable,
        FilmableLater,
        PartwiseRecordable,
        PicturesOnDemand,
        Recordable,
        Restorable,
        Snapshottable,
        TriesSteps,
        VariableEnvironmentBuilder,
    )
    from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS, SUITES
    from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv
    from isaaclab_arena.interfaces.background import Background
    from isaaclab_arena.interfaces.content import ContentSources
    from isaaclab_arena.interfaces.environment import Environment, Observation, Step
    from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Sampler, Variation
    from isaaclab_arena.interfaces.environment_wrapper import EnvironmentWrapper
    from isaaclab_arena.interfaces.episode import Episode, EpisodeEvents, Metric
    from isaaclab_arena.interfaces.specs import ArraySpec

__all__ = [
    "EMBODIMENTS",
    "ENVIRONMENTS",
    "OBJECTS",
    "SUITES",
    "ArraySpec",
    "Background",
    "BeginsResets",
    "BeginsSteps",
    "ContentBuilder",
    "ContentSources",
    "Environment",
    "EnvironmentBuilder",
    "EnvironmentVectorEnv",
    "EnvironmentWrapper",
    "Episode",
    "EpisodeEvents",
    "Filmable",
    "FilmableLater",
    "Metric",
    "Observation",
    "PartwiseRecordable",
    "PicturesOnDemand",
    "Recordable",
    "Restorable",
    "Sampler",
    "Snapshottable",
    "Step",
    "Suite",
    "SuiteTask",
    "TriesSteps",
    "VariableEnvironmentBuilder",
    "Variation",
]

_HOMES = {
    "ArraySpec": "isaaclab_arena.interfaces.specs",
    "Background": "isaaclab_arena.interfaces.background",
    "BeginsResets": "isaaclab_arena.environments.capabilities",
    "BeginsSteps": "isaaclab_arena.environments.capabilities",
    "ContentBuilder": "isaaclab_arena.environments.capabilities",
    "ContentSources": "isaaclab_arena.interfaces.content",
    "EMBODIMENTS": "isaaclab_arena.environments.catalog",
    "ENVIRONMENTS": "isaaclab_arena.environments.catalog",
    "Environment": "isaaclab_arena.interfaces.environment",
    "EnvironmentBuilder": "isaaclab_arena.interfaces.environment_builder",
    "EnvironmentVectorEnv": "isaaclab_arena.environments.gym.vector_env",
    "EnvironmentWrapper": "isaaclab_arena.interfaces.environment_wrapper",
    "Episode": "isaaclab_arena.interfaces.episode",
    "EpisodeEvents": "isaaclab_arena.interfaces.episode",
    "Filmable": "isaaclab_arena.environments.capabilities",
    "FilmableLater": "isaaclab_arena.environments.capabilities",
    "Metric": "isaaclab_arena.interfaces.episode",
    "OBJECTS": "isaaclab_arena.environments.catalog",
    "Observation": "isaaclab_arena.interfaces.environment",
    "PartwiseRecordable": "isaaclab_arena.environments.capabilities",
    "PicturesOnDemand": "isaaclab_arena.environments.capabilities",
    "Recordable": "isaaclab_arena.environments.capabilities",
    "Restorable": "isaaclab_arena.environments.capabilities",
    "SUITES": "isaaclab_arena.environments.catalog",
    "Sampler": "isaaclab_arena.interfaces.environment_builder",
    "Snapshottable": "isaaclab_arena.environments.capabilities",
    "Step": "isaaclab_arena.interfaces.environment",
    "Suite": "isaaclab_arena.config.expansion.suites",
    "SuiteTask": "isaaclab_arena.config.expansion.suites",
    "TriesSteps": "isaaclab_arena.environments.capabilities",
    "VariableEnvironmentBuilder": "isaaclab_arena.environments.capabilities",
    "Variation": "isaaclab_arena.interfaces.environment_builder",
}
"""Public name to the module that defines it, which is imported when the name is first used."""

__getattr__, __dir__ = attach(__name__, _HOMES)
