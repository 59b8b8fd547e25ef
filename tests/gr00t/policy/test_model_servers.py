"""Model servers that are slow, lost or hostile."""

from collections.abc import Callable, Iterator, Mapping
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
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.observers import Observer
from isaaclab_arena.remote.openpi import OpenpiRemotePolicy
from isaaclab_arena.remote.protocols import ANSWER_LIMITS
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Gr00tClosedloopPolicyArgs, Modality
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import ClosedloopPolicy, Gr00tClosedloopPolicy
from tests.fakes_environment import episodes
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
    openpi_at,
    options_for,
    packed,
    serving_by,
    vla_eval_at,
)
from tests.outsiders.cables import Cable, cable
from tests.policy.playing import check_ranks_play_as_one, sharing
from tests.pretend_gpu import GPU, PretendGpu

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
