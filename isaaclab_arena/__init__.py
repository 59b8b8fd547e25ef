"""Isaac Lab Arena on MuJoCo: evaluate robot policies from one job file, on every rank."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isaaclab_arena.api.comparing import Comparison, compare
    from isaaclab_arena.api.evaluating import evaluate
    from isaaclab_arena.api.making import make
    from isaaclab_arena.api.results import JobResults, Results, load_results
    from isaaclab_arena.errors import ArenaError, ConfigError

__all__ = [
    "ArenaError",
    "Comparison",
    "ConfigError",
    "JobResults",
    "Results",
    "compare",
    "evaluate",
    "load_results",
    "make",
]

_HOMES = {
    "ArenaError": "isaaclab_arena.errors",
    "Comparison": "isaaclab_arena.api.comparing",
    "ConfigError": "isaaclab_arena.errors",
    "JobResults": "isaaclab_arena.api.results",
    "Results": "isaaclab_arena.api.results",
    "compare": "isaaclab_arena.api.comparing",
    "evaluate": "isaaclab_arena.api.evaluating",
    "load_results": "isaaclab_arena.api.results",
    "make": "isaaclab_arena.api.making",
}
"""Public name to the module that defines it, which is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
