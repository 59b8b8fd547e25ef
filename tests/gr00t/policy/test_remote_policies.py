"""Policies whose model is behind a server of GR00T, openpi or vla-eval."""

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from websockets.sync.server import ServerConnection

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.remote.connection import ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy, OpenpiRemotePolicyCfg
from isaaclab_arena.remote.vla_eval import VlaEvalRemotePolicy, VlaEvalRemotePolicyCfg
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, episodes
from tests.gr00t.fakes import LimbEnvironment, LimbPolicy
from tests.gr00t.policy.model_servers import (
    POLICIES,
    Model,
    Pi,
    asking,
    conversation,
    gr00t_at,
    openpi_at,
    options_for,
    packed,
    serving_by,
    talking,
    vla_eval_at,
)
from tests.gr00t.servers import NetworkPolicy, serving
from tests.policy.playing import refused


class TestConformance(PolicyConformance):
    policy_class = LimbPolicy
    answers_alike = True

    @pytest.fixture(autouse=True, params=POLICIES)
    def serve(self, request, tmp_path, monkeypatch):
        monkeypatch.setattr(type(self), "policy_class", POLICIES[request.param])
        with serving_by(request.param) as port:
            self.options = options_for(request.param, port, tmp_path)
            yield

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


@pytest.mark.parametrize(
    ("wire", "options", "key"),
    [
        ("gr00t", {"scheduler": "synced_batch"}, "scheduler"),
        ("openpi", {"action_chunk_length": 0}, "action_chunk_length"),
        ("openpi", {"image_size": (0, 4)}, "image_size"),
        ("openpi", {"action_columns": ()}, "action_columns"),
        ("openpi", {"states": {}, "images": {}}, "images"),
        ("openpi", {"remote_port": 0}, "remote_port"),
        ("vla_eval", {"address": "wss://here:8000"}, "address"),
        ("vla_eval", {"address": "ws://here:99999"}, "address"),
        ("vla_eval", {"image_size": [0, 3]}, "image_size"),
        ("vla_eval", {"action_columns": [-1]}, "action_columns"),
    ],
)
def test_options_that_cannot_work_are_refused_without_a_server(tmp_path, wire, options, key):
    with refused(key):
        POLICIES[wire].from_dict(options_for(wire, 1, tmp_path, **options))


def test_what_a_server_will_be_shown_is_known_and_refused_without_it():
    config = OpenpiRemotePolicyCfg(**options_for("openpi", 1, action_columns=(0, 1, 2, 3, 6)))
    assert str(OpenpiRemotePolicy.check_fit(config, LimbEnvironment(1))) == (
        "observation/image <- front; observation/state <- robot_joint_pos + fingers; "
        "action[0:4, 6] -> action (wrist to knee)"
    )
    assert str(
        VlaEvalRemotePolicy.check_fit(VlaEvalRemotePolicyCfg(states={"a": ["fingers"]}), LimbEnvironment(1))
    ) == ("front <- front; side <- side; a <- fingers; action -> action (wrist to knee)")
    wrong = {"images": {"a": "frnt"}, "states": {"b": ["robot_joint_pos", "gripper"]}, "action_columns": (1, 2)}
    config = OpenpiRemotePolicyCfg(**options_for("openpi", 1, **wrong))
    for environment in (LimbEnvironment(1), LimbEnvironment(1, cameras=())):
        with refused("images.a", "states.b", "action_columns") as problems:
            OpenpiRemotePolicy.check_fit(config, environment)
    assert "enable_cameras" in problems[0].message
    with refused("states.state"):
        VlaEvalRemotePolicy.check_fit(VlaEvalRemotePolicyCfg(states={"state": ["finger"]}), LimbEnvironment(1))


# GR00T's server is asked for many env slots at once.


class Talker(NetworkPolicy):
    """Says something else."""

    def __init__(self, *, modalities: Any = None, action: Any = None) -> None:
        super().__init__()
        self.modalities = super().get_modality_config() if modalities is None else modalities
        self.action = action

    def get_modality_config(self) -> Any:
        return self.modalities

    def get_action(self, observation: Any, options: Any = None) -> Any:
        return self.action


