"""A policy served by each protocol, asked by this package's own clients and by clients that know no manners."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from gr00t.policy.server_client import PolicyClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import OBSERVATION
from isaaclab_arena.remote.vla_eval import Message, VlaEvalCodec
from isaaclab_arena.serve import ListenOptions, ServeOptions, main, served_job
from isaaclab_arena_gr00t.serving.gr00t import INSTRUCTION, Gr00tServer
from tests.end_to_end.launching import free_port, patience_s, wait_until
from tests.gr00t.fakes import write_yaml
from tests.gr00t.policy.model_servers import POLICIES, array, options_for, packed, unpacked
from tests.gr00t.serving.serving_limbs import (
    LIMITS,
    LookPolicy,
    StridePolicy,
    WalkPolicy,
    actions,
    served,
    serving,
)

IMAGES = {"observation/image": "front", "observation/wrist_image": "side"}
STATES = {"observation/state": ("robot_joint_pos", "fingers"), "nameless": ("nameless",)}
OF_OPENPI: dict[str, Any] = {"images": IMAGES, "states": STATES}


def asking(protocol: str, port: int, directory: Path, length: int) -> Any:
    """Return this package's own client for chunks of a length."""
    shown: dict[str, Any] = {}
    if protocol == "gr00t":
        document = {
            "action_horizon": length,
            "action_chunk_length": length,
            "pov_cam_name_sim": {"front": "front", "side": "side"},
            "target_image_size": [6, 8, 3],
        }
        shown = {"policy_config_yaml_path": write_yaml(directory / "own.yaml", document)}
    if protocol == "openpi":
        shown = {**OF_OPENPI, "image_size": [6, 8], "action_chunk_length": length}
    return POLICIES[protocol].from_dict(options_for(protocol, port, directory, **shown, timeout_s=20.0))


@pytest.mark.parametrize(
    ("protocol", "policy_class", "length"),
    [
        ("gr00t", LookPolicy, 1),
        ("gr00t", StridePolicy, 3),
        ("openpi", LookPolicy, 1),
        ("openpi", StridePolicy, 3),
        ("vla_eval", WalkPolicy, 1),
    ],
)
def test_the_own_client_plays_the_same_bits_as_the_policy_in_its_own_process(tmp_path, protocol, policy_class, length):
    num_envs = 5 if protocol == "gr00t" else 3
    expected = actions(policy_class(), num_envs)
    with serving(protocol, policy_class, **(OF_OPENPI if protocol == "openpi" else {})) as port:
        client = asking(protocol, port, tmp_path, length)
        assert '"environment": "limbs"' in client.stated_model()
        assert actions(client, num_envs) == expected


def health_of(port: int) -> tuple[int, dict]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    client.request("GET", "/health")
    answer = client.getresponse()
    return answer.status, json.loads(answer.read())


@contextmanager
def connected(port: int) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        yield connection


# Clients of GR00T ask for a batch of chunks.


