"""Policies whose model is behind a server of GR00T, openpi or vla-eval."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from websockets.sync.server import ServerConnection

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.observers import Observer
from isaaclab_arena.remote.connection import ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec, OpenpiRemotePolicy, OpenpiRemotePolicyCfg
from isaaclab_arena.remote.protocols import ANSWER_LIMITS
from isaaclab_arena.remote.vla_eval import VlaEvalRemotePolicy, VlaEvalRemotePolicyCfg
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Gr00tClosedloopPolicyArgs, Modality
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import ClosedloopPolicy, Gr00tClosedloopPolicy
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, episodes
from tests.gr00t.fakes import (
    DIMENSIONS,
    HORIZON,
    MODALITIES,
    FakeModality,
    LimbEnvironment,
    LimbPolicy,
    RandomModel,
    write_policy_yaml,
)
from tests.gr00t.policy.model_servers import (
    POLICIES,
    Hook,
    Model,
    Pi,
    array,
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
from tests.outsiders.cables import Cable, cable
from tests.policy.playing import check_ranks_play_as_one, refused, sharing
from tests.pretend_gpu import GPU, PretendGpu


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


# Model servers that are slow, lost or hostile.


# A GR00T model in a policy server answers as the same model in the rank's own process, beside other clients.


class ContinuingModel(RandomModel):
    """Its chunks lie between what they go on from and what they would be without."""

    def get_action(self, observation: Any, options: Any = None) -> Any:
        actions, _ = super().get_action(observation, options)
        going_on = options["continued"]
        weights = np.asarray(going_on["weights"])[:, :, None]
        return {key: own + weights * (going_on["actions"][key] - own) for key, own in actions.items()}, {}


@pytest.fixture
def options(tmp_path) -> dict[str, Any]:
    return {"policy_config_yaml_path": write_policy_yaml(tmp_path), "policy_device": "cpu"}


def with_its_own(model: RandomModel, options: dict[str, Any]) -> Gr00tClosedloopPolicy:
    return Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=model)


def test_ranks_that_share_a_model_play_the_same_bits_as_one_with_its_own(options):
    model = RandomModel("noise_seeds")
    with sharing(with_its_own(model, options), options, 3) as ranks:
        check_ranks_play_as_one(with_its_own(RandomModel("noise_seeds"), options), ranks, LimbEnvironment)
    assert set(model.sizes) == {4}


def test_late_chunks_go_on_from_each_other_as_well_when_the_model_is_shared(options):
    def late(policy: Gr00tClosedloopPolicy) -> LatePolicy:
        assert policy.chunk_traits().can_continue
        return LatePolicy(policy, Delays(steps=((1, 1), (2, 1)), control_dt=0.1), Meanwhile.RTC, QueryTimes())

    alone, owner = (with_its_own(ContinuingModel("noise_seeds", "continued"), options) for _ in range(2))
    with sharing(owner, options, 2) as ranks:
        check_ranks_play_as_one(late(alone), [late(each) for each in ranks], LimbEnvironment)


def test_a_shared_model_says_what_it_does_not_honour(options):
    for honoured, reproducible in (("noise_seeds",), True), ((), False):
        with sharing(with_its_own(RandomModel(*honoured), options), options, 1) as (policy,):
            assert not policy.chunk_traits().can_continue
            assert policy.traits.reproducible is reproducible
            assert (policy.traits.plan_because is None) is reproducible
            policy.close()


# How often the CPU waits for a GPU when a GR00T model is asked, counted with a pretended one.


NUM_ENVS, CHUNK = 3, 4


class LimbsOnGpu(LimbEnvironment):
    """Limbs whose observations are on the pretended GPU."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.device = GPU

    def observe(self) -> Observation:
        return with_leaves(self._observe(), lambda part: part.to(GPU))


class TakesTensors(LimbPolicy):
    """Remembers what it is asked about, on the GPU, and answers with zeros."""

    _takes_tensors = True

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        return {
            key: np.zeros((len(noise_seeds), HORIZON, size), np.float32) for key, size in DIMENSIONS["action"].items()
        }


class LooksBack(TakesTensors):
    """Is shown earlier steps too."""

    modalities: Mapping[str, Modality] = {
        **MODALITIES,
        "video": FakeModality(delta_indices=[-2, 0], modality_keys=["ego", "aside"]),
        "state": FakeModality(delta_indices=[-1, 0], modality_keys=["arm", "leg", "hand"]),
    }


class TakesArrays(TakesTensors):
    """As a model of another package, which knows arrays alone."""

    _takes_tensors = False


