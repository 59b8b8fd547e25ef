"""Isaac Lab Arena on MuJoCo: evaluate robot policies from one job file, on every rank."""

from typing import TYPE_CHECKING

from isaaclab_arena.registry import attach

if TYPE_CHECKING:
    from isaaclab_arena.api import Comparison, JobResults, Results, compare, load_results
    from isaaclab_arena.api.evaluating import evaluate
    from isaaclab_arena.errors import ArenaError, ConfigError, PolicyLostError, Problem, StorageError
    from isaaclab_arena.evaluation.gym_ids import make

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

__getattr__, __dir__ = attach(
    __name__,
    {
        "errors": "ArenaError ConfigError PolicyLostError Problem StorageError",
        "api": "Comparison JobResults Results compare load_results",
        "api.evaluating": "evaluate",
        "evaluation.gym_ids": "make",
    },
)
