"""Play episodes as LeRobot does, with its own file ``envs/libero.py``: ``lerobot_loop FILE STEPS SIZE``.

Runs in LIBERO's interpreter, without LeRobot's other packages: what its file takes from them is a few lines here.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
import typing

import gymnasium
import numpy as np

from benchmarks.harness.workers import serve
from benchmarks.libero.interpreter import HOLD, stand_in_for_torch


def load(path: str) -> typing.Any:
    """Return LeRobot's module of LIBERO."""
    stand_in_for_torch()
    lerobot: typing.Any = types.ModuleType("lerobot")
    lerobot_types: typing.Any = types.ModuleType("lerobot.lerobot_types")
    envs: typing.Any = types.ModuleType("lerobot.envs")
    utils: typing.Any = types.ModuleType("lerobot.envs.utils")
    lerobot.__path__, envs.__path__ = [], []
    lerobot_types.RobotObservation = dict
    utils.parse_camera_names = lambda names: names.split(",") if isinstance(names, str) else list(names)
    vars(utils)["_LazyAsyncVectorEnv"] = None
    for module in (lerobot, lerobot_types, envs, utils):
        sys.modules[module.__name__] = module
    spec = importlib.util.spec_from_file_location("lerobot.envs.libero", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


class Rollouts:
    """Rollouts of one environment, as ``lerobot_eval.rollout`` makes them.

    Args:
        module: LeRobot's module.
        steps: Control steps of an episode.
        size: Width and height of the pictures [pixels].
    """

    def __init__(self, module: typing.Any, steps: int, size: int) -> None:
        made = module.create_libero_envs(
            "libero_spatial",
            1,
            {"task_ids": [0], "obs_type": "pixels_agent_pos", "observation_width": size, "observation_height": size},
            env_cls=gymnasium.vector.SyncVectorEnv,
            episode_length=steps,
        )
        self._vector = made["libero_spatial"][0]
        self._steps = steps

    def play(self, seed: int) -> dict[str, float]:
        """Play one episode."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        self._vector.reset(seed=[seed])
        action = np.array([HOLD], np.float32)
        for _ in range(self._steps):
            observation, _, terminated, _, _ = self._vector.step(action)
            assert observation["pixels"]["image"].any()
            assert not terminated.any()
        return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}


if __name__ == "__main__":
    rollouts = Rollouts(load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    serve({"ready": True}, rollouts.play)
