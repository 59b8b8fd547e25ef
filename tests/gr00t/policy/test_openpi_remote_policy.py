"""The policy behind an openpi server; a small server stands for openpi's, and sends what it sends."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.remote.connection import ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy, OpenpiRemotePolicyCfg
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import talking

LENGTH = 6


class Pi:
    """Answers with actions that say which request they are for, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.columns = 5
        self.hold_s = 0.0
        self.hang_up_at = -1
        self.metadata: dict[str, Any] = {"policy": "pi"}

    def infer(self, request: dict[str, Any]) -> Any:
        # Counted as it comes: connections that are held for the same time need not be let go of in the same order.
        self.requests.append(request)
        number = len(self.requests)
        time.sleep(self.hold_s)

        steps = np.arange(LENGTH)[:, None] + 10 * number
        return {
            "actions": (steps + np.arange(self.columns) / 10).astype(np.float64),
            "server_timing": {"infer_ms": 1.0},
        }


def conversation(pi: Pi) -> Callable[[ServerConnection], None]:
    """Handler of a connection as in openpi's server: metadata first, then an answer for each observation."""

    def talk(connection: ServerConnection) -> None:
        pi.keys.append(connection.request.headers.get("Authorization") if connection.request else None)
        connection.send(OpenpiCodec.pack(pi.metadata))
        while True:
            try:
                answer = pi.infer(OpenpiCodec.unpack(connection.recv(decode=False)))
                if len(pi.requests) == pi.hang_up_at:
                    return
                connection.send(OpenpiCodec.pack(answer))
            except ConnectionClosed:
                return

    return talk


def options_for(port: int, **options) -> dict[str, Any]:
    return {
        "images": {"observation/image": "front"},
        "states": {"observation/state": ["robot_joint_pos", "fingers"]},
        "image_size": (12, 12),
        "action_chunk_length": 4,
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "timeout_s": 5.0,
        "wait_for_server_s": 3.0,
        **options,
    }


def policy_at(port: int, **options) -> OpenpiRemotePolicy:
    return OpenpiRemotePolicy.from_dict(options_for(port, **options))


class PiWithoutMemory(Pi):
    """Answers with actions that follow from what one request shows and says, and from nothing else."""

    def infer(self, request: dict[str, Any]) -> Any:
        shown = [request["observation/state"].sum(), request["observation/image"].sum() / 1e4, len(request["prompt"])]
        steps = np.arange(LENGTH)[:, None] + np.arange(self.columns) / 10
        return {"actions": np.sin(steps + float(sum(shown)))}


class TestConformance(PolicyConformance):
    policy_class = OpenpiRemotePolicy
    answers_alike = True

    @pytest.fixture(autouse=True)
    def serve(self):
        with talking(conversation(PiWithoutMemory())) as port:
            self.options = options_for(port)
            yield

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


def test_the_server_is_shown_what_the_options_name_and_its_chunks_are_played():
    pi, environment = Pi(), LimbEnvironment(2)
    with talking(conversation(pi)) as port:
        policy = policy_at(port)
        policy.check_environment(environment)
        rollout(environment, policy, episodes(2), [])
        policy.close()
        policy.close()
    first = pi.requests[0]
    assert set(first) == {"observation/image", "observation/state", "prompt"}
    assert first["observation/image"].shape == (12, 12, 3)
    assert first["observation/image"].dtype == np.uint8
    assert first["observation/state"].shape == (6,)
    assert first["observation/state"].dtype == np.float32
    assert {request["prompt"] for request in pi.requests} <= {"move to red", "move to green", "move to blue"}
    # Two env slots, two requests at once in a connection each, four steps of each chunk.
    played = torch.stack(environment.actions)[:4]
    by_slot = sorted([played[:, 0], played[:, 1]], key=lambda actions: actions[0, 0].item())
    assert torch.allclose(by_slot[0][:, 0], torch.tensor([10.0, 11, 12, 13]))
    assert torch.allclose(by_slot[1][:, 4], torch.tensor([20.4, 21.4, 22.4, 23.4]))
    assert pi.keys == [None, None]


