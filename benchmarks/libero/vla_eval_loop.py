"""Play episodes with vla-eval's own orchestrator, runner and server: ``vla_eval_loop STEPS SIZE DIRECTORY``.

Runs in LIBERO's interpreter with vla-eval. Its server of a policy that does nothing is a thread of this process, so
that the CPU time of both sides counts.
"""

# pyright: reportMissingImports=false
# These packages are those of another interpreter.

from __future__ import annotations

import functools
import json
import sys
import threading
import time
import typing

import anyio
import numpy as np
from anyio import to_thread
from vla_eval.benchmarks.libero import benchmark as libero
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve_async
from vla_eval.orchestrator import Orchestrator
from vla_eval.runners.sync_runner import SyncEpisodeRunner

from benchmarks.libero.interpreter import HOLD, stand_in_for_torch

MANY = 50
"""Episodes that may be asked for: as many as there are initial states."""


class HoldServer(PredictModelServer):
    """Answers every observation with an action that does nothing."""

    def predict(self, obs: typing.Any, ctx: typing.Any) -> typing.Any:
        """Return the action."""
        del obs, ctx
        return {"actions": np.array(HOLD, np.float32)}


def serve_policy() -> int:
    """Serve the policy in a thread, and return its port."""
    ports: list[int] = []
    ready = threading.Event()

    async def run() -> None:
        async with anyio.create_task_group() as group:
            ports.append(await group.start(functools.partial(serve_async, HoldServer(), "127.0.0.1", 0)))
            ready.set()

    threading.Thread(target=anyio.run, args=(run,), daemon=True).start()
    ready.wait(60)
    return ports[0]


def play_when_asked(play: typing.Any) -> typing.Any:
    """Return the runner's method that plays an episode, which waits for a line before each and says what it took."""

    async def run_episode(self: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        if not await to_thread.run_sync(sys.stdin.readline):
            sys.exit(0)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        result = await play(self, *arguments, **options)
        took = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}
        print(json.dumps({**took, "steps": result["steps"]}), flush=True)
        return result

    return run_episode


def main(steps: int, size: int, directory: str) -> None:
    """Play as many episodes as are asked for."""
    stand_in_for_torch()
    libero.LIBERO_ENV_RESOLUTION = size
    SyncEpisodeRunner.run_episode = play_when_asked(SyncEpisodeRunner.run_episode)
    entry = {
        "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
        "episodes_per_task": MANY,
        "max_tasks": 1,
        "max_steps": steps,
        "params": {"suite": "libero_spatial", "seed": 7, "send_wrist_image": True, "send_state": True},
    }
    server = {"url": f"ws://127.0.0.1:{serve_policy()}"}
    document = {"server": server, "output_dir": directory, "render": "cpu", "benchmarks": [entry]}
    print(json.dumps({"ready": True}), flush=True)
    anyio.run(Orchestrator(document).run)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
