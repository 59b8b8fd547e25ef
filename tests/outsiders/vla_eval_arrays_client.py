"""Shows a policy server arrays of ones through vla-eval's own connection; runs in vla-eval's interpreter.

Usage: python vla_eval_arrays_client.py ADDRESS. The server says which arrays it wants. Prints the actions of an
episode.
"""

import asyncio
import json
import sys

import numpy as np
from vla_eval.connection import Connection  # pyright: ignore[reportMissingImports]


async def play(address: str) -> list:
    connection = Connection(address, timeout=60.0)
    await connection.connect()
    wanted = connection.server_info["observation_spec"]
    arrays = {name: np.ones(each["dims"], np.float32) for name, each in wanted.items() if each["dims"]}
    await connection.start_episode({"task": {"name": "reach", "episode_idx": 0}})
    shown = {**arrays, "images": {}, "task_description": "reach"}
    actions = [(await connection.act(shown))["actions"].tolist() for _ in range(3)]
    await connection.end_episode({})
    await connection.close()
    return actions


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(play(sys.argv[1]))))