@pytest.mark.parametrize("modalities", [{}, {"video": 3}, [1], "text"])
def test_a_server_that_does_not_say_what_it_takes_is_refused(tmp_path, modalities):
    with serving(Talker(modalities=modalities)) as server, pytest.raises(PolicyError, match="does not describe"):
        gr00t_at(server.port, tmp_path)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("dance", "no arrays of actions"),
        ([], "no arrays of actions"),
        ([{"arm": [1, 2]}, {}], "no arrays of actions"),
        ([{"arm": np.zeros((1, 6, 2), np.float32)}, {}], "no action 'leg'"),
        ([{key: np.zeros((1, 2, 2), np.float32) for key in ("arm", "leg", "hand")}, {}], "has shape"),
    ],
)
def test_actions_of_gr00t_that_do_not_fit_are_named(tmp_path, action, says):
    with serving(Talker(action=action)) as server:
        policy = gr00t_at(server.port, tmp_path)
        with pytest.raises(PolicyError, match=says):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


# openpi's server has a connection for each env slot.


def test_openpis_server_is_shown_what_the_options_name_and_its_chunks_are_played():
    pi, environment = Pi(), LimbEnvironment(2)
    with asking(openpi_at, conversation(pi)) as policy:
        assert policy.is_remote
        assert not policy.traits.reproducible
        policy.check_environment(environment)
        rollout(environment, policy, episodes(2), [])
    first = pi.requests[0]
    assert set(first) == {"observation/image", "observation/state", "prompt"}
    assert (first["observation/image"].shape, first["observation/image"].dtype) == ((12, 12, 3), np.uint8)
    assert (first["observation/state"].shape, first["observation/state"].dtype) == ((6,), np.float32)
    assert {request["prompt"] for request in pi.requests} <= {"move to red", "move to green", "move to blue"}
    # Two env slots, two requests at once in a connection each, four steps of each chunk.
    played = torch.stack(environment.actions)[:4]
    by_slot = sorted([played[:, 0], played[:, 1]], key=lambda actions: actions[0, 0].item())
    assert torch.allclose(by_slot[0][:, 0], torch.tensor([10.0, 11, 12, 13]))
    assert torch.allclose(by_slot[1][:, 4], torch.tensor([20.4, 21.4, 22.4, 23.4]))
    assert pi.keys == [None, None]


def test_columns_of_the_answer_can_be_chosen_and_the_key_is_shown(tmp_path):
    pi, environment, key = Pi(), LimbEnvironment(1), tmp_path / "key"
    pi.columns = 8
    key.write_text("secret\n")
    with asking(openpi_at, conversation(pi), action_columns=(7, 6, 5, 4, 0), remote_api_token_file=str(key)) as policy:
        rollout(environment, policy, episodes(1), [])
    assert torch.allclose(environment.actions[0][0], torch.tensor([10.7, 10.6, 10.5, 10.4, 10.0]))
    assert pi.keys == ["Api-Key secret"]


def test_chunks_of_any_length_are_played_to_their_ends_and_cannot_be_late():
    class OfAnyLength(Pi):
        def infer(self, request: dict[str, Any]) -> Any:
            answer = super().infer(request)
            return {"actions": answer["actions"][: (1, 3, 2, 6)[(len(self.requests) - 1) % 4]]}

    log = ActionLog()
    with asking(openpi_at, conversation(OfAnyLength()), execute="all") as policy:
        with pytest.raises(ConfigError, match="execute: all"):
            LatePolicy(policy, Delays(steps=((2, 1),)), Meanwhile.CHUNK, QueryTimes())
        rollout(LimbEnvironment(1), policy, episodes(1), [log])
    expected = [10.0, 20, 21, 22, 30, 31, 40, 41]
    assert log.actions[0][: len(expected), 0].tolist() == expected[: len(log.actions[0])]


