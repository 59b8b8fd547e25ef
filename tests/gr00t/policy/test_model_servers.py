"""Model servers that are slow, lost or hostile."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from isaaclab_arena import PolicyLostError
from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.environments import Episode
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.observers import Observer
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Gr00tClosedloopPolicyArgs, Modality
from isaaclab_arena_gr00t.policy.closedloop import ClosedloopPolicy
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from isaaclab_arena_gr00t.policy.openpi_remote_policy import OpenpiRemotePolicy
from isaaclab_arena_gr00t.remote.protocols import ANSWER_LIMITS
from tests.fakes_environment import ActionLog, episodes
from tests.fakes_network import Desk
from tests.gr00t.fakes import (
    DIMENSIONS,
    HORIZON,
    MODALITIES,
    FakeModality,
    LimbEnvironment,
    LimbPolicy,
    network_answer,
    write_policy_yaml,
)
from tests.gr00t.policy import model_servers, test_openpi_remote_policy, test_vla_eval_remote_policy
from tests.gr00t.policy.model_servers import Model, array, packed
from tests.gr00t.policy.model_servers import serving as hostile_serving
from tests.gr00t.policy.test_gr00t_remote_closedloop_policy import remote_policy
from tests.gr00t.policy.test_openpi_remote_policy import Pi, conversation, policy_at, talking
from tests.gr00t.policy.test_vla_eval_remote_policy import episodes as hostile_episodes
from tests.gr00t.policy.test_vla_eval_remote_policy import policy_at as hostile_policy_at
from tests.gr00t.servers import NetworkPolicy, serving
from tests.outsiders.cables import Cable, cable
from tests.pretend_gpu import GPU, PretendGpu

# A GR00T model in a policy server answers as the same model in the rank's own process, whoever else asks.


class RandomModel:
    """A model package's policy, whose last digits change with the size of a call."""

    honoured_options = ("noise_seeds",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def get_modality_config(self):
        return MODALITIES

    def get_dimensions(self):
        return DIMENSIONS

    def get_action(self, observation: dict[str, Any], options: dict[str, Any]):
        self.sizes.append(len(options["noise_seeds"]))
        return network_answer(observation, options["noise_seeds"]), {}


class ContinuingModel(RandomModel):
    """Its chunks lie between what they go on from and what they would be without."""

    honoured_options = ("noise_seeds", "continued")

    def get_action(self, observation: dict[str, Any], options: dict[str, Any]):
        actions, _ = super().get_action(observation, options)
        going_on = options["continued"]
        weights = np.asarray(going_on["weights"])[:, :, None]
        return {key: own + weights * (going_on["actions"][key] - own) for key, own in actions.items()}, {}


class NoisyModel(RandomModel):
    """Draws its noise without being told from which seeds."""

    honoured_options = ()


@pytest.fixture
def options(tmp_path) -> dict[str, str]:
    return {"policy_config_yaml_path": str(write_policy_yaml(tmp_path)), "policy_device": "cpu"}


def played(policy: PolicyBase, indices, num_envs: int) -> dict[int, bytes]:
    log = ActionLog()
    wanted = [each for each in episodes(6) if each.episode_index in indices]
    with torch.no_grad():
        rollout(LimbEnvironment(num_envs), policy, wanted, [log])
    policy.close()
    return {index: actions.numpy().tobytes() for index, actions in log.actions.items()}


def test_ranks_that_share_a_model_play_the_same_bits_as_one_with_its_own(options):
    own = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=RandomModel())
    alone = played(own, range(6), num_envs=3)

    model = RandomModel()
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=model).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [Gr00tClosedloopPolicy.asking(options, Desk(batcher, network)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    batcher.close()
    assert {index: actions for part in parts for index, actions in part.items()} == alone
    assert set(model.sizes) == {4}


def test_late_chunks_go_on_from_each_other_as_well_when_the_model_is_shared(options):
    def late(policy: Gr00tClosedloopPolicy) -> LatePolicy:
        assert policy.chunk_traits().can_continue
        return LatePolicy(policy, Delays(steps=((1, 1), (2, 1)), control_dt=0.1), Meanwhile.RTC, QueryTimes())

    own = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=ContinuingModel())
    alone = played(late(own), range(6), num_envs=3)
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=ContinuingModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [late(Gr00tClosedloopPolicy.asking(options, Desk(batcher, network))) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(played, ranks, [(0, 2, 4), (1, 3, 5)], [1, 2]))
    batcher.close()
    assert parts[0] | parts[1] == alone


def test_a_shared_model_that_cannot_go_on_from_actions_says_so(options):
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=RandomModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    assert not Gr00tClosedloopPolicy.asking(options, Desk(batcher, network)).chunk_traits().can_continue
    batcher.close()


def test_a_model_whose_noise_depends_on_its_neighbours_promises_the_plan_alone(options):
    network = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(**options), model=NoisyModel()).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    policy = Gr00tClosedloopPolicy.asking(options, Desk(batcher, network))
    assert not policy.traits.reproducible
    assert "depends on the rows that share its query" in str(policy.traits.plan_because)
    batcher.close()


