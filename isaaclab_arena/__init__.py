"""Isaac Lab Arena on MuJoCo: evaluate robot policies from one job file, on every rank."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.api.evaluating import evaluate
    from isaaclab_arena.api.making import make
    from isaaclab_arena.api.results import Comparison, JobResults, Results, compare, load_results
    from isaaclab_arena.errors import ArenaError, ConfigError, PolicyLostError, Problem, StorageError

__all__ = [
    "ArenaError",
    "Comparison",
    "ConfigError",
    "JobResults",
    "PolicyLostError",
    "Problem",
    "Results",
    "StorageError",
    "compare",
    "evaluate",
    "load_results",
    "make",
]

_HOMES = {
    "ArenaError": "isaaclab_arena.errors",
    "Comparison": "isaaclab_arena.api.results",
    "ConfigError": "isaaclab_arena.errors",
    "JobResults": "isaaclab_arena.api.results",
    "PolicyLostError": "isaaclab_arena.errors",
    "Problem": "isaaclab_arena.errors",
    "Results": "isaaclab_arena.api.results",
    "StorageError": "isaaclab_arena.errors",
    "compare": "isaaclab_arena.api.results",
    "evaluate": "isaaclab_arena.api.evaluating",
    "load_results": "isaaclab_arena.api.results",
    "make": "isaaclab_arena.api.making",
}
"""Public name to the module that defines it, which is imported when the name is first used."""


__getattr__, __dir__ = attach(__name__, _HOMES)
