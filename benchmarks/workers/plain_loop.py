"""A plain loop over one environment in an interpreter of its own: ``python plain_loop.py {pusht,lift} NUM_STEPS``.

It prints, as JSON, the wall time of its steps and resets [s], their CPU time [s] and its memory [bytes]. It imports
nothing that the interpreter of the environment might lack.
"""

import importlib
import json
import pathlib
import sys
import time
import typing

import numpy as np

EPISODE_STEPS = {"pusht": 300, "lift": 400}


def pusht() -> typing.Any:
    """Return PushT, which observes its state."""
    importlib.import_module("gym_pusht")
    gymnasium = importlib.import_module("gymnasium")
    return gymnasium.make("gym_pusht/PushT-v0", obs_type="state", disable_env_checker=True)


def lift() -> typing.Any:
    """Return robosuite's Lift with two cameras."""
    robosuite = importlib.import_module("robosuite")
    return robosuite.make(
        "Lift",
        robots=["Panda"],
        controller_configs=[robosuite.load_composite_controller_config(controller=None, robot="Panda")],
        has_renderer=False,
        use_camera_obs=True,
        camera_names=["agentview", "robot0_eye_in_hand"],
        camera_heights=84,
        camera_widths=84,
        control_freq=20,
        ignore_done=True,
        seed=0,
    )


def main(kind: str, num_steps: int) -> None:
    """Make steps with random actions, and print their time and memory."""
    environment = {"pusht": pusht, "lift": lift}[kind]()
    rng = np.random.default_rng(0)
    low, high = (0.0, 512.0) if kind == "pusht" else (-1.0, 1.0)
    actions = rng.uniform(low, high, (num_steps, 2 if kind == "pusht" else 7)).astype(np.float32)
    environment.reset()
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    for number, action in enumerate(actions, start=1):
        environment.step(action)
        if number % EPISODE_STEPS[kind] == 0:
            environment.reset()
    taken = {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_began_s}
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    taken["memory_bytes"] = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    sys.stdout.write(json.dumps(taken) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