# How often the CPU waits for a GPU when a GR00T model is asked, counted with a pretended one.


NUM_ENVS, CHUNK = 3, 4
LOOKS_BACK: Mapping[str, Modality] = {
    **MODALITIES,
    "video": FakeModality(delta_indices=[-2, 0], modality_keys=["ego", "aside"]),
    "state": FakeModality(delta_indices=[-1, 0], modality_keys=["arm", "leg", "hand"]),
}


class LimbsOnGpu(LimbEnvironment):
    """Limbs whose observations are on the pretended GPU."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.device = GPU

    def observe(self) -> Observation:
        return with_leaves(self._observe(), lambda part: part.to(GPU))


class TakesTensors(LimbPolicy):
    """Notes where what it is asked about is, and answers with zeros."""

    _takes_tensors = True

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        return {
            key: np.zeros((len(noise_seeds), HORIZON, size), np.float32) for key, size in DIMENSIONS["action"].items()
        }


class TakesArrays(TakesTensors):
    """As a model of another package, which knows arrays alone."""

    _takes_tensors = False


class LooksBack(TakesTensors):
    """Is shown earlier steps too."""

    modalities = LOOKS_BACK


def waits_of_calls(gpu: PretendGpu, directory: Path, policy_class: type[LimbPolicy]) -> tuple[list[int], LimbPolicy]:
    """Number of CPU waits in each call of a policy from the second chunk on, and the policy."""
    policy = policy_class(ClosedloopPolicyArgs(policy_config_yaml_path=write_policy_yaml(directory)))
    return waits_of(gpu, policy), policy


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
    waits, policy = waits_of_calls(gpu, tmp_path, policy_class)
    assert waits == [0] * 2 * CHUNK
    asked = policy.queries[-1].observation
    assert {part.device for group in ("video", "state") for part in asked[group].values()} == {GPU}


def test_a_model_that_knows_arrays_alone_waits_once_for_all_of_them_when_it_is_asked(gpu, tmp_path):
    waits, policy = waits_of_calls(gpu, tmp_path, TakesArrays)
    asked = policy.queries[-1].observation
    num_arrays = sum(isinstance(part, np.ndarray) for group in ("video", "state") for part in asked[group].values())
    assert (num_arrays, waits) == (5, 2 * [1, *[0] * (CHUNK - 1)])


def test_a_policy_server_waits_once_for_each_request_and_never_to_learn_whose_chunk_is_used_up(gpu):
    with talking(conversation(Pi())) as port:
        policy = policy_at(port, action_chunk_length=CHUNK)
        waits = waits_of(gpu, policy)
        policy.close()
    assert waits == 2 * [NUM_ENVS, *[0] * (CHUNK - 1)]


def test_arrays_and_tensors_hold_the_same_bits(gpu, tmp_path):
    (_, arrays), (_, tensors) = (waits_of_calls(gpu, tmp_path, each) for each in (TakesArrays, TakesTensors))
    for one, other in zip(arrays.queries, tensors.queries, strict=True):
        for group in ("video", "state"):
            for key, part in one.observation[group].items():
                np.testing.assert_array_equal(part, other.observation[group][key].cpu().numpy())


# Servers that are lost at the worst moments: an episode goes on exactly, or is an error, and never something else.


QUESTION = 4
"""The question at which a server is lost; both episodes have begun by then."""

Hook = Callable[[], None]


class Gr00tServer(NetworkPolicy):
    """Answers by what it is shown and the seeds of the noise."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked

    def get_action(self, observation: Any, options: Any = None) -> Any:
        self.asked()
        return super().get_action(observation, options)


