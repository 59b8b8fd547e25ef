"""Serves a policy by openpi's own server, in an interpreter that has it: ``python openpi_own_server.py KIND``.

It writes its port once it listens. ``plays`` answers with what follows from what one request shows and says, ``errs``
fails at its third request, ``still`` asks a robot of eight numbers to do nothing.
"""

import contextlib
import socket
import sys
import threading

import numpy as np
from openpi_client.base_policy import BasePolicy  # pyright: ignore[reportMissingImports]
from openpi_server import WebsocketPolicyServer  # pyright: ignore[reportMissingImports]

LENGTH, ACTION_DIM = 6, 5


class Pi(BasePolicy):
    """What `tests.gr00t.policy.model_servers.PiWithoutMemory` is in this repository's own interpreter."""

    def __init__(self, kind):
        self.kind, self.num_asked = kind, 0

    def infer(self, obs):
        self.num_asked += 1
        if self.kind == "still":
            return {"actions": np.zeros((8, 8), np.float32)}
        if self.kind == "errs" and self.num_asked == 3:
            raise ValueError("the images are too dark")
        shown = [obs["observation/state"].sum(), obs["observation/image"].sum() / 1e4, len(obs["prompt"])]
        steps = np.arange(LENGTH)[:, None] + np.arange(ACTION_DIM) / 10
        return {"actions": np.sin(steps + float(sum(shown)))}


def tell_once_it_listens(port):
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            break
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def main(kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threading.Thread(target=tell_once_it_listens, args=(port,), daemon=True).start()
    metadata = {"policy": "pi", "action_horizon": 8 if kind == "still" else LENGTH}
    WebsocketPolicyServer(Pi(kind), host="127.0.0.1", port=port, metadata=metadata).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
