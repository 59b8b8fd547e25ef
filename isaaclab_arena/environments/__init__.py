"""Environments: what yours implements, and the tables of those that have names."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.config.expansion.suites import Suite, SuiteTask
    from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS, SUITES
    from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv
    from isaaclab_arena.interfaces.content import ContentBuilder, ContentSources
    from isaaclab_arena.interfaces.environment import (
        BeginsResets,
        BeginsSteps,
        Environment,
        EnvironmentWrapper,
        Observation,
        PartwiseRecordable,
        Recordable,
        Restorable,
        Snapshottable,
        Step,
        TriesSteps,
    )
    from isaaclab_arena.interfaces.environment_builder import (
        EnvironmentBuilder,
        Sampler,
        VariableEnvironmentBuilder,
        Variation,
    )
    from isaaclab_arena.interfaces.episode import Episode, EpisodeEvents
    from isaaclab_arena.interfaces.pictures import Filmable, FilmableLater, PicturesOnDemand
    from isaaclab_arena.interfaces.specs import ArraySpec

__all__ = [
    "EMBODIMENTS",
    "ENVIRONMENTS",
    "OBJECTS",
    "SUITES",
    "ArraySpec",
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
    "BeginsResets": "isaaclab_arena.interfaces.environment",
    "BeginsSteps": "isaaclab_arena.interfaces.environment",
    "ContentBuilder": "isaaclab_arena.interfaces.content",
    "ContentSources": "isaaclab_arena.interfaces.content",
    "EMBODIMENTS": "isaaclab_arena.environments.catalog",
    "ENVIRONMENTS": "isaaclab_arena.environments.catalog",
    "Environment": "isaaclab_arena.interfaces.environment",
    "EnvironmentBuilder": "isaaclab_arena.interfaces.environment_builder",
    "EnvironmentVectorEnv": "isaaclab_arena.environments.gym.vector_env",
    "EnvironmentWrapper": "isaaclab_arena.interfaces.environment",
    "Episode": "isaaclab_arena.interfaces.episode",
    "EpisodeEvents": "isaaclab_arena.interfaces.episode",
    "Filmable": "isaaclab_arena.interfaces.pictures",
    "FilmableLater": "isaaclab_arena.interfaces.pictures",
    "OBJECTS": "isaaclab_arena.environments.catalog",
    "Observation": "isaaclab_arena.interfaces.environment",
    "PartwiseRecordable": "isaaclab_arena.interfaces.environment",
    "PicturesOnDemand": "isaaclab_arena.interfaces.pictures",
    "Recordable": "isaaclab_arena.interfaces.environment",
    "Restorable": "isaaclab_arena.interfaces.environment",
    "SUITES": "isaaclab_arena.environments.catalog",
    "Sampler": "isaaclab_arena.interfaces.environment_builder",
    "Snapshottable": "isaaclab_arena.interfaces.environment",
    "Step": "isaaclab_arena.interfaces.environment",
    "Suite": "isaaclab_arena.config.expansion.suites",
    "SuiteTask": "isaaclab_arena.config.expansion.suites",
    "TriesSteps": "isaaclab_arena.interfaces.environment",
    "VariableEnvironmentBuilder": "isaaclab_arena.interfaces.environment_builder",
    "Variation": "isaaclab_arena.interfaces.environment_builder",
}
"""Public name to the module that defines it, which is imported when the name is first used."""

__getattr__, __dir__ = attach(__name__, _HOMES)
