"""Asks a policy server through vla-eval's own connections, all at once; runs in vla-eval's interpreter.

Usage: python vla_eval_client.py ADDRESS. Prints the actions of each session, and what the server refused.
"""

import asyncio
import json
import sys

from client_observations import SESSIONS, STEPS, pictures, states, words
from vla_eval.connection import Connection  # pyright: ignore[reportMissingImports]


async def play(address: str) -> dict:
    connections = [Connection(address, timeout=60.0) for _ in range(SESSIONS)]
    for connection in connections:
        await connection.connect()

    async def episode(session: int) -> list:
        answers = []
        await connections[session].start_episode({"task": {"name": "limbs", "episode_idx": session}})
        for step in range(STEPS):
            shown = {"images": pictures(session, step), **states(session, step), "task_description": words(session)}
            answers.append((await connections[session].act(shown))["actions"].tolist())
        await connections[session].end_episode({})
        return answers

    actions = await asyncio.gather(*map(episode, range(SESSIONS)))
    refused = ""
    await connections[0].start_episode({"task": {"name": "limbs"}})
    try:
        await connections[0].act({"images": {}, "task_description": "move"})
    except RuntimeError as error:
        refused = str(error)
    for connection in connections:
        await connection.close()
    return {"actions": actions, "refused": refused, "server": connections[0].server_info["model_server"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(play(sys.argv[1]))))
