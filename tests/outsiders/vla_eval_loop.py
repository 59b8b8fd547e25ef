"""Episodes of vla-eval's own runner, in its interpreter: ``python vla_eval_loop.py REQUEST.json ACTIONS.npy OUT.npz``.

The request names the class (``module:Class``), its ``arguments``, the index of the ``task``, the ``episodes``, a
``seed`` for the process's generators (None leaves them alone) and ``render``. Each episode has a new object of the
class, as in a run with a shard for every episode; with ``keep`` all have the same one, as in a run without shards.
``OUT`` holds what a policy was shown and how the episodes ended.
"""

import asyncio
import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np


class Player:
    """Stands in for the connection to a model server: it plays actions that are given, and keeps what it is shown."""

    def __init__(self, actions):
        self.actions, self.shown = actions, []

    async def start_episode(self, payload):
        pass

    async def act(self, observation):
        self.shown.append(observation)
        return {"actions": self.actions[len(self.shown) - 1]}

    async def end_episode(self, result):
        pass


def main(request, actions, out):
    runner = importlib.import_module("vla_eval.runners.sync_runner").SyncEpisodeRunner()
    module, _, name = request["class"].partition(":")
    benchmark_class = getattr(importlib.import_module(module), name)
    benchmark_class.configure_render(request["render"])
    kept, one = {}, benchmark_class(**request["arguments"]) if request.get("keep") else None
    for number, episode in enumerate(request["episodes"]):
        if request["seed"] is not None:
            random.seed(request["seed"])
            np.random.seed(request["seed"])
        benchmark, player = one or benchmark_class(**request["arguments"]), Player(actions)
        task = {**benchmark.get_tasks()[request["task"]], "episode_idx": episode}
        result = asyncio.run(runner.run_episode(benchmark, task, player, max_steps=len(actions)))
        if one is None:
            benchmark.cleanup()
        shown = [flat(observation) for observation in player.shown]
        kept.update({f"{number}/{key}": np.stack([each[key] for each in shown]) for key in shown[0]})
        kept[f"{number}/steps"], kept[f"{number}/success"] = result["steps"], result["metrics"]["success"]
    np.savez(out, **kept)


def flat(values, prefix=""):
    """Return the arrays and numbers of an observation, pictures by their own names."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found.update(flat(value, "" if name == "images" else f"{prefix}{name}."))
        elif not isinstance(value, str):
            found[prefix + name] = np.asarray(value)
    return found


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), np.load(sys.argv[2]), sys.argv[3])