class OpenpiServer(test_openpi_remote_policy.PiWithoutMemory):
    """Answers by what it is shown."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked

    def infer(self, request: dict[str, Any]) -> Any:
        self.asked()
        return super().infer(request)


class VlaEvalServer(model_servers.Model):
    """Answers by what it is shown, and by how often the session was asked in the episode: it remembers."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked
        self.answers = self.remembering

    def remembering(self, message: dict[str, Any], asked: int) -> list[bytes]:
        self.asked()
        heard = next(heard for heard in self.heard if heard[-1] is message)
        # One that was told of no episode answers something else.
        since_start = 100
        for each in heard:
            since_start = 0 if each["type"] == "episode_start" else since_start + (each["type"] == "observation")
        action = self.action(message["payload"]) + since_start
        return [model_servers.packed("action", {"actions": model_servers.array(action)}, message["seq"])]


@contextmanager
def served(wire: str, asked: Hook, directory: Path) -> Iterator[tuple[Cable, PolicyBase]]:
    """Serve a policy of a protocol behind a cable; ``asked`` is called for each question, before it is answered."""
    if wire == "gr00t":
        with serving(Gr00tServer(asked)) as server, cable(server.port) as line:
            yield line, remote_policy(write_policy_yaml(directory), line.port)
    elif wire == "openpi":
        talk = test_openpi_remote_policy.conversation(OpenpiServer(asked))
        with test_openpi_remote_policy.talking(talk) as port, cable(port) as line:
            yield line, test_openpi_remote_policy.policy_at(line.port)
    else:
        with model_servers.serving(VlaEvalServer(asked).talk) as port, cable(port) as line:
            yield line, test_vla_eval_remote_policy.policy_at(line.port)


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


def lost_episodes(indices: Any) -> list[Episode]:
    return [Episode(job="limb", episode_index=index, seed=7) for index in indices]


@pytest.mark.parametrize("wire", ["gr00t", "openpi", "vla_eval"])
@pytest.mark.parametrize("moment", ["first question", "question", "answer", "between episodes"])
def test_what_is_played_is_exact_whenever_a_server_is_lost(tmp_path, wire, moment):
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
    with served(wire, lambda: None, tmp_path) as (_, policy):
        undisturbed = Played()
        rollout(LimbEnvironment(num_envs), policy, lost_episodes(range(3)), [undisturbed])
        policy.close()
    played = Played(
        at_step=lambda step: cut() if (step, moment) == (2, "answer") else None,
        at_end=lambda: cut() if moment == "between episodes" else None,
    )
    goes_on = wire != "vla_eval" or moment in ("first question", "between episodes")
    with served(wire, asked, tmp_path) as (line, policy):
        lines.append(line)
        lost_for_good = pytest.raises(PolicyLostError, match="it remembers what it was shown")
        with nullcontext() if goes_on else lost_for_good:
            rollout(LimbEnvironment(num_envs), policy, lost_episodes(range(3)), [played])
        lost = {index for index, (termination, _) in played.episodes.items() if termination == "policy_lost"}
        assert bool(lost) != goes_on
        left = sorted({*range(3)} - (played.episodes.keys() - lost))
        rollout(LimbEnvironment(num_envs), policy, lost_episodes(left), [played])
        policy.close()
    assert num_cut >= 1
    assert line.num_dialled > (1 if wire == "gr00t" else num_envs)
    assert played.episodes == undisturbed.episodes


