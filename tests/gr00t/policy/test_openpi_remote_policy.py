"""The policy behind an openpi server; a small server stands for openpi's, and sends what it sends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.policy.openpi_remote_policy import OpenpiRemotePolicy, OpenpiRemotePolicyCfg
from isaaclab_arena_gr00t.remote.connection import ServerUnreachableError
from isaaclab_arena_gr00t.remote.protocols import OpenpiCodec
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog
from tests.gr00t.fakes import LimbEnvironment

LENGTH = 6


class Pi:
    """Answers with actions that say which request they are for, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.columns = 5
        self.hold_s = 0.0
        self.fail_at = -1
        self.hang_up_at = -1
        self.metadata: dict[str, Any] = {"policy": "pi"}

    def infer(self, request: dict[str, Any]) -> Any:
        # Counted as it comes: connections that are held for the same time need not be let go of in the same order.
        self.requests.append(request)
        number = len(self.requests)
        time.sleep(self.hold_s)
        if number == self.fail_at:
            raise ValueError("the images are too dark")
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
            except ValueError as error:
                connection.send(f"Traceback (most recent call last):\n  ...\nValueError: {error}\n")
                connection.close(1011, "Internal server error. Traceback included in previous frame.")
                return

    return talk


@contextmanager
def talking(talk: Callable[[ServerConnection], None], port: int = 0) -> Iterator[int]:
    with serve(talk, "127.0.0.1", port, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


def test_an_answer_without_actions_is_told_by_the_keys_it_has():
    assert OpenpiRemotePolicy.answered_actions({"actions": 3, "server_timing": {}}) == 3
    with pytest.raises(
        PolicyError, match="with 'actions', and answered with 'action', 'server_timing'; rename it there"
    ):
        OpenpiRemotePolicy.answered_actions({"action": 3, "server_timing": {}})


def test_a_camera_of_an_environment_without_pictures_is_refused_with_the_way_out():
    config = OpenpiRemotePolicyCfg(images={"observation/image": "front"})
    with pytest.raises(
        ConfigError, match="'front' is to be seen, and the environment shows no pictures; set enable_cam"
    ):
        OpenpiRemotePolicy.check_fit(config, LimbEnvironment(1, cameras=()))


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


def episodes(count: int) -> list[Episode]:
    return [Episode(job="limb", episode_index=index, seed=7) for index in range(count)]


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


class PiOfAnyLength(Pi):
    """Answers with chunks of other lengths each time."""

    lengths = (1, 3, 2, 6)

    def infer(self, request: dict[str, Any]) -> Any:
        answer = super().infer(request)
        return {"actions": answer["actions"][: self.lengths[(len(self.requests) - 1) % 4]]}


def test_chunks_of_any_length_are_played_to_their_ends():
    log = ActionLog()
    with talking(conversation(PiOfAnyLength())) as port:
        policy = policy_at(port, execute="all")
        rollout(LimbEnvironment(1), policy, episodes(1), [log])
        policy.close()
    expected = [10.0, 20, 21, 22, 30, 31, 40, 41]
    assert log.actions[0][: len(expected), 0].tolist() == expected[: len(log.actions[0])]


def test_chunks_of_any_length_cannot_be_late():
    with talking(conversation(Pi())) as port:
        policy = policy_at(port, execute="all")
        with pytest.raises(ConfigError, match="execute: all leaves open how long a chunk is"):
            LatePolicy(policy, Delays(steps=((2, 1),)), Meanwhile.CHUNK, QueryTimes())
        policy.close()


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
        with pytest.raises(ServerUnreachableError, match="it remembers what it was shown, so the episode cannot go on"):
            rollout(environment, policy, episodes(3), [notebook])
        policy.close()
    assert {record.termination for record in notebook.records[-1:]} == {"policy_lost"}


@pytest.mark.parametrize(
    ("metadata", "options", "message"),
    [
        ({}, {"server_metadata": {"policy": "pi"}}, "server_metadata.policy: the server says None, 'pi' is due"),
        ({"pose": [1]}, {"server_metadata": {"pose": [2]}}, "server_metadata.pose: the server says [1], [2] is due"),
        ({"image_resolution": [9, 9]}, {}, "image_size: the server wants pictures of [9, 9], and is shown [12, 12]"),
        ({"action_horizon": 3}, {}, "action_chunk_length: the server answers with 3 steps, 4 are to be played"),
        ({"action_dim": 6}, {}, "action_columns: the server's action has 6 numbers, the environment's 5"),
        (
            {"action_dim": 6},
            {"action_columns": (0, 1, 2, 3, 6)},
            "action_columns: the server's action has 6 numbers, no",
        ),
    ],
)
def test_what_the_server_says_of_itself_is_compared_with_the_job(metadata, options, message):
    pi = Pi()
    pi.metadata = metadata
    with talking(conversation(pi)) as port, pytest.raises(ConfigError) as caught:
        policy_at(port, **options).check_environment(LimbEnvironment(1))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("metadata", [{"policy": "pi", "reset_pose": (0, 1)}, {"image_resolution": "any"}])
def test_metadata_that_say_nothing_else_are_taken(metadata):
    pi = Pi()
    pi.metadata = metadata
    expected = {name: value for name, value in metadata.items() if name == "reset_pose"}
    with talking(conversation(pi)) as port:
        policy_at(port, server_metadata=expected).check_environment(LimbEnvironment(1))


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


def test_it_says_that_its_network_runs_elsewhere():
    with talking(conversation(Pi())) as port:
        policy = policy_at(port)
        assert policy.is_remote
        assert not policy.traits.reproducible
        policy.close()


def test_the_error_of_a_server_is_told_by_its_last_line():
    pi = Pi()
    pi.fail_at = 2
    with talking(conversation(pi)) as port:
        policy = policy_at(port)
        with pytest.raises(PolicyError, match=r"failed: ValueError: the images are too dark$"):
            rollout(LimbEnvironment(2), policy, episodes(2), [])
        policy.close()


def test_a_server_that_came_back_is_asked_again():
    pi, environment = Pi(), LimbEnvironment(1)
    with talking(conversation(pi)) as port:
        policy = policy_at(port)
        rollout(environment, policy, episodes(1), [])
    with talking(conversation(pi), port):
        rollout(environment, policy, episodes(1), [])
        policy.close()
    assert len(pi.keys) == 2


def test_a_server_that_stays_away_fails_the_rollout_in_time():
    with talking(conversation(Pi())) as port:
        policy = policy_at(port, wait_for_server_s=0.5)
    with pytest.raises(ServerUnreachableError, match=rf"ws://127.0.0.1:{port}, after waiting 0.5 s"):
        rollout(LimbEnvironment(1), policy, episodes(1), [])
    with pytest.raises(ServerUnreachableError):
        policy_at(port, wait_for_server_s=0.2)


def test_a_policy_that_takes_too_long_is_an_error_that_says_so():
    pi = Pi()
    pi.hold_s = 0.6
    with talking(conversation(pi)) as port:
        policy = policy_at(port, timeout_s=0.2)
        with pytest.raises(ServerUnreachableError, match=r"did not answer within 0.2 s, twice"):
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


@pytest.mark.parametrize(
    ("sent", "says"),
    [(b"garbage", "sent something else"), (OpenpiCodec.pack([1]), "no such server"), ("Traceback\nOops: x", "Oops: x")],
)
def test_a_server_of_another_kind_is_refused(sent, says):
    def talk(connection: ServerConnection) -> None:
        connection.send(sent)

    with talking(talk) as port, pytest.raises(PolicyError, match=says):
        policy_at(port)


def test_a_server_that_wants_a_key_is_told_to_the_user():
    def refuse(connection: ServerConnection, request: Request) -> Response:
        del request
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no key\n")

    with serve(conversation(Pi()), "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(ConfigError, match=r"remote_api_token_file: must name a file .* wants a token; .*401"):
            policy_at(server.socket.getsockname()[1])
        server.shutdown()
        thread.join()


def test_actions_that_do_not_fit_are_named():
    for columns, options, says in (
        (7, {}, "has 7 numbers, the environment's 5"),
        (5, {"action_columns": (0, 1, 2, 3, 9)}, "no column 9"),
        (5, {"action_chunk_length": 9}, "at least 9 steps"),
    ):
        pi = Pi()
        pi.columns = columns
        with talking(conversation(pi)) as port:
            policy = policy_at(port, **options)
            with pytest.raises(PolicyError, match=says):
                rollout(LimbEnvironment(1), policy, episodes(1), [])
            policy.close()


def test_an_environment_that_lacks_something_is_refused_before_the_first_step():
    with talking(conversation(Pi())) as port:
        policy = policy_at(
            port, images={"a": "frnt"}, states={"b": ["robot_joint_pos", "gripper"]}, action_columns=(1, 2)
        )
        with pytest.raises(ConfigError) as caught:
            policy.check_environment(LimbEnvironment(1))
        policy.close()
    assert [problem.key for problem in caught.value.problems] == ["images.a", "states.b", "action_columns"]
    assert "did you mean 'front'" in caught.value.problems[0].message


def test_what_the_server_will_be_shown_is_known_and_refused_without_it():
    environment, columns = LimbEnvironment(1), (0, 1, 2, 3, 6)
    options = options_for(1, action_columns=columns)
    assert str(OpenpiRemotePolicy.check_fit(OpenpiRemotePolicyCfg(**options), environment)) == (
        "observation/image <- front; observation/state <- robot_joint_pos + fingers; "
        "action[0:4, 6] -> action (wrist to knee)"
    )
    with pytest.raises(ConfigError, match="did you mean 'front'"):
        OpenpiRemotePolicy.check_fit(
            OpenpiRemotePolicyCfg(**options_for(1, action_columns=columns, images={"a": "frnt"})), environment
        )


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"remote_port": 0}, "remote_port"),
        ({"remote_api_token": "secret"}, "remote_api_token"),
        ({"action_chunk_length": 0}, "action_chunk_length"),
        ({"image_size": (0, 4)}, "image_size"),
        ({"action_columns": ()}, "action_columns"),
        ({"images": {}, "states": {}}, "images"),
    ],
)
def test_an_option_that_cannot_be_is_named(options, key):
    with pytest.raises(ConfigError) as caught:
        policy_at(8000, **options)
    assert [problem.key for problem in caught.value.problems] == [key]
