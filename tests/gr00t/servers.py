"""Policy servers on this machine: in a thread, or in a process that can be killed."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import zmq
from gr00t.data.types import ModalityConfig
from gr00t.policy.policy_server import PolicyServer

from tests.gr00t.fakes import MODALITIES, network_answer


class NetworkPolicy:
    """Answers as `network_answer` does, and remembers what it was asked; ``asked`` is called before each answer."""

    def __init__(self, asked: Callable[[], None] = lambda: None) -> None:
        self.asked = asked
        self.batch_sizes: list[int] = []
        self.resets = 0

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.asked()
        seeds = (options or {})["noise_seeds"]
        self.batch_sizes.append(len(seeds))
        return network_answer(observation, seeds), {}

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        return {
            name: ModalityConfig(delta_indices=list(m.delta_indices), modality_keys=list(m.modality_keys))
            for name, m in MODALITIES.items()
        }

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        del options
        self.resets += 1
        return {}


@contextmanager
def serving(policy: Any, **options: Any) -> Iterator[PolicyServer]:
    """Serve a policy on a free port of this machine, in a thread, for the length of a ``with`` block."""
    server = PolicyServer(policy, port=options.pop("port", 0), **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


PONG = b"\x82\xa6status\xa2ok\xa7message\xb1Server is running"
"""What a server answers to a ping."""


@contextmanager
def replying(reply: Callable[[bytes], bytes]) -> Iterator[int]:
    """Answer requests as a REP socket does, one at a time; yield the port."""
    stop = threading.Event()
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def serve() -> None:
            while not stop.is_set():
                if socket.poll(20):
                    socket.send(reply(socket.recv()))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port
        finally:
            stop.set()
            thread.join()


def answering(*answers: bytes) -> AbstractContextManager[int]:
    """Answer one request after the other, the last answer again and again; give the port."""
    left = list(answers)
    return replying(lambda _: left.pop(0) if len(left) > 1 else left[0])


_PROGRAM = """
import json
import sys
sys.path.insert(0, "submodules/Isaac-GR00T")
from arena_wire.messages import WireLimits
from gr00t.policy.policy_server import PolicyServer

class Still:
    def get_action(self, observation, options=None):
        return {}, {}

    def reset(self, options=None):
        return {}

port, api_token, limits = json.loads(sys.argv[1])
server = PolicyServer(Still(), port=port, api_token=api_token, limits=WireLimits(**limits))
print(server.port, flush=True)
server.run()
"""


class ServerProcess:
    """A server in a process of its own, which may die at any time. Use it in a ``with`` block."""

    def __init__(self, port: int = 0, *, api_token: str | None = None, **limits: int) -> None:
        options = json.dumps([port, api_token, limits])
        self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM, options], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


def plain(action: Any) -> dict[str, list[Any]]:
    """Return arrays as lists, to compare them."""
    return {key: np.asarray(values).tolist() for key, values in action.items()}
