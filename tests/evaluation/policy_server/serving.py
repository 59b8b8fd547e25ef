"""A policy server in a thread of the tests, at a Unix socket that stays though the server ends."""

import socket
from pathlib import Path

from isaaclab_arena.evaluation.policy_client import ServerAddress
from isaaclab_arena.evaluation.policy_server import Serving

TOKEN = "open sesame"


class Socket:
    """A listening socket, its address, and all that serves there."""

    def __init__(self, directory: Path) -> None:
        path = directory / "policy.sock"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen(16)
        self.address = ServerAddress(path=str(path), token=TOKEN)
        self.servings: list[Serving] = []

    def serve(self, max_wait_s: float = 0.005, **loaders) -> Serving:
        """Serve networks, each under its name."""
        self.servings.append(Serving(self.listening, loaders, max_batch=64, max_wait_s=max_wait_s, token=TOKEN))
        return self.servings[-1]

    def close(self) -> None:
        for serving in self.servings:
            serving.close()
        self.listening.close()