def test_an_episode_has_a_connection_of_its_own_if_the_job_says_so_and_then_does_not_outlive_it():
    pi, environment, notebook = Pi(), LimbEnvironment(1), Notebook()
    with asking(openpi_at, conversation(pi), connection_per_episode=True) as policy:
        rollout(environment, policy, episodes(3), [])
        # One when the policy is built, and one for each episode.
        assert len(pi.keys) == 4
        pi.hang_up_at = len(pi.requests) + 2
        with pytest.raises(ServerUnreachableError, match="remembers"):
            rollout(environment, policy, episodes(3), [notebook])
    assert {record.termination for record in notebook.records[-1:]} == {"policy_lost"}


@pytest.mark.parametrize(
    ("metadata", "options", "keys"),
    [
        ({}, {"server_metadata": {"policy": "pi"}}, ["server_metadata.policy"]),
        ({"pose": [1]}, {"server_metadata": {"pose": [2]}}, ["server_metadata.pose"]),
        ({"pose": (0, 1)}, {"server_metadata": {"pose": (0, 1)}}, []),
        ({"image_resolution": [9, 9]}, {}, ["image_size"]),
        ({"image_resolution": "any"}, {}, []),
        ({"action_horizon": 3}, {}, ["action_chunk_length"]),
        ({"action_dim": 6}, {}, ["action_columns"]),
        ({"action_dim": 6}, {"action_columns": (0, 1, 2, 3, 6)}, ["action_columns"]),
    ],
)
def test_what_openpis_server_says_of_itself_is_compared_with_the_job(metadata, options, keys):
    pi = Pi()
    pi.metadata = metadata
    with asking(openpi_at, conversation(pi), **options) as policy, refused(*keys) if keys else nullcontext():
        policy.check_environment(LimbEnvironment(1))


TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: too dark\n"


@pytest.mark.parametrize(
    ("said", "options", "says"),
    [
        (TRACEBACK, {}, r"failed: ValueError: too dark$"),
        ({"action": 3, "server_timing": {}}, {}, "'action', 'server_timing'"),
        ({}, {}, "openpi"),
        ({"actions": [[0.0] * 5] * 8}, {}, "openpi"),
        ({"actions": "go"}, {}, "openpi"),
        ({"actions": np.zeros(40)}, {}, "openpi"),
        ({"actions": np.zeros((0, 5))}, {}, "openpi"),
        ({"actions": np.full((8, 5), np.nan)}, {}, "openpi"),
        ({"actions": np.full((8, 5), 1e300)}, {}, "openpi"),
        ([1, 2], {}, "openpi"),
        ({"actions": np.zeros((6, 7))}, {}, "has 7 numbers"),
        ({"actions": np.zeros((6, 5))}, {"action_columns": (0, 1, 2, 3, 9)}, "no column 9"),
        ({"actions": np.zeros((6, 5))}, {"action_chunk_length": 9}, "at least 9 steps"),
    ],
)
def test_what_is_no_action_of_openpi_is_told(said, options, says):
    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack({"policy": "pi"}))
        connection.recv()
        connection.send(said if isinstance(said, str) else OpenpiCodec.pack(said))

    with asking(openpi_at, talk, **options) as policy, pytest.raises(PolicyError, match=says):
        rollout(LimbEnvironment(1), policy, episodes(1), [])


