"""One system that runs Gymnasium's Ant-v5, as a process that `ant_throughput` starts and asks to step.

Usage: python -m benchmarks.simulation.ant_systems SYSTEM NUM_ENVS

For each line ``<seed> <num_steps>`` on the standard input it makes the steps with random actions and prints, as one
line of JSON, their wall time and the CPU time of this process with its child processes.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.measure import timed
from benchmarks.harness.workers import children, cpu_s, serve

WARM_UP_STEPS = 20
Step = Callable[[np.ndarray], Any]
"""Makes one control step of every ant, with observation and reward, and resets fallen ants."""

# Each system loads its own libraries.


def arena(num_envs: int) -> tuple[str, Step]:
    """Return this package's environment, through its view for Gymnasium's vector API."""
    import mujoco  # noqa: PLC0415

    from benchmarks.simulation.ant_environment import AntEnvironment  # noqa: PLC0415
    from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv  # noqa: PLC0415

    ants = EnvironmentVectorEnv(AntEnvironment(num_envs=num_envs))
    ants.reset(seed=0)

    def step(actions: np.ndarray) -> None:
        _, _, terminated, truncated, _ = ants.step(actions)
        over = terminated | truncated
        if over.any():
            ants.reset(options={"reset_mask": over})

    return f"MuJoCo {mujoco.__version__}", step


def bare(num_envs: int) -> tuple[str, Step]:
    """Return MuJoCo's batch alone, without observation and reward; it resets fallen ants."""
    import mujoco  # noqa: PLC0415
    from mujoco.batch import Batch  # noqa: PLC0415

    from benchmarks.simulation.ant_environment import ANT_XML, FRAME_SKIP, HEALTHY_Z_M  # noqa: PLC0415

    batch = Batch(mujoco.MjModel.from_xml_path(str(ANT_XML)), num_envs, 1)
    control, height, (low, high) = batch.bind("ctrl"), batch.bind("qpos")[:, 2], HEALTHY_Z_M
    batch.reset()

    def step(actions: np.ndarray) -> None:
        control[:] = actions
        batch.step(nstep=FRAME_SKIP)
        fallen = (height < low) | (height > high)
        if fallen.any():
            batch.reset(fallen)

    return f"MuJoCo {mujoco.__version__}", step


def vectorized(num_envs: int, mode: str) -> tuple[str, Step]:
    """Return Gymnasium's own environment in one of its vector environments, which reset ended episodes."""
    import gymnasium  # noqa: PLC0415
    import mujoco  # noqa: PLC0415

    ants = gymnasium.make_vec("Ant-v5", num_envs=num_envs, vectorization_mode=mode)
    ants.reset(seed=0)
    return f"Gymnasium {gymnasium.__version__}, MuJoCo {mujoco.__version__}", ants.step


def envpool(num_envs: int) -> tuple[str, Step]:
    """Return EnvPool's Ant-v5, on one thread."""
    import envpool as library  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  installed for this alone

    ants = library.make_gymnasium("Ant-v5", num_envs=num_envs, num_threads=1, seed=0)
    ants.reset()
    return f"EnvPool {library.__version__}", ants.step


SYSTEMS: dict[str, Callable[[int], tuple[str, Step]]] = {
    "arena": arena,
    "bare": bare,
    "sync": lambda num_envs: vectorized(num_envs, "sync"),
    "async": lambda num_envs: vectorized(num_envs, "async"),
    "envpool": envpool,
}


def cpu_of_family_s() -> float:
    """Return the CPU time of this process and its children, with all their threads [s]."""
    processes = [os.getpid()]
    for process in processes:
        processes += children(process)
    return sum(map(cpu_s, processes))


def walk(step: Step, num_envs: int, seed: int, num_steps: int) -> dict[str, float]:
    """Step with random actions, and return the time."""
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (num_steps, num_envs, 8)).astype(np.float32)

    def steps() -> None:
        for action in actions:
            step(action)

    return vars(timed(steps, cpu_of_family_s))


def main(system: str, num_envs: int) -> None:
    """Build a system, warm it up, and step it for each line."""
    version, step = SYSTEMS[system](num_envs)
    walk(step, num_envs, 0, WARM_UP_STEPS)
    serve({"version": version}, lambda seed, num_steps: walk(step, num_envs, seed, num_steps))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
