"""Small servers that stand for those of GR00T, openpi and vla-eval, and policies that ask them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy
from isaaclab_arena.remote.vla_eval import VlaEvalRemotePolicy
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicy
from tests.gr00t.fakes import write_policy_yaml
from tests.gr00t.servers import NetworkPolicy, serving

PolicyT = TypeVar("PolicyT", bound=PolicyBase[Any])
Talk = Callable[[ServerConnection], None]
Hook = Callable[[], None]


@contextmanager
def talking(talk: Talk, port: int = 0, **options: Any) -> Iterator[int]:
    with serve(talk, "127.0.0.1", port, compression=None, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


@contextmanager
def asking(policy_at: Callable[..., PolicyT], talk: Talk, **options: Any) -> Iterator[PolicyT]:
    """Serve in this process, and yield a policy that asks there; it is closed at the end of the ``with`` block."""
    with talking(talk) as port:
        policy = policy_at(port, **options)
        yield policy
        policy.close()


# openpi: metadata first, then an answer for each observation.

LENGTH = 6


class Pi:
    """Answers with actions that say which request they are for; ``asked`` is called before each answer."""

    def __init__(self, asked: Hook = lambda: None) -> None:
        self.asked = asked
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.columns = 5
        self.hang_up_at = -1
        self.metadata: dict[str, Any] = {"policy": "pi"}

    def infer(self, request: dict[str, Any]) -> Any:
        self.requests.append(request)
        steps = np.arange(LENGTH)[:, None] + 10 * len(self.requests)
        return {
            "actions": (steps + np.arange(self.columns) / 10).astype(np.float64),
            "server_timing": {"infer_ms": 1.0},
        }


class PiWithoutMemory(Pi):
    """Answers with actions that follow from what one request shows and says, and from nothing else."""

    def infer(self, request: dict[str, Any]) -> Any:
        shown = [request["observation/state"].sum(), request["observation/image"].sum() / 1e4, len(request["prompt"])]
        steps = np.arange(LENGTH)[:, None] + np.arange(self.columns) / 10
        return {"actions": np.sin(steps + float(sum(shown)))}


def conversation(pi: Pi) -> Talk:
    def talk(connection: ServerConnection) -> None:
        pi.keys.append(connection.request.headers.get("Authorization") if connection.request else None)
        connection.send(OpenpiCodec.pack(pi.metadata))
        while True:
            try:
                pi.asked()
                answer = pi.infer(OpenpiCodec.unpack(connection.recv(decode=False)))
                if len(pi.requests) == pi.hang_up_at:
                    return
                connection.send(OpenpiCodec.pack(answer))
            except ConnectionClosed:
                return

    return talk


# vla-eval, with a codec of its own.

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

    def __init__(self, asked: Hook = lambda: None, **hello: Any) -> None:
        self.notified = asked
        self.hello = {**HELLO, **hello}
        self.heard: list[list[dict[str, Any]]] = []
        self.answers: Callable[[dict[str, Any], int], list[Any]] = self.acting

    def action(self, observation: dict[str, Any]) -> np.ndarray:
        """Action that depends on the content of one observation alone."""
        shown = observation["robot_joint_pos"].sum() + observation["images"]["front"].sum() / 1e4
        return np.sin(np.arange(5) + shown + len(observation["task_description"]))

    def acting(self, message: dict[str, Any], asked: int) -> list[Any]:
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


# Policies that ask at a port of this machine.

LIMITS = {"timeout_s": 5.0, "wait_for_server_s": 3.0}
HERE = {"remote_host": "127.0.0.1", **LIMITS}
POLICIES: dict[str, type[PolicyBase[Any]]] = {
    "gr00t": Gr00tRemoteClosedloopPolicy,
    "openpi": OpenpiRemotePolicy,
    "vla_eval": VlaEvalRemotePolicy,
}


def options_for(wire: str, port: int, directory: Path | None = None, **options: Any) -> dict[str, Any]:
    """Return the options of a policy for the limbs; GR00T's need a directory for their YAML file."""
    if wire == "vla_eval":
        return {"address": f"ws://127.0.0.1:{port}", **LIMITS, **options}
    if wire == "openpi":
        shown = {
            "images": {"observation/image": "front"},
            "states": {"observation/state": ["robot_joint_pos", "fingers"]},
            "image_size": (12, 12),
            "action_chunk_length": 4,
        }
        return {**shown, "remote_port": port, **HERE, **options}
    assert directory is not None
    return {"policy_config_yaml_path": write_policy_yaml(directory), "remote_port": port, **HERE, **options}


def openpi_at(port: int, **options: Any) -> OpenpiRemotePolicy:
    return OpenpiRemotePolicy.from_dict(options_for("openpi", port, **options))


def vla_eval_at(port: int, **options: Any) -> VlaEvalRemotePolicy:
    return VlaEvalRemotePolicy.from_dict(options_for("vla_eval", port, **options))


def gr00t_at(port: int, directory: Path, **options: Any) -> Gr00tRemoteClosedloopPolicy:
    return Gr00tRemoteClosedloopPolicy.from_dict(options_for("gr00t", port, directory, **options))


@contextmanager
def serving_by(wire: str, asked: Hook = lambda: None, model: type[Model] = Model) -> Iterator[int]:
    """Serve, by a protocol, a model that answers alike to what is alike; yield the port."""
    if wire == "gr00t":
        with serving(NetworkPolicy(asked)) as server:
            yield server.port
    else:
        talk = conversation(PiWithoutMemory(asked)) if wire == "openpi" else model(asked).talk
        with talking(talk) as port:
            yield port
