"""Asks a policy server through openpi's own client; runs in an interpreter that has it.

Usage: python openpi_own_client.py ADDRESS. Prints the actions, and what the server refused.
"""

import json
import sys

from client_observations import STEPS, pictures, states, words
from openpi_client.action_chunk_broker import ActionChunkBroker  # pyright: ignore[reportMissingImports]
from openpi_client.websocket_client_policy import WebsocketClientPolicy  # pyright: ignore[reportMissingImports]


def main(address: str) -> None:
    client = WebsocketClientPolicy(address)
    metadata = client.get_server_metadata()
    # As openpi's own programs play the chunks of a server.
    broker = ActionChunkBroker(client, metadata["action_horizon"])
    actions = [
        broker.infer({**pictures(0, step), **states(0, step), "prompt": words(0)})["actions"].tolist()
        for step in range(STEPS)
    ]
    refused = ""
    try:
        client.infer({"prompt": "move"})
    except RuntimeError as error:
        refused = str(error)
    sys.stdout.write(json.dumps({"actions": actions, "refused": refused, "program": metadata["program"]}))


if __name__ == "__main__":
    main(sys.argv[1])
