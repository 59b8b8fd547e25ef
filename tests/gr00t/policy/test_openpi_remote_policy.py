"""The policy behind an openpi server; a small server stands for openpi's, and sends what it sends."""

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
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.remote.chunks import misfits, shown_inputs
from isaaclab_arena.remote.connection import ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy, OpenpiRemotePolicyCfg
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.gr00t.policy.model_servers import asking, talking
from tests.layouts import LAYOUTS, UNCLEAR
from tests.policy.playing import refused

LENGTH = 6


class Pi:
    """Answers with actions that say which request they are for; ``asked`` is called before each answer."""

    def __init__(self, asked: Callable[[], None] = lambda: None) -> None:
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


def conversation(pi: Pi) -> Callable[[ServerConnection], None]:
    """Handler of a connection as in openpi's server: metadata first, then an answer for each observation."""

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
    with asking(policy_at, conversation(pi)) as policy:
        policy.check_environment(environment)
        rollout(environment, policy, episodes(2), [])
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
    with asking(policy_at, conversation(OfAnyLength()), execute="all") as policy:
        with pytest.raises(ConfigError, match="execute: all"):
            LatePolicy(policy, Delays(steps=((2, 1),)), Meanwhile.CHUNK, QueryTimes())
        rollout(LimbEnvironment(1), policy, episodes(1), [log])
    expected = [10.0, 20, 21, 22, 30, 31, 40, 41]
    assert log.actions[0][: len(expected), 0].tolist() == expected[: len(log.actions[0])]


def test_an_episode_has_a_connection_of_its_own_if_the_job_says_so_and_then_does_not_outlive_it():
    pi, environment, notebook = Pi(), LimbEnvironment(1), Notebook()
    with asking(policy_at, conversation(pi), connection_per_episode=True) as policy:
        rollout(environment, policy, episodes(3), [])
        # One when the policy is built, and one for each episode.
        assert len(pi.keys) == 4
        pi.hang_up_at = len(pi.requests) + 2
        with pytest.raises(ServerUnreachableError, match="remembers"):
            rollout(environment, policy, episodes(3), [notebook])
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
    with asking(policy_at, conversation(pi), **options) as policy:
        if key is None:
            policy.check_environment(LimbEnvironment(1))
        else:
            with refused(key):
                policy.check_environment(LimbEnvironment(1))


def test_columns_of_the_answer_can_be_chosen_and_the_key_is_shown(tmp_path):
    pi, environment = Pi(), LimbEnvironment(1)
    pi.columns = 8
    key = tmp_path / "key"
    key.write_text("secret\n")
    with asking(policy_at, conversation(pi), action_columns=(7, 6, 5, 4, 0), remote_api_token_file=str(key)) as policy:
        rollout(environment, policy, episodes(1), [])
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

    with asking(policy_at, talk, **options) as policy, pytest.raises(PolicyError, match=says):
        rollout(LimbEnvironment(1), policy, episodes(1), [])


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
    with refused(key):
        policy_at(8000, **{"states": {}, key: value})


# What servers of any protocol are shown.


IMAGES = {"observation/image": "front"}


def environment_of(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> LimbEnvironment:
    environment = LimbEnvironment(2)
    cameras = {"front": ArraySpec(shape=shape, dtype=dtype)}
    environment.observation_spec = {**environment.observation_spec, "camera_obs": cameras}
    return environment


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_server_is_shown_colours_in_whichever_layout_an_environment_shows_them(lies, colours):
    assert misfits(environment_of(lies.shape), IMAGES, {}, None) == []
    shown = {"camera_obs": {"front": torch.from_numpy(np.stack([255 - lies, lies]))}}
    pictures, _ = shown_inputs(shown, 1, images=IMAGES, states={}, image_size=None)
    assert np.array_equal(pictures["observation/image"], colours)
    assert pictures["observation/image"].flags.c_contiguous


@pytest.mark.parametrize(("shape", "reason"), UNCLEAR.items())
def test_a_layout_that_is_not_certain_is_refused_with_the_cameras_name(shape, reason):
    [problem] = misfits(environment_of(shape), IMAGES, {}, None)
    assert problem.key == "images.observation/image"
    assert problem.message.startswith(f"camera 'front' has shape {shape}")
    assert reason in problem.message


def test_a_camera_that_shows_depth_is_no_picture():
    [problem] = misfits(environment_of((6, 8, 1), torch.float32), IMAGES, {}, None)
    assert problem.message == "camera 'front' is not a colour picture: torch.float32 of shape (6, 8, 1)"
