"""The policy servers and clients of GR00T's releases, as far as their messages go."""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Self

import msgpack
import numpy as np
import zmq

from tests.gr00t.servers import replying


@dataclass
class Modality:
    """A modality with the fields that a release has."""

    delta_indices: Sequence[int]
    modality_keys: Sequence[str]
    sin_cos_embedding_keys: Sequence[str] | None = None
    mean_std_embedding_keys: Sequence[str] | None = None
    action_configs: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Release:
    """How a release writes arrays and modalities, and which it reads."""

    writes_maps: bool  # as msgpack_numpy does
    reads_npy: bool  # what `np.save` wrote
    modality_name: str
    known_names: tuple[str, ...]

    def pack(self, message: Any) -> bytes:
        return bytes(msgpack.packb(message, default=self._encoded) or b"")

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(data, object_hook=self._decoded)

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, Modality):
            return {self.modality_name: True, "as_json": asdict(value)}
        assert isinstance(value, np.ndarray), type(value)
        if self.writes_maps:
            about = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
            return {**about, b"data": value.tobytes()}
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": stream.getvalue()}

    def _decoded(self, value: dict[Any, Any]) -> Any:
        if any(name in value for name in self.known_names):
            return Modality(**value["as_json"])
        if self.reads_npy and "__ndarray_class__" in value:
            return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
        if self.writes_maps and value.get(b"nd") is True:
            return np.ndarray(buffer=bytearray(value[b"data"]), dtype=value[b"type"], shape=value[b"shape"])
        return value


OLDER, NEWER = "__ModalityConfig_class__", "__ModalityConfig__"
N1_6 = Release(writes_maps=False, reads_npy=True, modality_name=OLDER, known_names=(OLDER,))
N1_7 = Release(writes_maps=True, reads_npy=True, modality_name=NEWER, known_names=(OLDER, NEWER))
N1_7_ALONE = Release(writes_maps=True, reads_npy=False, modality_name=NEWER, known_names=(NEWER,))
RELEASES = {"N1.6": N1_6, "N1.7": N1_7, "N1.7 without N1.6": N1_7_ALONE}

Act = Callable[[dict[str, Any], Any], dict[str, np.ndarray]]


@dataclass
class ReleasedServer:
    """What a served policy answers. Its checks are those of the releases' strict mode, as far as they matter here."""

    modalities: Mapping[str, Modality]
    act: Act
    wrapped_for_simulation: bool = False

    def answer(self, endpoint: str, data: Mapping[str, Any]) -> Any:
        if endpoint == "ping":
            return {"status": "ok", "message": "Server is running"}
        if endpoint == "get_modality_config":
            return dict(self.modalities)
        if endpoint == "reset":
            return {}
        assert endpoint == "get_action", f"Unknown endpoint: {endpoint}"
        if not self.wrapped_for_simulation:
            return self._checked(data["observation"], data["options"]), {}
        action = self._checked(self._nested(data["observation"]), data["options"])
        return {f"action.{key}": values for key, values in action.items()}, {}

    def _nested(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for modality in ("video", "state", "language"):
            entries = nested[modality] = {}
            for key in self.modalities[modality].modality_keys:
                flat = key if modality == "language" else f"{modality}.{key}"
                assert flat in observation, f"{modality} key '{flat}' must be in observation"
                values = observation[flat]
                entries[key] = [[str(text)] for text in values] if modality == "language" else values
        return nested

    def _checked(self, observation: dict[str, Any], options: Any) -> dict[str, np.ndarray]:
        for modality in ("video", "state", "language"):
            for key in self.modalities[modality].modality_keys:
                values = observation[modality][key]
                if modality == "language":
                    assert all(len(texts) == 1 for texts in values), f"language key '{key}'"
                    continue
                assert isinstance(values, np.ndarray), f"'{key}' must be a numpy array. Got {type(values)}"
                steps = len(self.modalities[modality].delta_indices)
                assert values.shape[1] == steps, f"'{key}'s horizon must be {steps}. Got {values.shape[1]}"
        return self.act(observation, options)


def released_server(release: Release, server: ReleasedServer) -> AbstractContextManager[int]:
    """Serve on a free port of this machine, in a thread, one request after the other; give the port."""

    def reply(message: bytes) -> bytes:
        request = release.unpack(message)
        try:
            return release.pack(server.answer(request["endpoint"], request.get("data", {})))
        except (AssertionError, KeyError) as error:
            return release.pack({"error": str(error)})

    return replying(reply)


class ReleasedClient:
    """Asks as a release's client does. Use it in a ``with`` block."""

    def __init__(self, release: Release, port: int) -> None:
        self._release = release
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def call(self, endpoint: str, data: Mapping[str, Any] | None = None) -> Any:
        request = {"endpoint": endpoint} | ({} if data is None else {"data": data})
        self._socket.send(self._release.pack(request))
        return self._release.unpack(self._socket.recv())

    def get_action(self, observation: Mapping[str, Any]) -> Any:
        return self.call("get_action", {"observation": observation, "options": None})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._socket.close()
        self._context.term()