def made_of(directory: Path, policy_class: type[LimbPolicy]) -> LimbPolicy:
    return policy_class(ClosedloopPolicyArgs(policy_config_yaml_path=write_policy_yaml(directory)))


def waits_of(gpu: PretendGpu, policy: ClosedloopPolicy[Any] | OpenpiRemotePolicy) -> list[int]:
    """Number of CPU waits in each call from the second chunk on."""
    env = LimbsOnGpu(NUM_ENVS)
    conditions = [env.draw_conditions(each.conditions_generator()) for each in episodes(NUM_ENVS)]
    env.reset(torch.arange(NUM_ENVS), conditions)
    policy.set_task_description("move")
    waits = []
    for _ in range(3 * CHUNK):
        seen = env.observe()
        gpu.waits.clear()
        assert policy.get_action(env, seen).device == GPU
        policy.pictures_to_see(env, ())
        waits.append(len(gpu.waits))
    return waits[CHUNK:]


@pytest.mark.parametrize("policy_class", [TakesTensors, LooksBack])
def test_nothing_waits_until_a_model_on_the_gpu_has_answered(gpu, tmp_path, policy_class):
    policy = made_of(tmp_path, policy_class)
    assert waits_of(gpu, policy) == [0] * 2 * CHUNK
    asked = policy.queries[-1].observation
    assert {part.device for group in ("video", "state") for part in asked[group].values()} == {GPU}


def test_a_model_that_knows_arrays_alone_is_asked_the_same_and_waits_once_for_all_of_it(gpu, tmp_path):
    arrays, tensors = made_of(tmp_path, TakesArrays), made_of(tmp_path, TakesTensors)
    assert waits_of(gpu, arrays) == 2 * [1, *[0] * (CHUNK - 1)]
    waits_of(gpu, tensors)
    for one, other in zip(arrays.queries, tensors.queries, strict=True):
        for group, num_parts in (("video", 2), ("state", 3)):
            assert len(one.observation[group]) == num_parts
            for key, part in one.observation[group].items():
                assert isinstance(part, np.ndarray)
                np.testing.assert_array_equal(part, other.observation[group][key].cpu().numpy())


def test_a_policy_server_waits_once_for_each_request_and_never_to_learn_whose_chunk_is_used_up(gpu):
    with asking(openpi_at, conversation(Pi()), action_chunk_length=CHUNK) as policy:
        waits = waits_of(gpu, policy)
    assert waits == 2 * [NUM_ENVS, *[0] * (CHUNK - 1)]


# Servers that are lost at the worst moments: an episode goes on exactly, or is an error, and never something else.


QUESTION = 4
"""The question at which a server is lost; both episodes have begun by then."""


class VlaEvalServer(Model):
    """Answers by what it is shown, and by how often the session was asked in the episode: it remembers."""

    def __init__(self, asked: Hook) -> None:
        super().__init__(asked)
        self.answers = self.remembering

    def remembering(self, message: dict[str, Any], asked: int) -> list[bytes]:
        heard = next(heard for heard in self.heard if heard[-1] is message)
        # One that was told of no episode answers something else.
        since_start = 100
        for each in heard:
            since_start = 0 if each["type"] == "episode_start" else since_start + (each["type"] == "observation")
        return [packed("action", {"actions": array(self.action(message["payload"]) + since_start)}, message["seq"])]


@contextmanager
def served(wire: str, asked: Hook, directory: Path) -> Iterator[tuple[Cable, PolicyBase]]:
    """Serve a policy of a protocol behind a cable; ``asked`` is called for each question, before it is answered."""
    with serving_by(wire, asked, VlaEvalServer) as port, cable(port) as line:
        yield line, POLICIES[wire].from_dict(options_for(wire, line.port, directory))


class Played(Observer):
    """Writes down the actions of each episode, and how it ended."""

    def __init__(self, at_step: Callable[[int], None] = lambda step: None, at_end: Hook = lambda: None) -> None:
        self.episodes: dict[int, tuple[str, list[list[float]]]] = {}
        self._at_step, self._at_end = at_step, at_end
        self._actions: dict[int, list[list[float]]] = {}
        self._num_steps = 0

    def on_episode_start(self, environment, starts, observation) -> None:
        self._actions.update({start.env_id: [] for start in starts})

    def on_step(self, environment, transition) -> None:
        for env_id in torch.nonzero(transition.running).flatten().tolist():
            self._actions[env_id].append(transition.action[env_id].tolist())
        self._num_steps += 1
        self._at_step(self._num_steps)

    def on_episode_end(self, environment, record) -> None:
        self.episodes[record.episode.episode_index] = (record.termination, self._actions[record.env_id])
        self._at_end()


