"""Importing does nothing: what is heavy loads when it is chosen."""

import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter

import grimp
import pytest


@cache
def loaded_after(statement: str) -> frozenset[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return frozenset(output.split())


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("isaaclab_arena", {"torch", "numpy", "mujoco", "h5py", "pandas", "gymnasium", "pydantic", "rich", "tyro"}),
        ("isaaclab_arena.cli.main", {"torch", "mujoco", "h5py", "pandas"}),
        ("isaaclab_arena.results.statistics", {"torch", "mujoco", "h5py", "pandas"}),
        ("isaaclab_arena.evaluation.eval_runner", {"pandas", "statsmodels", "warp", "mujoco_warp", "transformers"}),
        ("isaaclab_arena.evaluation.eval_runner", {"wandb", "tensorboard", "mlflow", "rerun"}),
        ("isaaclab_arena.tracking.services", {"wandb", "tensorboard", "mlflow", "rerun"}),
        ("isaaclab_arena.results.exports", {"rerun"}),
        # Every run ends with a page, and most pages compare nothing; SciPy loads its statistics when they are used.
        ("isaaclab_arena.report.writing", {"scipy.stats", "torch", "mujoco", "h5py", "PIL", "av"}),
        ("isaaclab_arena.tracking.watched_run", {"torch", "mujoco", "h5py", "PIL", "av"}),
        ("isaaclab_arena.tracking.services", {"torch", "mujoco", "h5py", "PIL", "av"}),
        ("isaaclab_arena_gr00t.training.finetune", {"pandas", "pyarrow", "av", "mujoco"}),
    ],
)
def test_a_module_does_not_load_what_it_may_never_need(module, heavy):
    assert not heavy & loaded_after(f"import {module}")


def test_the_tables_of_names_import_nothing_they_name():
    statement = "from isaaclab_arena.environments.catalog import ENVIRONMENTS; ENVIRONMENTS.names()"
    assert not {"mujoco", "torch"} & loaded_after(statement)


def test_no_imports_go_in_circles_and_late_ones_neither():
    packages = ("isaaclab_arena", "isaaclab_arena_gr00t", "arena_wire", "gr00t")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(TopologicalSorter(imports).static_order())  # raises CycleError, which names the circle
