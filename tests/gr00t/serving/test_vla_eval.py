"""A policy served to clients of vla-eval, asked by this package's own client and by clients that know no manners."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from arena_wire.messages import WireError, WireLimits
from isaaclab_arena.remote.protocols import OBSERVATION
from isaaclab_arena.remote.vla_eval import Message, VlaEvalCodec, VlaEvalRemotePolicy
from isaaclab_arena.serve import ListenOptions, VlaEvalTalks, WebsocketServer
from tests.gr00t.policy.model_servers import array, packed, unpacked
from tests.gr00t.serving.serving_limbs import SEED, WalkPolicy, actions, running, served

LIMITS = WireLimits(max_message_bytes=100_000)


@contextmanager
def serving(num_slots: int = 4, api_token: str | None = None, **options: Any) -> Iterator[int]:
    """Yield the port of a server of `WalkPolicy`."""
    with served(num_slots, **options) as (job, host):
        listen = ListenOptions(port=0, api_token=api_token, max_message_bytes=LIMITS.max_message_bytes)
        server = WebsocketServer(host, VlaEvalTalks(job, LIMITS), listen, job.stated)
        with running(server) as port:
            yield port


def test_the_own_client_plays_the_same_bits_as_the_policy_in_its_own_process():
    expected = actions(WalkPolicy(), 3)
    with serving() as port:
        asked = VlaEvalRemotePolicy.from_dict({"address": f"ws://127.0.0.1:{port}", "timeout_s": 20.0})
        assert '"environment": "limbs"' in (asked.stated_model() or "")
        assert actions(asked, 3) == expected


def hello(number: int = 1, version: int = 1) -> bytes:
    return packed("hello", {"harness_version": "0.8.0", "protocol_version": version}, number)


def start(number: int, **task: Any) -> bytes:
    return packed("episode_start", {"task": {"name": "walk", **task}}, number)


def shown(number: int, **changes: Any) -> bytes:
    picture = array(np.zeros((6, 8, 3)), "|u1")
    payload = {
        "images": {"front": picture, "side": picture},
        "robot_joint_pos": array(np.zeros(4)),
        "fingers": array(np.zeros(2)),
        "nameless": [0.0, 0, 1],
        "task_description": "move",
        **changes,
    }
    return packed("observation", {name: value for name, value in payload.items() if value is not None}, number)


def asked(connection: ClientConnection, message: bytes) -> dict[str, Any]:
    connection.send(message)
    return unpacked(connection.recv(60.0, decode=False))


@contextmanager
def connected(port: int) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        yield connection


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(8) as number:
        yield number


def test_it_says_who_it_is_and_what_it_wants(port):
    with connected(port) as connection:
        answer = asked(connection, hello(5))
    said = answer["payload"]
    assert (answer["type"], answer["seq"], said["protocol_version"]) == ("hello", 5, 1)
    assert said["program"].startswith("isaaclab-arena")
    assert (said["job"], said["environment"], said["seed"]) == ("limbs", "limbs", SEED)
    assert said["action_spec"]["action"]["dims"] == 5
    assert said["observation_spec"]["front"]["format"] == "rgb_hwc_uint8"
    assert said["observation_spec"]["fingers"]["dims"] == 2


def test_an_episode_follows_from_its_number_whichever_session_plays_it(port):
    found = []
    for neighbour in (3, 4):
        with connected(port) as connection, connected(port) as other:
            other.send(start(1, episode_idx=neighbour))
            connection.send(start(1, episode_idx=9))
            found.append([asked(connection, shown(2))["payload"]["actions"].tolist(), asked(other, shown(2))])
    assert found[0][0] == found[1][0]
    assert found[0][1]["payload"]["actions"].tolist() != found[1][1]["payload"]["actions"].tolist()


PNG = {"__image__": True, "format": "png", "data": b"\x89PNG no picture", "shape": [6, 8, 3]}
LARGE = unpacked(
    VlaEvalCodec.pack(Message(kind=OBSERVATION, payload={"front": np.zeros((600, 800, 3), np.uint8)}, number=1), "png")
)["payload"]["front"]


def test_a_number_of_numpy_travels_as_a_number_and_a_complex_one_not_at_all():
    def sent(**payload: Any) -> dict[str, Any]:
        return unpacked(VlaEvalCodec.pack(Message(kind=OBSERVATION, payload=payload, number=1)))["payload"]

    assert repr(sent(share=np.float32(0.5), count=np.int64(3), done=np.bool_(1))) == repr(
        {"share": 0.5, "count": 3, "done": True}
    )
    with pytest.raises(WireError, match="complex64 may not travel"):
        sent(wave=np.complex64(1))


def both(picture: dict[str, Any]) -> dict[str, Any]:
    return {"front": picture, "side": picture}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (shown(3, fingers=None, finger=array([1, 2])), "observation refused: the observation has no state 'fingers'"),
        (shown(3, fingers=array(np.zeros(3))), "has 3 numbers, 2 are due"),
        (shown(3, fingers="left"), "the str 'left'"),
        (shown(3, fingers=array([0, np.nan])), "NaN or infinity"),
        (shown(3, images=[1]), "a list of length 1"),
        (shown(3, images={"front": array(np.zeros((6, 8, 3)), "|u1")}), "no picture 'side'"),
        (shown(3, images=None), "lacks 'camera_obs'"),
        (shown(3, images=both(array(np.zeros((3, 6, 8)), "|u1"))), "shape (3, 6, 8), expected (6, 8, 3)"),
        (shown(3, images=both(PNG)), "'front': a picture is no png"),
        (shown(3, images=both(LARGE)), "shape (600, 800, 3), (6, 8, 3) is due"),
        (shown(3, images=both({**LARGE, "shape": [6, 8, 3]})), "(800, 600) pixels"),
        (packed("greeting", {}, 3), "the str 'greeting'"),
        (hello(3, version=2), "hello refused: version the int '2'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_episode_goes_on(port, message, words):
    with connected(port) as connection, connected(port) as undisturbed:
        for each in (connection, undisturbed):
            each.send(start(1, episode_idx=2))
            assert asked(each, shown(2))["type"] == "action"
        refused = asked(connection, message)
        assert (refused["type"], refused["seq"]) == ("error", 3)
        assert words in refused["payload"]["error"]
        after = [asked(each, shown(4))["payload"]["actions"].tolist() for each in (connection, undisturbed)]
        assert after[0] == after[1]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        bytes(msgpack.packb({"observation": 1}) or b""),
        packed("observation", {"images": {"front": {**PNG, "shape": [10**6, 10**6, 3]}}}, 1),
        "text",
    ],
)
def test_what_is_no_message_is_answered_with_a_reason_and_the_next_one_as_ever(port, data):
    with connected(port) as connection:
        connection.send(data)
        assert "unreadable message" in unpacked(connection.recv(60.0, decode=False))["payload"]["error"]
        assert asked(connection, hello())["type"] == "hello"


def test_a_message_beyond_the_limit_ends_the_session_with_a_reason(port):
    with connected(port) as connection:
        connection.send(b"x" * (LIMITS.max_message_bytes + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            connection.recv(60.0)


@pytest.mark.parametrize("words", [None, "", 3])
def test_an_episode_without_words_is_refused_and_begins_with_the_observation_that_has_some(port, words):
    with connected(port) as connection:
        connection.send(start(1))
        assert "'task_description' " in asked(connection, shown(2, task_description=words))["payload"]["error"]
        assert asked(connection, shown(3))["type"] == "action"


class TumblePolicy(WalkPolicy):
    """Cannot walk any further than one step."""

    def act_in_some(self, env, observation, env_ids):
        if any(self.gone[env_id].any() for env_id in env_ids):
            raise ValueError("tumbled")
        return super().act_in_some(env, observation, env_ids)


def test_a_policy_that_fails_says_so_and_plays_the_next_episode():
    with serving(policy_class=TumblePolicy) as port, connected(port) as connection:
        for _ in range(2):
            connection.send(start(1))
            assert asked(connection, shown(2))["type"] == "action"
            assert asked(connection, shown(3))["payload"]["error"] == "policy failed: ValueError: tumbled"
            assert "no episode is running" in asked(connection, shown(4))["payload"]["error"]
            connection.send(packed("episode_end", {}, 5))


def test_a_client_that_finds_no_env_slot_is_told_so_and_may_come_again():
    with serving(1) as port:
        with connected(port) as connection:
            assert asked(connection, hello())["type"] == "hello"
            with pytest.raises(InvalidStatus) as refused, connected(port):
                pass
            assert refused.value.response.status_code == 503
            assert b"all 1 env slots of the served policy are taken" in (refused.value.response.body or b"")
        for _ in range(3_000):
            try:
                with connected(port) as connection:
                    assert asked(connection, hello())["type"] == "hello"
                    return
            except InvalidStatus:
                time.sleep(0.02)
        raise AssertionError("the env slot was not given back")


def test_only_who_has_the_token_may_ask_and_everybody_may_ask_for_the_health():
    with serving(api_token="secret") as port:
        for headers in ({}, {"Authorization": "Api-Key wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{port}", additional_headers=headers)
            assert refused.value.response.status_code == 401
        with connect(f"ws://127.0.0.1:{port}", additional_headers={"Authorization": "Api-Key secret"}) as connection:
            assert asked(connection, hello())["type"] == "hello"
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        client.request("GET", "/health")
        answer = client.getresponse()
        told = json.loads(answer.read())
    assert (answer.status, told["status"], told["job"]) == (200, "ok", "limbs")
    assert "secret" not in str(told)


class HeldPolicy(WalkPolicy):
    """Acts when it may."""

    may_act = threading.Event()

    def act_in_some(self, env, observation, env_ids):
        assert self.may_act.wait(60.0)
        return super().act_in_some(env, observation, env_ids)


def test_what_a_client_sends_ahead_stays_with_the_client():
    HeldPolicy.may_act.set()
    with serving(policy_class=HeldPolicy) as port, connected(port) as connection:
        HeldPolicy.may_act.clear()
        connection.send(start(1))
        sent: list[int] = []

        def flood() -> None:
            for number in range(2, 152):
                connection.send(shown(number, ahead=b"x" * 90_000))
                sent.append(number)

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        thread.join(0.3)
        is_held_up = thread.is_alive()
        HeldPolicy.may_act.set()
        answers = [unpacked(connection.recv(60.0, decode=False))["seq"] for _ in range(150)]
        thread.join(60.0)
    assert is_held_up
    assert answers == sent == list(range(2, 152))


def test_a_client_that_floods_waits_and_others_go_on(port):
    with connected(port) as flooding, connected(port) as other:
        flooding.send(start(1, episode_idx=1))
        sent = []

        def flood() -> None:
            for number in range(2, 100):
                flooding.send(shown(number))
                sent.append(number)

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        other.send(start(1, episode_idx=2))
        for number in range(2, 12):
            assert asked(other, shown(number))["seq"] == number
        answers = [unpacked(flooding.recv(60.0, decode=False))["seq"] for _ in range(98)]
        thread.join(60.0)
    assert answers == list(range(2, 100))
