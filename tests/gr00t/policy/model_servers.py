"""A small server that stands for those of vla-eval, and says what they say; it has a codec of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from isaaclab_arena.interfaces.policy import PolicyBase

PolicyT = TypeVar("PolicyT", bound=PolicyBase[Any])
HELLO = {"harness_version": "0.8.0", "protocol_version": 1, "model_server": "Pusher", "capabilities": {}}


def array(values: Any, dtype: str = "<f4") -> dict[str, Any]:
    plain = np.asarray(values, dtype)
    return {"__ndarray__": True, "data": plain.tobytes(), "dtype": plain.dtype.str, "shape": list(plain.shape)}


def packed(kind: str, payload: Any, number: int) -> bytes:
    return bytes(msgpack.packb({"type": kind, "payload": payload, "seq": number, "timestamp": time.time()}) or b"")


def unpacked(data: bytes) -> dict[str, Any]:
    def decoded(value: dict[str, Any]) -> Any:
        if "__ndarray__" not in value:
            return value
        return np.frombuffer(value["data"], value["dtype"]).reshape(value["shape"])

    return msgpack.unpackb(data, object_hook=decoded)


class Model:
    """Answers by what it is shown, and remembers what it heard in each session; ``asked`` comes before each answer."""

    def __init__(self, asked: Callable[[], None] = lambda: None, **hello: Any) -> None:
        self.notified = asked
        self.hello = {**HELLO, **hello}
        self.heard: list[list[dict[str, Any]]] = []
        self.answers: Callable[[dict[str, Any], int], list[bytes]] = self.acting

    def action(self, observation: dict[str, Any]) -> np.ndarray:
        """Action that depends on the content of one observation alone."""
        shown = observation["robot_joint_pos"].sum() + observation["images"]["front"].sum() / 1e4
        return np.sin(np.arange(5) + shown + len(observation["task_description"]))

    def acting(self, message: dict[str, Any], asked: int) -> list[bytes]:
        del asked
        return [packed("action", {"actions": array(self.action(message["payload"]))}, message["seq"])]

    def talk(self, connection: ServerConnection) -> None:
        heard: list[dict[str, Any]] = []
        self.heard.append(heard)
        asked = 0
        while True:
            try:
                message = unpacked(connection.recv(decode=False))
                heard.append(message)
                if message["type"] == "hello":
                    connection.send(packed("hello", self.hello, message["seq"]))
                if message["type"] == "observation":
                    asked += 1
                    self.notified()
                    for answer in self.answers(message, asked):
                        connection.send(answer)
            except ConnectionClosed:
                return


@contextmanager
def talking(talk: Callable[[ServerConnection], None], port: int = 0, **options: Any) -> Iterator[int]:
    with serve(talk, "127.0.0.1", port, compression=None, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


@contextmanager
def asking(
    policy_at: Callable[..., PolicyT], talk: Callable[[ServerConnection], None], **options: Any
) -> Iterator[PolicyT]:
    """Serve in this process, and yield a policy that asks there; it is closed at the end of the ``with`` block."""
    with talking(talk) as port:
        policy = policy_at(port, **options)
        yield policy
        policy.close()
