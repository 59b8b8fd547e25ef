"""Parts of a task: the specification, the judge, and the builder that makes an environment of them."""

from isaaclab_arena.environments.arena.builder import FloorEnvironmentBuilder, ObjectOptions, TableOptions, TableTask
from isaaclab_arena.environments.events import Facts, FloorFacts, approach, arm_facts
from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import (
    ObservationTerm,
    number_term,
    offset_term,
    orientation_term,
    position_term,
)
from isaaclab_arena.environments.mdp.task import FloorTask, Task, TaskSpec, Verdict
from isaaclab_arena.environments.mdp.things import ArticulatedAsset, SceneObject
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.sim.backend import Backend

locomotion_terms = terms  # a former module, which tasks of legged robots import

__all__ = [
    "ArticulatedAsset",
    "Backend",
    "Embodiment",
    "Facts",
    "FloorEnvironmentBuilder",
    "FloorFacts",
    "FloorTask",
    "Metric",
    "ObjectOptions",
    "ObservationTerm",
    "SceneObject",
    "TableOptions",
    "TableTask",
    "Task",
    "TaskSpec",
    "Verdict",
    "approach",
    "arm_facts",
    "locomotion_terms",
    "number_term",
    "offset_term",
    "orientation_term",
    "position_term",
    "terms",
]
