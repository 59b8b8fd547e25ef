"""One system that runs Gymnasium's Ant-v5, as a process that `ant_throughput.py` starts and asks to step.

Usage: python benchmarks/ant_systems.py SYSTEM NUM_ENVS

Each line ``<seed> <num_steps>`` on the standard input makes it step that often with random actions and print, as one
line of JSON, how long that took: the CPU time of this process, of all its threads and of its child processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

WARM_UP_STEPS = 20


class Ants(Protocol):
    """Ants that walk."""

    version: str

    def step(self, actions: np.ndarray) -> None:
        """Make one control step of every ant, with observation and reward, and start those anew that have fallen."""
        ...


class ArenaAnts:
    """This package's environment, through its view for Gymnasium's vector API."""

    def __init__(self, num_envs: int) -> None:
        import mujoco  # noqa: PLC0415  each system loads its own libraries
        from ant_environment import AntEnvironment  # noqa: PLC0415

        from isaaclab_arena.environments.gym.vector_env import EnvironmentVectorEnv  # noqa: PLC0415

        self.version = f"MuJoCo {mujoco.__version__}"
        self._ants = EnvironmentVectorEnv(AntEnvironment(num_envs=num_envs))
        self._ants.reset(seed=0)

    def step(self, actions: np.ndarray) -> None:
        """Step, then reset the rows that have finished."""
        _, _, terminated, truncated, _ = self._ants.step(actions)
        over = terminated | truncated
        if over.any():
            self._ants.reset(options={"reset_mask": over})


class BareAnts:
    """MuJoCo's batch alone: no observation, no reward; the ants that have fallen are started anew."""

    def __init__(self, num_envs: int) -> None:
        import mujoco  # noqa: PLC0415
        from ant_environment import ANT_XML, FRAME_SKIP, HEALTHY_Z_M  # noqa: PLC0415
        from mujoco.batch import Batch  # noqa: PLC0415

        self.version = f"MuJoCo {mujoco.__version__}"
        self._batch = Batch(mujoco.MjModel.from_xml_path(str(ANT_XML)), num_envs, 1)
        self._control, self._height = self._batch.bind("ctrl"), self._batch.bind("qpos")[:, 2]
        self._frame_skip, (self._low, self._high) = FRAME_SKIP, HEALTHY_Z_M
        self._batch.reset()

    def step(self, actions: np.ndarray) -> None:
        """Step the physics."""
        self._control[:] = actions
        self._batch.step(nstep=self._frame_skip)
        fallen = (self._height < self._low) | (self._height > self._high)
        if fallen.any():
            self._batch.reset(fallen)


class GymnasiumAnts:
    """Gymnasium's own environment in one of its vector environments, which start anew what has ended."""

    def __init__(self, num_envs: int, mode: str) -> None:
        import gymnasium  # noqa: PLC0415
        import mujoco  # noqa: PLC0415

        self.version = f"Gymnasium {gymnasium.__version__}, MuJoCo {mujoco.__version__}"
        self._ants = gymnasium.make_vec("Ant-v5", num_envs=num_envs, vectorization_mode=mode)
        self._ants.reset(seed=0)

    def step(self, actions: np.ndarray) -> None:
        """Step."""
        self._ants.step(actions)


class EnvpoolAnts:
    """EnvPool's Ant-v5, on one thread."""

    def __init__(self, num_envs: int) -> None:
        import envpool  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  installed for the benchmark alone

        self.version = f"EnvPool {envpool.__version__}"
        self._ants = envpool.make_gymnasium("Ant-v5", num_envs=num_envs, num_threads=1, seed=0)
        self._ants.reset()

    def step(self, actions: np.ndarray) -> None:
        """Step."""
        self._ants.step(actions)


SYSTEMS: dict[str, Callable[[int], Ants]] = {
    "arena": ArenaAnts,
    "bare": BareAnts,
    "sync": lambda num_envs: GymnasiumAnts(num_envs, "sync"),
    "async": lambda num_envs: GymnasiumAnts(num_envs, "async"),
    "envpool": EnvpoolAnts,
}


def cpu_s() -> float:
    """Return the CPU time of this process and its children, with all their threads [s]."""
    processes = [os.getpid()]
    for process in processes:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            processes += [int(child) for child in children.read_text().split()]
    threads = [path for process in processes for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def run(ants: Ants, actions: np.ndarray) -> dict[str, float]:
    cpu, wall = cpu_s(), time.perf_counter()
    for action in actions:
        ants.step(action)
    return {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu}


def main(system: str, num_envs: int) -> None:
    ants = SYSTEMS[system](num_envs)
    generator = np.random.default_rng(0)
    run(ants, generator.uniform(-1.0, 1.0, (WARM_UP_STEPS, num_envs, 8)).astype(np.float32))
    print(json.dumps({"version": ants.version}), flush=True)
    for line in sys.stdin:
        seed, num_steps = map(int, line.split())
        generator = np.random.default_rng(seed)
        actions = generator.uniform(-1.0, 1.0, (num_steps, num_envs, 8)).astype(np.float32)
        print(json.dumps(run(ants, actions)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
