"""LIBERO's resets as a worker plays them, in any order: ``python libero_played.py REQUEST.json OUT.npz``."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

WORKER = Path(__file__).parents[2] / "isaaclab_arena" / "environments" / "gym" / "worker"


def main(request: dict, out: str) -> None:
    sys.path.insert(0, str(WORKER))
    source = importlib.import_module("sources.libero_tasks")
    settings = {"cameras": [], "camera_size": 1, "picture_size": None, "wait_steps": 1, "gripper": "raw"}
    task = source.make("", {**settings, "seeds_every_reset": False, **request}, 10).unwrapped
    positions, orientations = [], []
    for index in request["order"]:
        conditions = {"libero.fixture_seed": 7, "libero.reset_index": index, "libero.init_state": index}
        task.reset(options={"conditions": conditions})
        positions.append(np.array(task.task.sim.model.body_pos))
        orientations.append(np.array(task.task.sim.model.body_quat))
    np.savez(out, positions=np.stack(positions), orientations=np.stack(orientations))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
