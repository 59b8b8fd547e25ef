"""Makes and steps every task of a suite as a worker does: ``python libero_all_tasks.py REQUEST.json OUT.npz``.

OUT holds what each task observed after three steps, all observables behind one another, by the name of the task.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

WORKER = Path(__file__).parents[2] / "isaaclab_arena" / "environments" / "gym" / "worker"
SETTINGS = {"cameras": [], "camera_size": 1, "picture_size": None, "wait_steps": 2, "gripper": "raw"}
FIRST = {"libero.fixture_seed": 7, "libero.reset_index": 0, "libero.init_state": 0}


def main(request: dict, out: str) -> None:
    sys.path.insert(0, str(WORKER))
    source = importlib.import_module("gymnasium_tasks").Libero
    observed = {}
    for name, files in request["tasks"].items():
        task = source.make("", {**SETTINGS, "seeds_every_reset": False, **files}, 10)
        task.reset(options={"conditions": FIRST})
        hold = np.zeros(7, np.float32)
        observation, _, _, _, info = [task.step(hold) for _ in range(3)][-1]
        observed[name] = np.concatenate([np.ravel(value) for value in observation.values()])
        sys.stderr.write(f"{name} {info}\n")
        task.close()
    np.savez(out, **observed)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
