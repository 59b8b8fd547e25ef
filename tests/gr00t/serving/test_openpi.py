"""A policy served to clients of openpi, asked by this package's own client and by clients that know no manners."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import yaml
from websockets.sync.client import ClientConnection, connect

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy
from isaaclab_arena.serve import ListenOptions, OpenpiTalks, WebsocketServer
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs
from tests.gr00t.fakes import GROUPS, LimbPolicy, write_policy_yaml
from tests.gr00t.serving.serving_limbs import LookPolicy, StridePolicy, WalkPolicy, actions, running, served

IMAGES = {"observation/image": "front", "observation/wrist_image": "side"}
STATES = {"observation/state": ("robot_joint_pos", "fingers"), "nameless": ("nameless",)}
LIMITS = WireLimits(max_message_bytes=100_000)


@contextmanager
def serving(policy_class: type[PolicyBase] = LookPolicy, **names: Any) -> Iterator[int]:
    with served(policy_class=policy_class, **{"images": IMAGES, "states": STATES, **names}) as (job, host):
        server = WebsocketServer(host, OpenpiTalks(job, LIMITS, prompt_key="prompt"), ListenOptions(port=0), job.stated)
        with running(server) as port:
            yield port


def asking(port: int, action_chunk_length: int, *, num_terms: int = 2) -> OpenpiRemotePolicy:
    """Return the own client, which shows so many terms as the first state."""
    options = {
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "images": IMAGES,
        "states": {key: names[:num_terms] for key, names in STATES.items()},
        "image_size": [6, 8],
        "action_chunk_length": action_chunk_length,
        "timeout_s": 20.0,
    }
    return OpenpiRemotePolicy.from_dict(options)


@pytest.mark.parametrize(("policy_class", "length"), [(LookPolicy, 1), (StridePolicy, 3)])
def test_the_own_client_plays_the_same_bits_as_the_policy_in_its_own_process(policy_class, length):
    expected = actions(policy_class(), 3)
    with serving(policy_class) as port:
        assert actions(asking(port, length), 3) == expected


@contextmanager
def connected(port: int) -> Iterator[tuple[ClientConnection, Mapping[str, Any]]]:
    """Yield a connection, and how the server describes itself."""
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        yield connection, OpenpiCodec.unpack(connection.recv(20.0, decode=False))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(WalkPolicy) as number:
        yield number


def shown(**changes: Any) -> dict[str, Any]:
    observation = {
        "observation/image": np.zeros((6, 8, 3), np.uint8),
        "observation/wrist_image": np.zeros((6, 8, 3), np.uint8),
        "observation/state": np.zeros(6),
        "nameless": np.zeros(3, np.float32),
        "prompt": "move",
        **changes,
    }
    return {key: value for key, value in observation.items() if value is not None}


def test_it_says_what_it_wants_and_how_long_its_chunks_are(port):
    with connected(port) as (_, said):
        assert said["program"].startswith("isaaclab-arena")
        assert (said["action_dim"], said["action_horizon"], said["prompt_key"]) == (5, 1, "prompt")
        assert said["images"] == list(IMAGES)
        assert said["states"] == {"observation/state": 6, "nameless": 3}
    with serving(StridePolicy) as other, connected(other) as (_, said):
        assert said["action_horizon"] == 3


def test_a_model_that_predicts_chunks_answers_with_the_whole_chunk_that_it_plays(tmp_path):
    path = write_policy_yaml(tmp_path, GROUPS)

    class Chunked(LimbPolicy):
        config_class = None

        @classmethod
        def from_dict(cls, config_dict):
            return cls(ClosedloopPolicyArgs(policy_config_yaml_path=path))

    with serving(Chunked) as other, connected(other) as (connection, said):
        connection.send(OpenpiCodec.pack(shown()))
        chunk = OpenpiCodec.unpack(connection.recv(60.0, decode=False))["actions"]
    length = yaml.safe_load(Path(path).read_text())["action_chunk_length"]
    assert length > 1
    assert said["action_horizon"] == length
    assert chunk.shape == (length, 5)


def test_nothing_is_left_of_what_was_shown_before(port):
    with connected(port) as (connection, _):
        found = []
        for _ in range(2):
            connection.send(OpenpiCodec.pack(shown()))
            found.append(OpenpiCodec.unpack(connection.recv(20.0, decode=False)))
    assert found[0]["actions"].shape == (1, 5)
    assert found[0]["server_timing"]["infer_ms"] > 0
    # Each has noise of its own, and no step of the other before it.
    assert np.abs(np.arcsin(found[1]["actions"])).max() < 5
    assert (found[0]["actions"] != found[1]["actions"]).all()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (shown(nameless=None), "no state 'nameless'"),
        (shown(**{"observation/state": np.zeros(5)}), "has 5 numbers, 6 are due"),
        (shown(**{"observation/image": None}), "no picture 'observation/image'"),
        (shown(nameless=np.array([0, np.inf, 0])), "NaN or infinity"),
        (shown(prompt=None), "'prompt' is missing"),
        (shown(prompt=" "), "the str ' '"),
        (shown(prompt=3), "the int '3'"),
        (["observation"], "a list of length 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_next_observation_is_answered(port, request_, words):
    with connected(port) as (connection, _):
        connection.send(OpenpiCodec.pack(request_))
        answer = connection.recv(20.0)
        assert isinstance(answer, str)
        assert answer.startswith("observation refused: ")
        assert words in answer
        connection.send(OpenpiCodec.pack(shown()))
        assert "actions" in OpenpiCodec.unpack(connection.recv(20.0, decode=False))


def test_a_policy_that_reads_no_instruction_needs_none():
    class DeafPolicy(LookPolicy):
        def start_episodes(self, env, starts):
            self.words.update({start.env_id: "" for start in starts})

    with serving(DeafPolicy) as other, connected(other) as (connection, _):
        connection.send(OpenpiCodec.pack(shown(prompt=None)))
        assert "actions" in OpenpiCodec.unpack(connection.recv(60.0, decode=False))


def test_the_own_client_says_what_the_server_refused(port):
    policy = asking(port, 1, num_terms=1)
    with pytest.raises(PolicyError, match="'observation/state' has 4 numbers, 6 are due"):
        actions(policy, 1)


@pytest.mark.parametrize("data", [b"nonsense", "text"])
def test_what_is_no_message_is_answered_with_a_reason_and_the_next_one_as_ever(port, data):
    with connected(port) as (connection, _):
        connection.send(data)
        assert "unreadable message" in str(connection.recv(60.0))
        connection.send(OpenpiCodec.pack(shown()))
        assert "actions" in OpenpiCodec.unpack(connection.recv(60.0, decode=False))


def text_array(text: str, shape: list[int]) -> dict[bytes, Any]:
    """Bytes that openpi's client makes of an array of text."""
    data, dtype = np.array(text).tobytes(), np.array(text).dtype.str
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


ARROW = "move \N{RIGHTWARDS ARROW}"


@pytest.mark.parametrize(
    ("prompt", "is_text"),
    [
        (text_array(ARROW, []), True),
        (text_array(ARROW, [1]), True),
        ({b"__npgeneric__": True, b"data": ARROW, b"dtype": "<U6"}, True),
        (text_array("move", [2]), False),
        (text_array("move", []) | {b"data": b"x"}, False),
        (text_array("move", []) | {b"data": b"\xff" * 16}, False),
        (text_array("move", []) | {b"dtype": "<U100000"}, False),
    ],
)
def test_words_that_went_through_numpy_are_words(prompt, is_text):
    data = msgpack.packb({"prompt": prompt}) or b""
    if is_text:
        assert OpenpiCodec.unpack(data) == {"prompt": ARROW}
    else:
        with pytest.raises(WireError, match="array of text"):
            OpenpiCodec.unpack(data)
