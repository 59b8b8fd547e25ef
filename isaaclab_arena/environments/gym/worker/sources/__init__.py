"""The sources of single environments: modules with ``find`` and ``make``, by the kind that a name begins with."""

# Workers run it, so nothing here imports this package, and all code is valid in Python 3.9.

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
    """Return the module of a kind, imported at its first use, because each needs other packages."""
    return importlib.import_module(f"{__name__}.{SOURCES[kind]}")
