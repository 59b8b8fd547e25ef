"""The policy behind a model server of vla-eval."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.remote.connection import ServerUnreachableError
from isaaclab_arena.remote.vla_eval import VlaEvalRemotePolicy, VlaEvalRemotePolicyCfg
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes import Notebook
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import Model, array, asking, packed, talking
from tests.policy.playing import refused

PICTURE = {"name": "image", "dims": 0, "format": "rgb_hwc_uint8"}


def options_for(port: int, **options: Any) -> dict[str, Any]:
    limits = {"timeout_s": 5.0, "wait_for_server_s": 3.0}
    return {"address": f"ws://127.0.0.1:{port}", **limits, **options}


def policy_at(port: int, **options: Any) -> VlaEvalRemotePolicy:
    return VlaEvalRemotePolicy.from_dict(options_for(port, **options))


class TestConformance(PolicyConformance):
    policy_class = VlaEvalRemotePolicy
    answers_alike = True

    @pytest.fixture(autouse=True)
    def serve(self):
        with talking(Model().talk) as port:
            self.options = options_for(port)
            yield

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


def test_each_env_slot_has_a_session_and_all_are_in_flight_at_once():
    model, environment, together = Model(), LimbEnvironment(3), threading.Barrier(3, timeout=60)

    def answers(message: dict[str, Any], asked: int) -> list[bytes]:
        if asked == 1:
            together.wait()
        return model.acting(message, asked)

    model.answers = answers
    with talking(model.talk) as port:
        policy = policy_at(
            port,
            task={"suite": "limbs"},
            image_size=[4, 4],
            states={"state.limbs": ["fingers"]},
            images={"front": "side"},
        )
        policy.check_environment(environment)
        model.action = lambda observation: np.full(5, observation["state"]["limbs"].sum())
        rollout(environment, policy, episodes(5), [])
        policy.close()
    assert len(model.heard) == 3
    heard = [message for session in model.heard for message in session]
    starts = [message["payload"]["task"] for message in heard if message["type"] == "episode_start"]
    assert sorted(task["episode_idx"] for task in starts) == [0, 1, 2, 3, 4]
    assert {task["suite"] for task in starts} == {"limbs"}
    assert {task["name"] for task in starts} <= {"move to red", "move to green", "move to blue"}
    assert sum(message["type"] == "episode_end" for message in heard) == 5
    shown = next(message["payload"] for message in heard if message["type"] == "observation")
    assert set(shown) == {"images", "state", "task_description"}
    assert shown["images"]["front"].shape == (4, 4, 3)
    assert shown["task_description"] in {task["name"] for task in starts}
    for session in model.heard:
        assert [message["seq"] for message in session] == list(range(1, len(session) + 1))
        kinds = [message["type"] for message in session if message["type"] != "observation"]
        assert kinds == ["hello", *["episode_start", "episode_end"] * (len(kinds) // 2)]


def test_everything_is_shown_under_its_own_name_unless_the_job_says_otherwise():
    model, environment = Model(), LimbEnvironment(1)
    depth = {"depth": ArraySpec(shape=(6, 8, 1))}
    cameras: Any = environment.observation_spec["camera_obs"]
    environment.observation_spec = {**environment.observation_spec, "camera_obs": {**cameras, **depth}}
    with asking(policy_at, model.talk) as policy:
        policy.check_environment(environment)
        rollout(environment, policy, episodes(1), [])
    shown = next(message["payload"] for message in model.heard[0] if message["type"] == "observation")
    assert set(shown) == {"robot_joint_pos", "fingers", "nameless", "images", "task_description"}
    assert set(shown["images"]) == {"front", "side"}
    assert torch.allclose(environment.actions[0][0], torch.from_numpy(model.action(shown)).float())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"action_chunk_length": 2, "action_columns": [7, 0, 1, 2, 3]}, [107.0, 117.0, 207.0, 217.0]),
        ({"execute": "all", "action_columns": [0, 1, 2, 3, 4]}, [100.0, 110.0, 200.0, 210.0]),
    ],
)
def test_a_chunk_is_played_as_far_as_the_job_says(options, expected):
    model, environment = Model(), LimbEnvironment(1)
    steps = 10 * np.arange(2)[:, None] + np.arange(8)
    model.answers = lambda message, asked: [packed("action", {"actions": array(steps + 100 * asked)}, message["seq"])]
    with asking(policy_at, model.talk, **options) as policy:
        rollout(environment, policy, episodes(1), [])
    assert [actions[0, 0].item() for actions in environment.actions[:4]] == expected


@pytest.mark.parametrize(
    ("hello", "options", "key"),
    [
        ({"action_spec": {"a": {"dims": 3}, "b": {"dims": 3}}}, {}, "action_columns"),
        ({"observation_spec": dict.fromkeys("abc", PICTURE)}, {}, "images"),
        ({"observation_spec": {"state": {"dims": 8, "format": "raw"}}}, {"states": {}}, "states"),
        ({}, {"images": {"a": "frnt"}}, "images.a"),
        ({}, {"action_columns": [1]}, "action_columns"),
    ],
)
def test_what_the_server_declares_is_compared_with_the_environment(hello, options, key):
    with talking(Model(**hello).talk) as port, refused(key):
        policy_at(port, **options).check_environment(LimbEnvironment(1))


@pytest.mark.parametrize(
    "hello",
    [
        {"action_spec": {"gripper": {"dims": 1}}, "observation_spec": {"image": PICTURE, "l": {"format": "language"}}},
        {"action_spec": {"actions": {"dims": 0}}, "observation_spec": {"state": {"format": "raw"}}},
        {"action_spec": {"a": 1, "b": None}, "observation_spec": ["image"]},
    ],
)
def test_a_server_that_declares_a_part_or_nothing_is_taken(hello):
    with talking(Model(**hello).talk) as port:
        policy_at(port).check_environment(LimbEnvironment(1))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("address", "wss://here:8000"),
        ("address", "here:8000"),
        ("address", "ws://here:99999"),
        ("action_chunk_length", 0),
        ("image_size", [0, 3]),
        ("action_columns", [-1]),
        ("timeout_s", 0.0),
    ],
)
def test_options_that_cannot_work_are_refused_without_a_server(key, value):
    with refused(key):
        VlaEvalRemotePolicy.from_dict({key: value})


def test_what_the_server_will_be_shown_is_known_and_refused_without_it():
    environment = LimbEnvironment(1)
    assert str(VlaEvalRemotePolicy.check_fit(VlaEvalRemotePolicyCfg(states={"state": ["fingers"]}), environment)) == (
        "front <- front; side <- side; state <- fingers; action -> action (wrist to knee)"
    )
    with pytest.raises(ConfigError, match=r"states.state: .*'finger'"):
        VlaEvalRemotePolicy.check_fit(VlaEvalRemotePolicyCfg(states={"state": ["finger"]}), environment)


def test_a_lost_session_makes_an_error_of_its_episode_although_the_server_is_there():
    model, environment, notebook = Model(), LimbEnvironment(2), Notebook()

    def answers(message: dict[str, Any], asked: int) -> list[bytes]:
        if asked == 3 and len(model.heard[0]) > 4:
            raise ConnectionResetError
        return model.acting(message, asked)

    model.answers = answers
    with asking(policy_at, model.talk, timeout_s=2.0) as policy:
        with pytest.raises(ServerUnreachableError, match="remembers"):
            rollout(environment, policy, episodes(4), [notebook])
        model.answers = model.acting
        rollout(environment, policy, episodes(2), [])
    assert {record.termination for record in notebook.records} == {"policy_lost"}
    assert [record.length for record in notebook.records] == [2, 2]


def test_what_a_failed_question_left_unanswered_is_not_taken_for_the_answer_to_a_later_one():
    model, environment = Model(), LimbEnvironment(2)

    def answers(message: dict[str, Any], asked: int) -> list[bytes]:
        if asked == 2 and model.heard[0][-1] is message:
            return [packed("error", {"error": "too dark"}, message["seq"])]
        return model.acting(message, asked)

    model.answers = answers
    with asking(policy_at, model.talk) as policy:
        with pytest.raises(PolicyError, match="failed: too dark"):
            rollout(environment, policy, episodes(2), [])
        model.answers = model.acting
        assert rollout(environment, policy, episodes(2), []).finished_episodes == 2


def test_a_server_may_come_back_between_episodes_but_not_as_another_model():
    environment = LimbEnvironment(1)
    with talking(Model().talk) as port:
        policy = policy_at(port)
        rollout(environment, policy, episodes(1), [])
        assert '"model_server": "Pusher"' in policy.stated_model()
    with talking(Model().talk, port):
        rollout(environment, policy, episodes(1), [])
    with talking(Model(model_server="Puller").talk, port), pytest.raises(PolicyLostError, match="Puller"):
        rollout(environment, policy, episodes(1), [])
    policy.close()