# Servers that take the place of a model server of vla-eval, and answer with what no such server does.


Answer = Callable[[int], list[bytes | str]]

STEERING = "\x1b[2J\x1b]0;owned\x07evil"
FIVE = array(np.zeros(5))


def acting(actions: Any) -> Answer:
    return lambda number: [packed("action", {"actions": actions}, number)]


ANSWERS: dict[str, tuple[Answer, str]] = {
    "an error": (lambda number: [packed("error", {"error": "OSError: too dark"}, number)], "failed: OSError: too dark"),
    "an error that steers": (lambda number: [packed("error", {"error": STEERING * 999}, number)], "failed: "),
    "doubled": (lambda number: [packed("action", {"actions": FIVE}, number)] * 2, "it repeats or skips one"),
    "late": (lambda number: [packed("action", {"actions": FIVE}, number - 1)], "it repeats or skips one"),
    "another kind": (lambda number: [packed("hello", {}, number)], "answered an observation with 'hello'"),
    "text": (lambda number: ["Traceback\x1b"], "sent text: Traceback"),
    "no msgpack": (lambda number: [b"\xc1"], "sent something else than such a server does"),
    "nothing": (lambda number: [packed("action", {}, number)], "'actions' of at least 1 steps, got NoneType"),
    "a list": (acting([0.0] * 5), "got list"),
    "too few numbers": (acting(array(np.zeros(4))), "has 4 numbers, the"),
    "three dimensions": (acting(array(np.zeros((1, 1, 5)))), "got (1, 1, 5)"),
    "NaN": (acting(array([np.nan] * 5)), "not finite"),
    "beyond float32": (acting(array([1e300] * 5, "<f8")), "not finite in float32, such as 1e+300"),
    "objects": (acting(FIVE | {"dtype": "|O"}), "sent something else"),
    "declared huge": (acting(FIVE | {"shape": [2**40]}), "sent something"),
    "a map without a type": (lambda number: [bytes(msgpack.packb({"actions": 1}) or b"")], "a message has a type"),
    "payload of text": (lambda number: [packed("action", "go", number)], "a message has text, a map"),
    "deeply nested": (lambda number: [b"\x91" * 100 + b"\xc0"], "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_action_is_an_error_of_the_policy(answer, message):
    model: Any = Model()
    model.answers = lambda heard, asked: answer(heard["seq"])
    with hostile_serving(model.talk) as port:
        policy = hostile_policy_at(port)
        with pytest.raises(PolicyError, match="vla-eval") as caught:
            rollout(LimbEnvironment(1), policy, hostile_episodes(1), [])
        policy.close()
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_an_answer_that_is_too_large_is_not_taken():
    model: Any = Model()
    model.answers = lambda heard, asked: [bytes(ANSWER_LIMITS.max_message_bytes + 1)]
    with hostile_serving(model.talk) as port:
        policy = hostile_policy_at(port)
        with pytest.raises(PolicyError, match="the answer has more bytes than the 33554432 that are allowed"):
            rollout(LimbEnvironment(1), policy, hostile_episodes(1), [])
        policy.close()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            bytes(msgpack.packb({"policy": "pi"}) or b""),
            "of another kind (openpi policy server)",
        ),
        (
            packed("hello", {"protocol_version": 2}, 1),
            "speaks version the int '2' of the protocol, and 1 is known here",
        ),
        (packed("hello", {}, 1), "speaks version the NoneType"),
        (packed("action", {}, 1), "answered hello with 'action'"),
        (packed("error", {"error": "no"}, 1), "failed: no"),
        ("hello", "sent text: hello"),
    ],
    # The messages hold the time, which would be another in each process of the tests.
    ids=["openpi", "a later version", "no version", "an action", "an error", "text"],
)
def test_a_server_of_another_protocol_is_known_by_its_first_answer(first, message):
    with hostile_serving(lambda connection: connection.send(first)) as port, pytest.raises(PolicyError) as caught:
        hostile_policy_at(port)
    assert message in str(caught.value)