@pytest.fixture(scope="module", params=["gr00t", "openpi", "vla_eval"])
def undisturbed(request, tmp_path_factory) -> tuple[str, dict[int, Played]]:
    """A protocol, and what is played with 1 and 2 env slots while its server is not lost."""
    found = {1: Played(), 2: Played()}
    with served(request.param, lambda: None, tmp_path_factory.mktemp("undisturbed")) as (_, policy):
        for num_envs, played in found.items():
            rollout(LimbEnvironment(num_envs), policy, episodes(3), [played])
        policy.close()
    return request.param, found


@pytest.mark.parametrize("moment", ["first question", "question", "answer", "between episodes"])
def test_what_is_played_is_exact_whenever_a_server_is_lost(tmp_path, undisturbed, moment):
    wire, expected = undisturbed
    lines: list[Cable] = []
    num_asked = num_cut = 0

    def cut() -> None:
        nonlocal num_cut
        num_cut += 1
        if num_cut == 1:
            lines[0].cut()

    # A server has a thread for each connection: none may answer while another one's question cuts the cable.
    one_at_a_time = Lock()

    def asked() -> None:
        nonlocal num_asked
        with one_at_a_time:
            num_asked += 1
            if (num_asked, moment) in ((1, "first question"), (QUESTION, "question")):
                cut()

    # The other env slot would be in the middle of an episode.
    num_envs = 1 if moment == "between episodes" else 2
    played = Played(
        at_step=lambda step: cut() if (step, moment) == (2, "answer") else None,
        at_end=lambda: cut() if moment == "between episodes" else None,
    )
    goes_on = wire != "vla_eval" or moment in ("first question", "between episodes")
    with served(wire, asked, tmp_path) as (line, policy):
        lines.append(line)
        with nullcontext() if goes_on else pytest.raises(PolicyLostError, match="remembers"):
            rollout(LimbEnvironment(num_envs), policy, episodes(3), [played])
        lost = {index for index, (termination, _) in played.episodes.items() if termination == "policy_lost"}
        assert bool(lost) != goes_on
        left = sorted({*range(3)} - (played.episodes.keys() - lost))
        rollout(LimbEnvironment(num_envs), policy, [episodes(3)[index] for index in left], [played])
        policy.close()
    assert num_cut >= 1
    assert line.num_dialled > (1 if wire == "gr00t" else num_envs)
    assert played.episodes == expected[num_envs].episodes


# Servers that take the place of a model server of vla-eval, and answer with what no such server does.


Answer = Callable[[int], list[bytes | str]]

STEERING = "\x1b[2J\x1b]0;owned\x07evil"
FIVE = array(np.zeros(5))


def acting(actions: Any) -> Answer:
    return lambda number: [packed("action", {"actions": actions}, number)]


ANSWERS: dict[str, tuple[Answer, str]] = {
    "an error": (lambda number: [packed("error", {"error": "OSError: too dark"}, number)], "failed: OSError: too dark"),
    "an error that steers": (lambda number: [packed("error", {"error": STEERING * 999}, number)], "failed: "),
    "doubled": (lambda number: [packed("action", {"actions": FIVE}, number)] * 2, "repeats or skips"),
    "late": (lambda number: [packed("action", {"actions": FIVE}, number - 1)], "repeats or skips"),
    "another kind": (lambda number: [packed("hello", {}, number)], "with 'hello'"),
    "text": (lambda number: ["Traceback\x1b"], "sent text: Traceback"),
    "no msgpack": (lambda number: [b"\xc1"], "something else"),
    "too large": (lambda number: [bytes(ANSWER_LIMITS.max_message_bytes + 1)], "33554432"),
    "nothing": (lambda number: [packed("action", {}, number)], "got NoneType"),
    "a map without a type": (lambda number: [bytes(msgpack.packb({"actions": 1}) or b"")], "has a type"),
    "payload of text": (lambda number: [packed("action", "go", number)], "a map"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_action_is_an_error_of_the_policy(answer, message):
    model: Any = Model()
    model.answers = lambda heard, asked: answer(heard["seq"])
    with asking(vla_eval_at, model.talk) as policy, pytest.raises(PolicyError, match="vla-eval") as caught:
        rollout(LimbEnvironment(1), policy, episodes(1), [])
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
