"""Policy servers with a model that takes no time: ``python -m benchmarks.gr00t.wire_servers WIRE``.

WIRE is ``gr00t``, ``openpi``, ``vla_eval`` or ``policy_server``. It prints its port, and for ``policy_server`` where
its socket is. openpi's and vla-eval's own servers answer in one event loop too; they have codecs of their own.
"""

import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
from gr00t.data.types import ModalityConfig
from gr00t.policy.policy_server import BatchingOptions, PolicyServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from benchmarks.gr00t.wire_worker.answers import ACTION_DIM, NUM_STEPS
from isaaclab_arena.evaluation.policy_server import Serving
from isaaclab_arena.interfaces.policy import Entries
from isaaclab_arena_gr00t.remote.openpi import OpenpiCodec
from isaaclab_arena_gr00t.remote.protocols import OBSERVATION
from isaaclab_arena_gr00t.remote.vla_eval import ACTION, HELLO, PROTOCOL_VERSION, Message, VlaEvalCodec

TOKEN = "zeros"
ACTIONS = np.zeros((NUM_STEPS, ACTION_DIM), np.float32)


class Zeros:
    """Answers GR00T's requests with zeros."""

    def get_action(self, observation: dict[str, Any], options: dict[str, Any] | None = None) -> Any:
        """Return a chunk for each env slot."""
        del options
        num_slots = len(observation["state"]["state"])
        return {"action": np.zeros((num_slots, NUM_STEPS, ACTION_DIM), np.float32)}, {}

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return no modalities."""
        return {}

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do nothing."""
        del options
        return {}


class ZeroNetwork:
    """Answers the ranks' requests to their policy server with zeros."""

    about: Mapping[str, Any] = {"slots_per_call": None}

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return a chunk for each entry."""
        return {"actions": np.zeros((len(entries["words"]), NUM_STEPS, ACTION_DIM), np.float32)}


def serve_ranks() -> None:
    """Serve as a run's policy server does, on a socket in a temporary directory, until this process is ended."""
    with tempfile.TemporaryDirectory(prefix="wire_servers_") as name, socket.socket(socket.AF_UNIX) as listening:
        path = f"{name}/socket"
        listening.bind(path)
        listening.listen()
        Serving(listening, {"zeros": ZeroNetwork}, max_batch=64, max_wait_s=0.0, token=TOKEN)
        print(path, flush=True)
        threading.Event().wait()


async def openpi(connection: ServerConnection) -> None:
    """Describe itself, then answer observations, as openpi's server does."""
    await connection.send(OpenpiCodec.pack({"policy": "zeros"}))
    while True:
        OpenpiCodec.unpack(await connection.recv(decode=False))
        await connection.send(OpenpiCodec.pack({"actions": ACTIONS}))


async def vla_eval(connection: ServerConnection) -> None:
    """Say hello, then answer observations, as vla-eval's servers do."""
    while True:
        message = VlaEvalCodec.unpack(await connection.recv(decode=False))
        payload: dict[str, Any] = {"actions": ACTIONS}
        if message.kind == HELLO:
            payload = {"protocol_version": PROTOCOL_VERSION, "model_server": "zeros"}
        kinds = {HELLO: HELLO, OBSERVATION: ACTION}
        if message.kind in kinds:
            answer = Message(kind=kinds[message.kind], payload=payload, number=message.number)
            await connection.send(VlaEvalCodec.pack(answer))


async def run(talk: Callable[[ServerConnection], Awaitable[None]]) -> None:
    """Serve on a free port until this process is ended."""

    async def handler(connection: ServerConnection) -> None:
        try:
            await talk(connection)
        except ConnectionClosed:
            return

    async with serve(handler, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await server.serve_forever()


def main(wire: str) -> None:
    """Serve one protocol."""
    if wire == "policy_server":
        serve_ranks()
    elif wire == "gr00t":
        server = PolicyServer(Zeros(), port=0, batching=BatchingOptions(max_batch=1))
        print(server.port, flush=True)
        server.run()
    else:
        asyncio.run(run({"openpi": openpi, "vla_eval": vla_eval}[wire]))


if __name__ == "__main__":
    main(sys.argv[1])
