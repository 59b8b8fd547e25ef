"""LIBERO as a worker plays it: ``python libero_played.py REQUEST.json OUT.npz``.

With ``order``, its resets in that order. With ``actions`` (a file of an array, (num_steps, 7)), an episode after
another one: OUT holds ``states`` (flattened simulator states, float64), ``success`` and each picture, with the start
first.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

WORKER = Path(__file__).parents[2] / "isaaclab_arena" / "environments" / "gym" / "worker"


def main(request: dict, out: str) -> None:
    if "actions" in request:
        np.savez(out, **play(**request))
        return
    sys.path.insert(0, str(WORKER))
    source = importlib.import_module("gymnasium_tasks").Libero
    settings = {"cameras": [], "camera_size": 1, "picture_size": None, "wait_steps": 1, "gripper": "raw"}
    task = source.make("", {**settings, "seeds_every_reset": False, **request}, 10).unwrapped
    positions, orientations = [], []
    for index in request["order"]:
        conditions = {"libero.fixture_seed": 7, "libero.reset_index": index, "libero.init_state": index}
        task.reset(options={"conditions": conditions})
        positions.append(np.array(task.task.sim.model.body_pos))
        orientations.append(np.array(task.task.sim.model.body_quat))
    np.savez(out, positions=np.stack(positions), orientations=np.stack(orientations))


def play(checkout: str, actions: str, conditions: dict, settings: dict) -> dict:
    """Play an episode after another, and return what it told."""
    del checkout
    # At the end: modules beside the package have the names of others.
    sys.path.append(str(WORKER.parent))
    source = importlib.import_module("worker.gymnasium_tasks").Libero
    task = source.make("", settings, 10_000).unwrapped
    importlib.import_module("worker.rendering").keep_robosuite_apart()
    task.reset(options={"conditions": {**conditions, "libero.reset_index": conditions["libero.reset_index"] + 2}})
    task.step(np.ones(7, np.float32))
    shown, told = task.reset(options={"conditions": conditions})[0], []
    success = False
    for action in [*np.load(actions), None]:
        pictures = {f"observation {name}": value for name, value in shown.items() if name.endswith("_image")}
        told.append({"states": task.task.get_sim_state(), "success": success, **pictures})
        if action is not None:
            shown, _, _, _, info = task.step(action)
            success = info["success"]
    task.close()
    return {name: np.stack([each[name] for each in told]) for name in told[0]}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
