"""Episodes of vla-eval's own runner with its own connection to a server: ``python vla_eval_run.py REQUEST.json``.

The request names the class, the index of the ``task``, a seed of the process's generators for each episode, and the
``address`` of the server. It writes how the episodes ended, as JSON.
"""

import asyncio
import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np


async def main(request):
    runner = importlib.import_module("vla_eval.runners.sync_runner").SyncEpisodeRunner()
    module, _, name = request["class"].partition(":")
    benchmark_class = getattr(importlib.import_module(module), name)
    ended = []
    async with importlib.import_module("vla_eval.connection").Connection(request["address"]) as connection:
        for episode, seed in enumerate(request["seeds"]):
            random.seed(seed)
            np.random.seed(seed)
            benchmark = benchmark_class()
            task = {**benchmark.get_tasks()[request["task"]], "episode_idx": episode}
            limit = benchmark.get_metadata()["max_steps"]
            result = await runner.run_episode(benchmark, task, connection, max_steps=limit)
            ended.append({"steps": result["steps"], **result["metrics"]})
    return ended


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))))