@pytest.mark.parametrize(
    ("wire", "first", "says"),
    [
        ("openpi", b"garbage", "something else"),
        ("openpi", OpenpiCodec.pack([1]), "no such server"),
        ("openpi", "Traceback\nOops: x", "Oops: x"),
        ("vla_eval", packed("hello", {"protocol_version": 2}, 1), "the int '2'"),
        ("vla_eval", packed("hello", {}, 1), "the NoneType"),
        ("vla_eval", packed("action", {}, 1), "with 'action'"),
        ("vla_eval", packed("error", {"error": "no"}, 1), "failed: no"),
        ("vla_eval", "hello", "sent text: hello"),
    ],
    # The messages hold the time, which would be another in each process of the tests.
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_server_of_another_kind_is_known_by_its_first_words(wire, first, says):
    def talk(connection: ServerConnection) -> None:
        connection.send(first)
        # A connection that is closed before the client's first message is a server that is busy.
        connection.recv()

    with talking(talk) as port, pytest.raises(PolicyError, match=says):
        POLICIES[wire].from_dict(options_for(wire, port))


# vla-eval's server has a session for each env slot.


def test_each_env_slot_has_a_session_and_all_are_in_flight_at_once():
    model, environment, together = Model(), LimbEnvironment(3), threading.Barrier(3, timeout=60)

    def answers(message: dict[str, Any], asked: int) -> list[bytes]:
        if asked == 1:
            together.wait()
        return model.acting(message, asked)

    model.answers = answers
    model.action = lambda observation: np.full(5, observation["state"]["limbs"].sum())
    shown = {"image_size": [4, 4], "states": {"state.limbs": ["fingers"]}, "images": {"front": "side"}}
    with asking(vla_eval_at, model.talk, task={"suite": "limbs"}, **shown) as policy:
        policy.check_environment(environment)
        rollout(environment, policy, episodes(5), [])
    assert len(model.heard) == 3
    heard = [message for session in model.heard for message in session]
    starts = [message["payload"]["task"] for message in heard if message["type"] == "episode_start"]
    assert sorted(task["episode_idx"] for task in starts) == [0, 1, 2, 3, 4]
    assert {task["suite"] for task in starts} == {"limbs"}
    assert {task["name"] for task in starts} <= {"move to red", "move to green", "move to blue"}
    seen = next(message["payload"] for message in heard if message["type"] == "observation")
    assert set(seen) == {"images", "state", "task_description"}
    assert seen["images"]["front"].shape == (4, 4, 3)
    assert seen["task_description"] in {task["name"] for task in starts}
    for session in model.heard:
        assert [message["seq"] for message in session] == list(range(1, len(session) + 1))
        kinds = [message["type"] for message in session if message["type"] != "observation"]
        assert kinds == ["hello", *["episode_start", "episode_end"] * (len(kinds) // 2)]


PICTURE = {"name": "image", "dims": 0, "format": "rgb_hwc_uint8"}


@pytest.mark.parametrize(
    ("hello", "options", "keys"),
    [
        ({"action_spec": {"a": {"dims": 3}, "b": {"dims": 3}}}, {}, ["action_columns"]),
        ({"observation_spec": dict.fromkeys("abc", PICTURE)}, {}, ["images"]),
        ({"observation_spec": {"state": {"dims": 8, "format": "raw"}}}, {"states": {}}, ["states"]),
        ({}, {"images": {"a": "frnt"}}, ["images.a"]),
        ({}, {"action_columns": [1]}, ["action_columns"]),
        # One that declares a part or nothing is taken.
        ({"action_spec": {"g": {"dims": 1}}, "observation_spec": {"i": PICTURE, "l": {"format": "language"}}}, {}, []),
        ({"action_spec": {"actions": {"dims": 0}}, "observation_spec": {"state": {"format": "raw"}}}, {}, []),
        ({"action_spec": {"a": 1, "b": None}, "observation_spec": ["image"]}, {}, []),
    ],
)
def test_what_vla_evals_server_declares_is_compared_with_the_environment(hello, options, keys):
    with asking(vla_eval_at, Model(**hello).talk, **options) as policy, refused(*keys) if keys else nullcontext():
        policy.check_environment(LimbEnvironment(1))


def test_a_server_may_come_back_between_episodes_but_not_as_another_model():
    environment = LimbEnvironment(1)
    with talking(Model().talk) as port:
        policy = vla_eval_at(port)
        rollout(environment, policy, episodes(1), [])
        assert '"model_server": "Pusher"' in policy.stated_model()
    with talking(Model().talk, port):
        rollout(environment, policy, episodes(1), [])
    with talking(Model(model_server="Puller").talk, port), pytest.raises(PolicyLostError, match="Puller"):
        rollout(environment, policy, episodes(1), [])
    policy.close()
