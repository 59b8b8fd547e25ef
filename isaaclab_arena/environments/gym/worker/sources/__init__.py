"""Where single environments come from: modules with ``find`` and ``make``, by the kind that a name begins with."""

# So nothing here imports anything of this package, and everything keeps to what Python 3.9 understands.

import importlib
import types

SOURCES = {
    "gym": "registered",
    "metaworld": "meta_world",
    "libero": "libero_tasks",
    "robosuite": "robosuite_tasks",
    "vla_eval": "vla_eval_benchmarks",
}
"""The kind that a name begins with, to the module beside this one."""


def source_of(kind: str) -> types.ModuleType:
    """Return the module of a kind, which is imported when it is first asked for: another may need other packages."""
    return importlib.import_module(f"{__name__}.{SOURCES[kind]}")
