"""Programs for LIBERO's interpreter, which answer each line with the time of one episode.

``inside lerobot FILE STEPS SIZE`` plays episodes with LeRobot's own file ``envs/libero.py``, without LeRobot's other
packages. ``inside vla_eval STEPS SIZE DIRECTORY`` plays them with vla-eval's own orchestrator, runner and server. The
server is a thread of this process, so the CPU time of both sides counts.
"""

# pyright: reportMissingImports=false
# These packages are those of another interpreter.
# ruff: noqa: PLC0415
# Each program loads its own packages.

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import threading
import time
import types
import typing
from pathlib import Path

import numpy as np

from benchmarks.harness.workers import serve

HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""The action of every harness's policy: nothing, with the gripper open."""

MANY = 50
"""Limit of episodes: one for each initial state."""

# By its file, because the package around it needs more than LIBERO's interpreter has.
_READER = Path(__file__).parents[2] / "isaaclab_arena/environments/gym/worker/gymnasium_tasks.py"


def loaded(name: str, path: str | Path) -> typing.Any:
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stand_in_for_torch() -> None:
    """Let LIBERO read its initial states without torch if that is not installed; nothing else needs it."""

    def load(path: str | Path, **_: typing.Any) -> typing.Any:
        return loaded("libero_init_states", _READER).read_init_states(str(path))

    if importlib.util.find_spec("torch") is None:
        torch: typing.Any = types.ModuleType("torch")
        torch.load = load
        sys.modules["torch"] = torch


def lerobot(path: str, steps: str, size: str) -> None:
    """Play episodes of one environment, as ``lerobot_eval.rollout`` does."""
    import gymnasium

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
    options = {"task_ids": [0], "obs_type": "pixels_agent_pos"}
    pictures = {"observation_width": int(size), "observation_height": int(size)}
    made = loaded("lerobot.envs.libero", path).create_libero_envs(
        *("libero_spatial", 1, {**options, **pictures}),
        env_cls=gymnasium.vector.SyncVectorEnv,
        episode_length=int(steps),
    )
    vector = made["libero_spatial"][0]

    def play(seed: int) -> dict[str, float]:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        vector.reset(seed=[seed])
        action = np.array([HOLD], np.float32)
        for _ in range(int(steps)):
            observation, _, terminated, _, _ = vector.step(action)
            assert observation["pixels"]["image"].any()
            assert not terminated.any()
        return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}

    serve({"ready": True}, play)


def vla_eval(steps: str, size: str, directory: str) -> None:
    """Play an episode for each line on the standard input."""
    import anyio
    from anyio import to_thread
    from vla_eval.benchmarks.libero import benchmark as libero
    from vla_eval.model_servers.predict import PredictModelServer
    from vla_eval.model_servers.serve import serve_async
    from vla_eval.orchestrator import Orchestrator
    from vla_eval.runners.sync_runner import SyncEpisodeRunner

    stand_in_for_torch()

    class HoldServer(PredictModelServer):
        def predict(self, obs: typing.Any, ctx: typing.Any) -> typing.Any:
            del obs, ctx
            return {"actions": np.array(HOLD, np.float32)}

    ports: list[int] = []
    ready = threading.Event()

    async def serve_policy() -> None:
        async with anyio.create_task_group() as group:
            ports.append(await group.start(functools.partial(serve_async, HoldServer(), "127.0.0.1", 0)))
            ready.set()

    play = SyncEpisodeRunner.run_episode

    async def play_when_asked(self: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        if not await to_thread.run_sync(sys.stdin.readline):
            sys.exit(0)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        result = await play(self, *arguments, **options)
        took = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}
        print(json.dumps({**took, "steps": result["steps"]}), flush=True)
        return result

    libero.LIBERO_ENV_RESOLUTION = int(size)
    SyncEpisodeRunner.run_episode = play_when_asked
    threading.Thread(target=anyio.run, args=(serve_policy,), daemon=True).start()
    ready.wait(60)
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": MANY,
        "max_tasks": 1,
        "max_steps": int(steps),
        "params": {"suite": "libero_spatial", "seed": 7, "send_wrist_image": True, "send_state": True},
    }
    server = {"url": f"ws://127.0.0.1:{ports[0]}"}
    document = {"server": server, "output_dir": directory, "render": "cpu", "benchmarks": [entry]}
    print(json.dumps({"ready": True}), flush=True)
    anyio.run(Orchestrator(document).run)


if __name__ == "__main__":
    {"lerobot": lerobot, "vla_eval": vla_eval}[sys.argv[1]](*sys.argv[2:])