def observation(num_entries: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a request's observation; changes are of its state."""
    state = {
        "robot_joint_pos": np.zeros((num_entries, 1, 4), np.float32),
        "fingers": np.zeros((num_entries, 1, 2), np.float32),
        "nameless": np.zeros((num_entries, 1, 3), np.float32),
        **changes,
    }
    return {
        "video": {name: np.zeros((num_entries, 1, 6, 8, 3), np.uint8) for name in ("front", "side")},
        "state": {key: values for key, values in state.items() if values is not None},
        "language": {INSTRUCTION: [["move"]] * num_entries},
    }


@pytest.fixture(scope="module")
def client() -> Iterator[PolicyClient]:
    with serving("gr00t") as port:
        yield PolicyClient(host="127.0.0.1", port=port)


def test_an_entry_follows_from_its_own_seed_and_its_last_step_alone(client):
    def asked(seeds: list[int], **state: Any) -> list:
        return client.get_action(observation(len(seeds), **state), {"noise_seeds": seeds})[0]["action"].tolist()

    assert asked([4, 5, 6, 7, 8])[3] == asked([7])[0]
    assert asked([7])[0] != asked([8])[0]
    past, present = (np.full((1, 1, 4), value, np.float32) for value in (9.0, 1.0))
    both = np.concatenate([past, present], axis=1)
    assert asked([4], robot_joint_pos=both) == asked([4], robot_joint_pos=present) != asked([4], robot_joint_pos=past)


WRONG_WORDS = {**observation(), "language": {INSTRUCTION: ["move"]}}


@pytest.mark.parametrize(
    ("shown", "options", "words"),
    [
        (observation(fingers=None), None, "no state 'fingers'"),
        (observation(fingers=np.zeros((2, 1, 2))), None, r"\[1, 2\] entries"),
        (observation(fingers=np.zeros((1, 2))), None, r"'state.fingers' must have"),
        (observation(nameless=np.full((1, 1, 3), np.nan)), None, "'policy.nameless' holds NaN"),
        (observation(), {"noise_seeds": [1, 2]}, "1 instructions and 2 seeds"),
        ({**observation(), "language": {}}, None, "'annotation.human.task_description' is missing"),
        ({**observation(), "language": {INSTRUCTION: [[""]]}}, None, "must be a text"),
        (WRONG_WORDS, None, "one text for each entry"),
        ([1], None, "."),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_next_request_is_answered(client, shown, options, words):
    with pytest.raises(RuntimeError, match=words):
        client.get_action(shown, options)
    assert client.get_action(observation())[0]["action"].shape == (1, 1, 5)


def test_its_health_is_told_over_http_and_no_more_clients_are_taken_than_it_may_have():
    with served(2, policy_class=LookPolicy) as (job, host):
        host.close()
        server = Gr00tServer(job, ListenOptions(port=0), max_batch=8, max_wait_ms=2.0, max_sessions=1, health_port=0)
        assert server.health is not None
        server.start()
        client = PolicyClient(host="127.0.0.1", port=server.port)
        client.get_action(observation(3))
        status, said = health_of(server.health.server_address[1])
        assert (status, said["status"], said["environment"]) == (200, "ok", "limbs")
        assert (said["sessions"], said["queries"], said["calls"]) == (1, 1, 1)
        assert not PolicyClient(host="127.0.0.1", port=server.port, timeout_ms=500).ping()
        assert client.ping()
        server.close()
    with pytest.raises(ConnectionError):
        health_of(server.health.server_address[1])


def test_gr00ts_own_client_reads_what_it_may_show_and_gets_its_actions():
    with serving("gr00t", StridePolicy) as port:
        client = PolicyClient(host="127.0.0.1", port=port)
        modalities = client.get_modality_config()
        assert modalities["video"].modality_keys == ["front", "side"]
        assert modalities["state"].modality_keys == ["robot_joint_pos", "fingers", "nameless"]
        assert modalities["action"].delta_indices == [0, 1, 2]
        nested = observation(3)
        assert client.get_action(nested)[0]["action"].shape == (3, 3, 5)
        flat = {f"{name}.{key}": values for name in ("video", "state") for key, values in nested[name].items()}
        flat |= {key: [text for (text,) in texts] for key, texts in nested["language"].items()}
        assert client.get_action(flat)[0]["action.action"].shape == (3, 3, 5)


# Clients of openpi show one observation and get a chunk.


@contextmanager
def introduced(port: int) -> Iterator[tuple[ClientConnection, Mapping[str, Any]]]:
    """Yield a connection, and how the server describes itself."""
    with connected(port) as connection:
        yield connection, OpenpiCodec.unpack(connection.recv(20.0, decode=False))


@pytest.fixture(scope="module")
def openpi_port() -> Iterator[int]:
    with serving("openpi", **OF_OPENPI) as number:
        yield number


def shown_to_pi(**changes: Any) -> dict[str, Any]:
    shown = {
        "observation/image": np.zeros((6, 8, 3), np.uint8),
        "observation/wrist_image": np.zeros((6, 8, 3), np.uint8),
        "observation/state": np.zeros(6),
        "nameless": np.zeros(3, np.float32),
        "prompt": "move",
        **changes,
    }
    return {key: value for key, value in shown.items() if value is not None}


def answer_of_pi(connection: ClientConnection, message: Any) -> Any:
    connection.send(message if isinstance(message, (bytes, str)) else OpenpiCodec.pack(message))
    answer = connection.recv(60.0)
    return answer if isinstance(answer, str) else OpenpiCodec.unpack(answer)


def test_it_says_what_it_wants_and_how_long_its_chunks_are(openpi_port):
    with introduced(openpi_port) as (_, said):
        assert said["program"].startswith("isaaclab-arena")
        assert (said["action_dim"], said["action_horizon"], said["prompt_key"]) == (5, 1, "prompt")
        assert said["images"] == list(IMAGES)
        assert said["states"] == {"observation/state": 6, "nameless": 3}
    with serving("openpi", StridePolicy, **OF_OPENPI) as other, introduced(other) as (_, said):
        assert said["action_horizon"] == 3


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (shown_to_pi(nameless=None), "observation refused: the observation has no state 'nameless'"),
        (shown_to_pi(**{"observation/state": np.zeros(5)}), "has 5 numbers, 6 are due"),
        (shown_to_pi(prompt=None), "'prompt' is missing"),
        (shown_to_pi(prompt=" "), "the str ' '"),
        (shown_to_pi(prompt=3), "the int '3'"),
        (["observation"], "a list of length 1"),
        (b"nonsense", "unreadable message"),
        ("text", "unreadable message"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_next_observation_is_answered(openpi_port, message, words):
    with introduced(openpi_port) as (connection, _):
        refused = answer_of_pi(connection, message)
        assert isinstance(refused, str)
        assert words in refused
        assert "actions" in answer_of_pi(connection, shown_to_pi())


def test_a_policy_that_reads_no_instruction_needs_none():
    class DeafPolicy(LookPolicy):
        def start_episodes(self, env, starts):
            self.words.update({start.env_id: "" for start in starts})

    with serving("openpi", DeafPolicy, **OF_OPENPI) as other, introduced(other) as (connection, _):
        assert "actions" in answer_of_pi(connection, shown_to_pi(prompt=None))


# Clients of vla-eval have a session with episodes.


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


def asked(connection: ClientConnection, message: bytes | str) -> dict[str, Any]:
    connection.send(message)
    return unpacked(connection.recv(60.0, decode=False))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving("vla_eval", num_slots=8) as number:
        yield number


def test_an_episode_follows_from_its_number_whichever_session_plays_it(port):
    found = []
    for neighbour in (3, 4):
        with connected(port) as connection, connected(port) as other:
            other.send(start(1, episode_idx=neighbour))
            connection.send(start(1, episode_idx=9))
            found.append([asked(each, shown(2))["payload"]["actions"].tolist() for each in (connection, other)])
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


PNG = {"__image__": True, "format": "png", "data": b"\x89PNG no picture", "shape": [6, 8, 3]}
LARGE = unpacked(
    VlaEvalCodec.pack(Message(kind=OBSERVATION, payload={"front": np.zeros((600, 800, 3), np.uint8)}, number=1), "png")
)["payload"]["front"]


def both(picture: dict[str, Any]) -> dict[str, Any]:
    return {"front": picture, "side": picture}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (shown(3, fingers=None, finger=array([1, 2])), "observation refused: the observation has no state 'fingers'"),
        (shown(3, fingers="left"), "the str 'left'"),
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
        assert "unreadable message" in asked(connection, data)["payload"]["error"]
        assert asked(connection, hello())["type"] == "hello"


def test_a_message_beyond_the_limit_ends_the_session_with_a_reason(port):
    with connected(port) as connection:
        connection.send(b"x" * (LIMITS.max_message_bytes + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            connection.recv(60.0)


def test_a_policy_that_fails_says_so_and_plays_the_next_episode():
    class TumblePolicy(WalkPolicy):
        def act_in_some(self, env, observation, env_ids):
            if any(self.gone[env_id].any() for env_id in env_ids):
                raise ValueError("tumbled")
            return super().act_in_some(env, observation, env_ids)

    with serving("vla_eval", TumblePolicy) as port, connected(port) as connection:
        for _ in range(2):
            connection.send(start(1))
            assert asked(connection, shown(2))["type"] == "action"
            assert asked(connection, shown(3))["payload"]["error"].endswith("ValueError: tumbled")
            assert "no episode" in asked(connection, shown(4))["payload"]["error"]
            connection.send(packed("episode_end", {}, 5))


def test_a_client_that_finds_no_env_slot_is_told_so_and_may_come_again():
    with serving("vla_eval", num_slots=1) as port:
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
        raise AssertionError("it stays taken")


def test_only_who_has_the_token_may_ask_and_everybody_may_ask_for_the_health():
    with serving("vla_eval", token="secret") as port:
        for headers in ({}, {"Authorization": "Api-Key wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{port}", additional_headers=headers)
            assert refused.value.response.status_code == 401
        with connect(f"ws://127.0.0.1:{port}", additional_headers={"Authorization": "Api-Key secret"}) as connection:
            assert asked(connection, hello())["type"] == "hello"
        status, told = health_of(port)
    assert (status, told["status"], told["job"]) == (200, "ok", "limbs")
    assert "secret" not in str(told)


class HeldPolicy(WalkPolicy):
    """Acts when it may."""

    may_act = threading.Event()

    def act_in_some(self, env, observation, env_ids):
        assert self.may_act.wait(60.0)
        return super().act_in_some(env, observation, env_ids)


def test_what_a_client_sends_ahead_stays_with_the_client():
    HeldPolicy.may_act.set()
    with serving("vla_eval", HeldPolicy) as port, connected(port) as connection:
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


# The program that serves a policy.


# The command, from what is typed to the exit code.


def is_healthy(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        client.request("GET", "/health")
    except OSError:
        return False
    return client.getresponse().status == 200


def is_up(port: int) -> bool:
    try:
        return PolicyClient("127.0.0.1", port, timeout_ms=1000).ping()
    except RuntimeError:
        return False


@pytest.mark.parametrize(
    ("protocol", "is_there", "end", "code"),
    [
        ("openpi", is_healthy, lambda port: os.kill(os.getpid(), signal.SIGINT), 130),
        ("openpi", is_healthy, lambda port: os.kill(os.getpid(), signal.SIGTERM), 143),
        ("gr00t", is_up, lambda port: PolicyClient("127.0.0.1", port).kill_server(), 0),
    ],
    ids=["interrupt", "termination", "kill in GR00T's protocol"],
)
def test_a_signal_or_a_kill_ends_the_server_with_its_exit_code(protocol, is_there, end, code):
    port = free_port()

    def end_it() -> None:
        wait_until(lambda: is_there(port), timeout_s=patience_s(60.0))
        end(port)

    thread = threading.Thread(target=end_it)
    thread.start()
    assert main(["zero_action", "reach", "--protocol", protocol, "--port", str(port)]) == code
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["zero_action", "reach", "--images", "a=front"], "--images: the environment has no camera 'front'"),
        (["zero_action", "reach", "--states", "a=eef_pos", "b=eef_pos"], "'eef_pos' twice"),
        (["scripted", "reach"], "'scripted' cannot be served"),
        (["zero_action", "reach", "--max_sessions", "0"], "max_sessions"),
        (["zero_action", "reach", "--max_wait_ms", "-1"], "max_wait_ms"),
        (["zero_action", "reach", "--port", "70000"], "port"),
        (["zero_action", "reach", "--api_token", "a", "--api_token_file", "b"], "not both"),
        (["zero_action", "reach", "--api_token_file", "none"], "cannot read"),
        (["zero_action", "reach", "--health_port", "0"], "--health_port: is for gr00t"),
        (["zero_action", "reach", "--images", "=front"], "'=front'"),
        (["zero_action"], "one environment is needed"),
        (["no.json:still"], "no.json"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(arguments, says, capsys):
    assert main([*arguments, "--protocol", "vla_eval"]) == 2
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["zero_action", "reach", "--protocol", "vla_eval", "--port", str(port)]) == 1
    assert f"127.0.0.1, port {port}" in capsys.readouterr().err


# What may be served is found, and what is wrong is refused before anything is built.


JOB = {"policy_type": "zero_action", "arena_env_args": {"environment": "reach"}, "seed": 5}


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [{**JOB, "name": "still"}, {**JOB, "name": "reach"}]}))
    return str(path)


def options(**given: Any) -> ServeOptions:
    return ServeOptions(protocol="vla_eval", **given)


def test_a_message_may_be_as_large_as_for_the_protocols_own_server():
    assert options().listen().max_message_bytes == 64 * 2**20
    assert ServeOptions(protocol="gr00t").listen().max_message_bytes == 256 * 2**20
    assert ServeOptions(protocol="gr00t", max_message_mb=1).listen().max_message_bytes == 2**20


def test_a_job_is_named_by_its_file_or_by_policy_and_environment(file):
    assert served_job(options(), [f"{file}:still"]).config.name == "still"
    assert served_job(options(job="reach"), [file]).config.seed == 5
    job = served_job(options(), ["random_action", "lift_object", "--object", "can"])
    assert (job.config.policy_type, job.config.environment) == ("random_action", "lift_object")
    assert job.environment_config.object == "can"


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (["--port"], "JOBS_FILE:JOB"),
        (["FILE"], "still, reach"),
        (["FILE:stil"], "'stil'; did you mean 'still'"),
        (["FILE:still", "reach"], "says all of its jobs"),
    ],
)
def test_a_job_that_is_not_there_is_refused(file, rest, says):
    with pytest.raises(ConfigError, match=says):
        served_job(options(), [word.replace("FILE", file) for word in rest])


def test_names_are_read_as_pairs_and_a_token_from_its_file(tmp_path):
    given = options(images=("a/b=front",), states=("s=x,y", "t.u=z"))
    assert given.client_keys() == ({"a/b": "front"}, {"s": ["x", "y"], "t.u": ["z"]})
    assert options().client_keys() == (None, None)
    (tmp_path / "token").write_text("secret\n")
    assert options(api_token_file=str(tmp_path / "token")).listen().api_token == "secret"
    ServeOptions(protocol="gr00t", health_port=0).check()


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("machine", False), ("*", False)],
)
def test_only_this_machine_can_reach_a_loopback_address(host, local):
    assert options(host=host).is_local() is local