def test_chunks_of_any_length_are_played_to_their_ends_and_cannot_be_late():
    class OfAnyLength(Pi):
        def infer(self, request: dict[str, Any]) -> Any:
            answer = super().infer(request)
            return {"actions": answer["actions"][: (1, 3, 2, 6)[(len(self.requests) - 1) % 4]]}

    log = ActionLog()
    with talking(conversation(OfAnyLength())) as port:
        policy = policy_at(port, execute="all")
        with pytest.raises(ConfigError, match="execute: all"):
            LatePolicy(policy, Delays(steps=((2, 1),)), Meanwhile.CHUNK, QueryTimes())
        rollout(LimbEnvironment(1), policy, episodes(1), [log])
        policy.close()
    expected = [10.0, 20, 21, 22, 30, 31, 40, 41]
    assert log.actions[0][: len(expected), 0].tolist() == expected[: len(log.actions[0])]


def test_late_answers_go_on_where_the_chunk_before_is_used_up():
    log = ActionLog()
    with talking(conversation(Pi())) as port:
        late = LatePolicy(policy_at(port), Delays(steps=((2, 1),)), Meanwhile.CHUNK, QueryTimes())
        rollout(LimbEnvironment(1), late, episodes(1), [log])
        late.close()
    # Of each answer but the first, the first two actions are late.
    assert log.actions[0][:8, 0].tolist() == [10.0, 11, 12, 13, 22, 23, 32, 33]


def test_the_questions_of_all_env_slots_are_under_way_at_once():
    class Meeting(PiWithoutMemory):
        together = threading.Barrier(3, timeout=60)
        num_asked = 0

        def infer(self, request: dict[str, Any]) -> Any:
            self.num_asked += 1
            if self.num_asked <= 3:
                self.together.wait()
            return super().infer(request)

    with talking(conversation(Meeting())) as port:
        policy = policy_at(port)
        assert rollout(LimbEnvironment(3), policy, episodes(3), []).finished_episodes == 3
        policy.close()


def test_an_episode_has_a_connection_of_its_own_if_the_job_says_so_and_then_does_not_outlive_it():
    pi, environment, notebook = Pi(), LimbEnvironment(1), Notebook()
    with talking(conversation(pi)) as port:
        policy = policy_at(port, connection_per_episode=True)
        rollout(environment, policy, episodes(3), [])
        # One when the policy is built, and one for each episode.
        assert len(pi.keys) == 4
        pi.hang_up_at = len(pi.requests) + 2
        with pytest.raises(ServerUnreachableError, match="remembers"):
            rollout(environment, policy, episodes(3), [notebook])
        policy.close()
    assert {record.termination for record in notebook.records[-1:]} == {"policy_lost"}


@pytest.mark.parametrize(
    ("metadata", "options", "key"),
    [
        ({}, {"server_metadata": {"policy": "pi"}}, "server_metadata.policy"),
        ({"pose": [1]}, {"server_metadata": {"pose": [2]}}, "server_metadata.pose"),
        ({"pose": (0, 1)}, {"server_metadata": {"pose": (0, 1)}}, None),
        ({"image_resolution": [9, 9]}, {}, "image_size"),
        ({"image_resolution": "any"}, {}, None),
        ({"action_horizon": 3}, {}, "action_chunk_length"),
        ({"action_dim": 6}, {}, "action_columns"),
        ({"action_dim": 6}, {"action_columns": (0, 1, 2, 3, 6)}, "action_columns"),
    ],
)
def test_what_the_server_says_of_itself_is_compared_with_the_job(metadata, options, key):
    pi = Pi()
    pi.metadata = metadata
    with talking(conversation(pi)) as port:
        policy = policy_at(port, **options)
        if key is None:
            policy.check_environment(LimbEnvironment(1))
        else:
            with pytest.raises(ConfigError) as caught:
                policy.check_environment(LimbEnvironment(1))
            assert caught.value.problems[0].key == key
        policy.close()


def test_columns_of_the_answer_can_be_chosen_and_the_key_is_shown(tmp_path):
    pi, environment = Pi(), LimbEnvironment(1)
    pi.columns = 8
    key = tmp_path / "key"
    key.write_text("secret\n")
    with talking(conversation(pi)) as port:
        policy = policy_at(port, action_columns=(7, 6, 5, 4, 0), remote_api_token_file=str(key))
        rollout(environment, policy, episodes(1), [])
        policy.close()
    assert torch.allclose(environment.actions[0][0], torch.tensor([10.7, 10.6, 10.5, 10.4, 10.0]))
    assert pi.keys == ["Api-Key secret"]


TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: too dark\n"


