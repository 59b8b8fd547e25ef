"""Importing does nothing: what is heavy loads when it is chosen."""

import json
import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

# In one interpreter each, in this order: what an earlier module loads is there for a later one, too.
TOGETHER = (
    (
        "isaaclab_arena",
        "isaaclab_arena.cli.main",
        "isaaclab_arena.results.statistics",
        "isaaclab_arena.tracking.trackers",
        "isaaclab_arena.tracking.watched_run",
        # Every run ends with a page, and most pages compare nothing; SciPy loads its statistics when they are used.
        "isaaclab_arena.report.writing",
        "isaaclab_arena.environments.catalog",
        "isaaclab_arena.results.exports",
    ),
    ("isaaclab_arena.evaluation.eval_runner", "isaaclab_arena_gr00t.training.finetune"),
)
SCRIPT = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if module.endswith(".catalog"):
        sys.modules[module].ENVIRONMENTS.names()
    print(json.dumps([module, list(sys.modules)]))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Return the modules that an interpreter has loaded after it has imported each module."""
    lines = [
        line
        for modules in TOGETHER
        for line in subprocess.check_output([sys.executable, "-c", SCRIPT, *modules], text=True).splitlines()
    ]
    return {module: set(names) for module, names in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("isaaclab_arena", {"torch", "numpy", "mujoco", "h5py", "pandas", "gymnasium", "pydantic", "rich", "tyro"}),
        ("isaaclab_arena.cli.main", {"torch", "mujoco", "h5py", "pandas"}),
        ("isaaclab_arena.results.statistics", {"torch", "mujoco", "h5py", "pandas"}),
        ("isaaclab_arena.evaluation.eval_runner", {"pandas", "statsmodels", "warp", "mujoco_warp", "transformers"}),
        ("isaaclab_arena.evaluation.eval_runner", {"torch.distributed.elastic"}),
        ("isaaclab_arena.evaluation.eval_runner", {"wandb", "tensorboard", "mlflow", "rerun"}),
        ("isaaclab_arena.tracking.trackers", {"wandb", "tensorboard", "mlflow", "rerun"}),
        ("isaaclab_arena.results.exports", {"rerun", "torch"}),
        ("isaaclab_arena.report.writing", {"scipy.stats", "torch", "mujoco", "h5py", "PIL", "av"}),
        ("isaaclab_arena.tracking.watched_run", {"torch", "mujoco", "h5py", "PIL", "av"}),
        ("isaaclab_arena.tracking.trackers", {"torch", "mujoco", "h5py", "PIL", "av", "pandas"}),
        ("isaaclab_arena.environments.catalog", {"torch", "mujoco"}),
        ("isaaclab_arena_gr00t.training.finetune", {"pandas", "pyarrow", "av", "mujoco"}),
    ],
)
def test_a_module_does_not_load_what_it_may_never_need(module, heavy, loaded):
    assert not heavy & loaded[module]


def test_no_imports_go_in_circles_and_late_ones_neither():
    packages = ("isaaclab_arena", "isaaclab_arena_gr00t", "arena_wire", "gr00t")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(TopologicalSorter(imports).static_order())  # raises CycleError, which names the circle