@pytest.mark.parametrize(
    ("said", "columns", "options", "says"),
    [
        (TRACEBACK, 5, {}, r"failed: ValueError: too dark$"),
        ({"action": 3, "server_timing": {}}, 5, {}, "'action', 'server_timing'"),
        (None, 7, {}, "has 7 numbers"),
        (None, 5, {"action_columns": (0, 1, 2, 3, 9)}, "no column 9"),
        (None, 5, {"action_chunk_length": 9}, "at least 9 steps"),
    ],
)
def test_what_is_no_action_is_told(said, columns, options, says):
    pi = Pi()
    pi.columns = columns

    def talk(connection: ServerConnection) -> None:
        connection.send(OpenpiCodec.pack(pi.metadata))
        answer = pi.infer(OpenpiCodec.unpack(connection.recv(decode=False)))
        connection.send(said if isinstance(said, str) else OpenpiCodec.pack(said or answer))

    with talking(talk) as port:
        policy = policy_at(port, **options)
        with pytest.raises(PolicyError, match=says):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


@pytest.mark.parametrize(
    ("first", "says"),
    [(b"garbage", "something else"), (OpenpiCodec.pack([1]), "no such server"), ("Traceback\nOops: x", "Oops: x")],
)
def test_a_server_of_another_kind_is_refused(first, says):
    with talking(lambda connection: connection.send(first)) as port, pytest.raises(PolicyError, match=says):
        policy_at(port)


def test_a_server_that_stays_away_fails_the_rollout_in_time():
    with talking(conversation(Pi())) as port:
        policy = policy_at(port, wait_for_server_s=0.2)
        assert policy.is_remote
        assert not policy.traits.reproducible
    with pytest.raises(ServerUnreachableError, match=rf"ws://127.0.0.1:{port}.* 0.2 s"):
        rollout(LimbEnvironment(1), policy, episodes(1), [])


def test_a_policy_that_takes_too_long_is_an_error_that_says_so():
    pi = Pi()
    pi.hold_s = 0.4
    with talking(conversation(pi)) as port:
        policy = policy_at(port, timeout_s=0.2)
        with pytest.raises(ServerUnreachableError, match=r"0.2 s, twice"):
            rollout(LimbEnvironment(1), policy, episodes(1), [])
        policy.close()


def test_what_an_interrupted_question_left_unanswered_is_not_taken_for_the_answer_to_the_next_one():
    pi, environment = Pi(), LimbEnvironment(2)
    pi.hold_s = 0.2
    with talking(conversation(pi)) as port:
        policy = policy_at(port)
        drawn = environment.draw_conditions(np.random.default_rng(0))
        shown = environment.reset(torch.arange(2), [drawn, drawn])
        one_slot = {group: {name: term[:1] for name, term in terms.items()} for group, terms in shown.items()}
        with pytest.raises(IndexError):
            # The question of the first env slot is under way when there is nothing to show of the second.
            policy.get_action(environment, one_slot)
        first_actions = policy.get_action(environment, shown)[:, 0]
        policy.close()
    # The answer to the first question would begin with 10.
    assert sorted(first_actions.tolist()) == [20.0, 30.0]


def test_an_environment_that_lacks_something_is_refused_without_a_server():
    wrong = {"images": {"a": "frnt"}, "states": {"b": ["robot_joint_pos", "gripper"]}, "action_columns": (1, 2)}
    config = OpenpiRemotePolicyCfg(**options_for(1, **wrong))
    for environment in (LimbEnvironment(1), LimbEnvironment(1, cameras=())):
        with pytest.raises(ConfigError) as caught:
            OpenpiRemotePolicy.check_fit(config, environment)
        assert [problem.key for problem in caught.value.problems] == ["images.a", "states.b", "action_columns"]
    assert "enable_cameras" in caught.value.problems[0].message


def test_what_the_server_will_be_shown_is_known_without_it():
    config = OpenpiRemotePolicyCfg(**options_for(1, action_columns=(0, 1, 2, 3, 6)))
    assert str(OpenpiRemotePolicy.check_fit(config, LimbEnvironment(1))) == (
        "observation/image <- front; observation/state <- robot_joint_pos + fingers; "
        "action[0:4, 6] -> action (wrist to knee)"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("action_chunk_length", 0), ("image_size", (0, 4)), ("action_columns", ()), ("images", {}), ("remote_port", 0)],
)
def test_an_option_that_cannot_be_is_named(key, value):
    with pytest.raises(ConfigError) as caught:
        policy_at(8000, **{"states": {}, key: value})
    assert [problem.key for problem in caught.value.problems] == [key]
