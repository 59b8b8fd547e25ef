"""A policy that other programs ask."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError, UnannouncedPictureError
from isaaclab_arena.evaluation.serving import (
    Begun,
    HostedPolicy,
    HostFullError,
    HostSession,
    ObservationRefusedError,
    PolicyHost,
    SlotAnswer,
    batched,
    checked_observation,
)
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import ArraySpec
from tests.end_to_end.launching import wait_until
from tests.evaluation.jobs import coin_job
from tests.fakes import CoinBuilder


class CountingPolicy(PolicyBase[None]):
    """Answers with the number of the step in the episode, and with what the clock shows plus the episode's noise."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self.noise: dict[int, np.random.Generator] = {}
        self.words: list[str] = []

    def reset(self, env_ids=None):
        self.words.clear()

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        for start in starts:
            self.steps[start.env_id] = 0
            self.noise[start.env_id] = start.episode.policy_generator()
            self.words.append(start.language_instruction)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            del self.steps[env_id]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.counted(env, observation, sorted(self.steps))

    def counted(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        action = torch.zeros(env.num_envs, *env.action_spec.shape)
        for env_id in env_ids:
            self.steps[env_id] += 1
            clock = float(observation["policy"]["clock"][env_id])
            if clock < 0:
                raise ValueError("the clock runs backwards")
            action[env_id] = torch.tensor([self.steps[env_id], clock + self.noise[env_id].random()])
        return action


class CountingTogetherPolicy(CountingPolicy):
    """Lets env slots wait, and remembers for how many it was asked in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        self.asked.append(len(env_ids))
        return self.counted(env, observation, env_ids)


def showing(clock: float) -> dict[str, dict[str, np.ndarray]]:
    return {"policy": {"clock": np.array([clock], np.float32), "heads": np.zeros(1, np.float32)}}


def played(session: HostSession, episode_index: int, clocks: Sequence[float]) -> list:
    """Return the actions of an episode of which a session shows the clock."""
    session.start_episode(Episode(job="coins", episode_index=episode_index, seed=3))
    return [session.act(showing(clock)).action.tolist() for clock in clocks]


@contextmanager
def hosting(policy_class: type[PolicyBase], num_slots: int = 4, **options) -> Iterator[PolicyHost]:
    host = PolicyHost(HostedPolicy(coin_job(policy_class=policy_class), num_slots), **options)
    try:
        yield host
    finally:
        host.close()


BOTH = pytest.mark.parametrize("policy_class", [CountingPolicy, CountingTogetherPolicy])


def together(host: PolicyHost) -> CountingTogetherPolicy:
    policy = host.policy.policy
    assert isinstance(policy, CountingTogetherPolicy)
    return policy


def due(episode_index: int, clocks: list[float]) -> list[list[float]]:
    noise = Episode(job="coins", episode_index=episode_index, seed=3).policy_generator()
    sums = [float(np.float32(clock + noise.random())) for clock in clocks]
    return [[step, number] for step, number in enumerate(sums, start=1)]


@BOTH
def test_each_session_has_episodes_and_a_memory_of_its_own_whoever_else_asks(policy_class):
    with hosting(policy_class) as host:

        def play(number: int) -> list:
            session = host.open()
            found = [played(session, 10 * number + each, [float(number)] * (2 + number)) for each in range(3)]
            session.close()
            return found

        with ThreadPoolExecutor(4) as clients:
            found = list(clients.map(play, range(4)))
        for number, episodes in enumerate(found):
            clocks = [float(number)] * (2 + number)
            assert episodes == [due(10 * number + each, clocks) for each in range(3)]
        assert host.statistics()["queries"] == 3 * (2 + 3 + 4 + 5)


def test_queries_that_wait_together_share_a_call():
    with hosting(CountingTogetherPolicy, max_wait_s=20.0) as host:
        sessions = [host.open() for _ in range(3)]
        meeting = threading.Barrier(3)

        def play(number: int) -> None:
            sessions[number].start_episode(Episode(job="coins", episode_index=number, seed=3))
            meeting.wait()
            for clock in range(5):
                sessions[number].act(showing(clock))
                meeting.wait()

        with ThreadPoolExecutor(3) as clients:
            list(clients.map(play, range(3)))
        asked = together(host).asked
        statistics = host.statistics()
    # The first call is the trial when the policy was built.
    assert asked[1:] == [3] * 5
    assert (statistics["queries"], statistics["calls"]) == (15, 5)


def test_the_client_the_job_and_the_environment_say_what_to_do_in_this_order():
    for job_says, last in (("roll it", "roll it"), (None, "call the coin")):
        with hosted(CountingTogetherPolicy, job_says) as policy:
            policy.start(0, *begun(0, "toss it"))
            policy.start(1, *begun(1))
            assert isinstance(policy.policy, CountingTogetherPolicy)
            assert policy.policy.words == ["toss it", last]


def test_the_trial_of_a_policy_leaves_no_trace_in_it():
    builder = CoinBuilder()
    with closing(HostedPolicy(coin_job(builder=builder, policy_class=CountingTogetherPolicy), 2)) as policy:
        assert isinstance(policy.policy, CountingTogetherPolicy)
        assert (policy.policy.steps, policy.policy.words) == ({}, [])
    assert [environment.closed for environment in builder.built] == [True]


def test_a_session_without_an_env_slot_is_refused_until_another_one_ends():
    with hosting(CountingTogetherPolicy, num_slots=2) as host:
        first, second = host.open(), host.open()
        # An env slot stays with its session from one episode to the next.
        for episode_index in (3, 4):
            assert played(first, episode_index, [1.0, 2.0]) == due(episode_index, [1.0, 2.0])
            with pytest.raises(HostFullError, match="all 2 env slots"):
                host.open()
        first.close()
        first.close()
        assert played(second, 5, [1.0]) == due(5, [1.0])
        # The host's own thread gives the env slot back.
        wait_until(lambda: host.statistics()["sessions"] == 1)
        third = host.open()
        assert third.env_id not in together(host).steps, "the episode before has ended"
        assert played(third, 6, [1.0]) == due(6, [1.0])
        with pytest.raises(HostFullError):
            host.open()


def test_an_observation_that_is_refused_leaves_the_episode_as_it_was():
    with hosting(CountingTogetherPolicy) as host:
        session = host.open()
        assert played(session, 0, [1.0]) == due(0, [1.0])
        with pytest.raises(ObservationRefusedError, match="'policy' 'heads'"):
            session.act({"policy": {"clock": np.zeros(1, np.float32)}})
        assert session.act(showing(2.0)).action.tolist() == due(0, [1.0, 2.0])[1]


@BOTH
def test_what_goes_wrong_in_the_policy_ends_the_episode_and_not_the_host(policy_class):
    with hosting(policy_class) as host:
        session, other = host.open(), host.open()
        session.start_episode(Episode(job="coins", episode_index=0, seed=3))
        with pytest.raises(ValueError, match="the clock runs backwards"):
            session.act(showing(-1.0))
        with pytest.raises(PolicyError, match="no episode"):
            session.act(showing(1.0))
        assert played(other, 1, [1.0, 2.0]) == due(1, [1.0, 2.0])
        assert played(session, 2, [1.0, 2.0]) == due(2, [1.0, 2.0])
        assert host.failure is None


class GreedyPolicy(CountingTogetherPolicy):
    """Needs more memory than there is, once the clock stands at 13."""

    def act_in_some(self, env, observation, env_ids):
        if (observation["policy"]["clock"] == 13).any():
            raise torch.OutOfMemoryError("13 gigabytes")
        return super().act_in_some(env, observation, env_ids)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_policy_without_memory_ends_the_host_and_whoever_asked_is_told():
    with hosting(GreedyPolicy) as host:
        session = host.open()
        session.start_episode(Episode(job="coins", episode_index=0, seed=3))
        with pytest.raises(PolicyError, match="no longer served"):
            session.act(showing(13.0))
        host.close()
        assert host.failure == "13 gigabytes"


def test_a_query_that_waits_when_the_host_is_closed_or_comes_afterwards_is_told_so():
    with hosting(CountingTogetherPolicy, max_wait_s=20.0) as host:
        session, other = host.open(), host.open()
        for each in (session, other):
            each.start_episode(Episode(job="coins", episode_index=0, seed=3))
        shown = checked_observation(showing(1.0), host.policy.environment.observation_spec)
        waiting = host.submit((session.env_id, begun(0), shown))
        host.close()
        assert host.is_closed
        with pytest.raises(PolicyError, match="no longer served"):
            waiting.result(timeout=60.0)
        with pytest.raises(PolicyError, match="no longer served"):
            other.act(showing(1.0))
        with pytest.raises(HostFullError):
            host.open()


def hosted(policy_class: type[PolicyBase], words: str | None = None) -> "closing[HostedPolicy]":
    return closing(HostedPolicy(coin_job(policy_class=policy_class, language_instruction=words), 2))


def asked(policy: HostedPolicy, env_id: int, clock: float) -> SlotAnswer | Exception:
    return policy.act({env_id: checked_observation(showing(clock), policy.environment.observation_spec)})[env_id]


def begun(episode_index: int, instruction: str | None = None) -> Begun:
    return Episode(job="coins", episode_index=episode_index, seed=3), instruction


class BorrowingPolicy(CountingPolicy):
    """Has a network that others with a memory of their own may share."""

    networks_made = 0
    open_ones: set["BorrowingPolicy"] = set()  # noqa: RUF012  of all instances

    def __init__(self, network: object | None = None) -> None:
        super().__init__()
        self.open_ones.add(self)
        if network is None:
            type(self).networks_made += 1
        self.network_of_all = network or object()

    def with_own_memory(self) -> "BorrowingPolicy":
        return type(self)(self.network_of_all)

    def close(self) -> None:
        self.open_ones.remove(self)


def test_sessions_share_a_network_and_no_memory():
    made_before = BorrowingPolicy.networks_made
    with hosted(BorrowingPolicy) as policy:
        loaded = BorrowingPolicy.networks_made - made_before
        for env_id in (0, 1):
            policy.start(env_id, *begun(env_id))
        steps = [
            answer.action[0] for env_id in (0, 1, 0) if isinstance(answer := asked(policy, env_id, 1.0), SlotAnswer)
        ]
        assert steps == [1, 1, 2]
        assert BorrowingPolicy.networks_made - made_before == loaded
        assert len(BorrowingPolicy.open_ones) == 2
    assert not BorrowingPolicy.open_ones


class NeighbourlyPolicy(PolicyBase[None]):
    """The last places of a batch differ from the others, unless its size is a multiple of one that it likes."""

    name = "neighbourly"
    traits = PolicyTraits(reproducible=True)
    liked = 8

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        return answered(observation["policy"]["clock"], self.liked)


def answered(clock: torch.Tensor, liked: int) -> torch.Tensor:
    action = torch.cat([clock, clock], dim=1)
    if len(action) % liked:
        action[-1] += 1e-3
    return action


class SelfishPolicy(NeighbourlyPolicy):
    """Likes no size at all."""

    liked = 1000


class DividingPolicy(NeighbourlyPolicy):
    """Divides its calls, and likes those of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.size: int | None = None

    def slots_per_call(self, num_envs: int) -> int | None:
        return 3

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        self.size = num_slots

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        clock, size = observation["policy"]["clock"], self.size or 3
        parts = [clock[first : first + size] for first in range(0, len(clock), size)]
        filled = [torch.cat([part, torch.zeros(size - len(part), 1)]) for part in parts]
        return torch.cat([answered(each, self.liked) for each in filled])[: env.num_envs]


@pytest.mark.parametrize(
    ("policy_class", "num_envs", "slots_per_call"),
    [(NeighbourlyPolicy, 8, 8), (SelfishPolicy, 3, 3), (DividingPolicy, 3, 8)],
)
def test_a_call_is_filled_up_until_no_client_changes_the_answers_of_another_or_it_is_said(
    caplog, policy_class, num_envs, slots_per_call
):
    hosted = HostedPolicy(coin_job(policy_class=policy_class), 3)
    found = hosted.environment.num_envs, hosted.slots_per_call
    hosted.close()
    assert found == (num_envs, slots_per_call)
    assert hosted.num_slots == 3
    assert ("a call of 3 env slots" in caplog.text) is (policy_class is SelfishPolicy)


SPEC = {
    "policy": {"joints": ArraySpec(shape=(3,)), "stage": ArraySpec(shape=(1,), dtype=torch.int64)},
    "camera_obs": {"front": ArraySpec(shape=(2, 2, 3), dtype=torch.uint8)},
}


def shown(**changes) -> dict:
    policy = {"joints": np.arange(3.0), "stage": np.array([2]), **changes}
    return {"policy": {name: value for name, value in policy.items() if value is not None}}


def pictures(value: int = 7) -> dict:
    return {"camera_obs": {"front": np.full((2, 2, 3), value, np.uint8)}}


def test_numbers_come_in_the_types_of_the_environment():
    checked = checked_observation({**shown(), **pictures()}, SPEC)
    assert checked["policy"]["joints"].dtype == torch.float32
    assert checked["policy"]["joints"].tolist() == [0.0, 1.0, 2.0]
    assert checked["camera_obs"]["front"].tolist() == torch.full((2, 2, 3), 7).tolist()
    big_endian = checked_observation(shown(joints=np.arange(3, dtype=">f8")), SPEC)
    assert big_endian["policy"]["joints"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        (shown(joints=None), "lacks .*'policy' 'joints'"),
        (shown(joint=np.zeros(3)), "'joint'; did you mean 'joints'"),
        ({**shown(), "camera": {}}, "unknown groups: 'camera'"),
        ({"policy": [1, 2]}, "'policy' .* a list"),
        (shown(joints=np.zeros(4)), r"'policy.joints' .* \(4,\), expected \(3,\)"),
        (shown(joints=np.array([0, np.nan, 0])), "'policy.joints' holds NaN"),
        (shown(joints=np.array([0, np.inf, 0])), "'policy.joints' holds NaN"),
        (shown(joints=np.array(["a", "b", "c"])), "'policy.joints' .* <U1"),
        (shown(joints=[1.0, 2.0, 3.0]), "'policy.joints' .* a list"),
        (shown(stage=np.array([2.5])), "'policy.stage' .* torch.float64, expected torch.int64"),
        ({**shown(), "camera_obs": {"front": np.zeros((3, 2, 2), np.uint8)}}, r"'camera_obs.front' .* \(3, 2, 2\)"),
        ({**shown(), "camera_obs": {"front": np.zeros((2, 2, 3))}}, "'camera_obs.front' .* torch.float64"),
        ({**shown(), "camera_obs": {}}, "lacks .*'camera_obs' 'front'"),
    ],
)
def test_anything_else_is_refused_by_name(observation, told):
    with pytest.raises(ObservationRefusedError, match=told):
        checked_observation(observation, SPEC)


def test_a_batch_has_zeros_where_nobody_asks_and_no_picture_that_nobody_sent():
    one, other = checked_observation({**shown(), **pictures()}, SPEC), checked_observation(shown(), SPEC)
    batch = batched({1: one, 3: one}, SPEC, 4)
    assert batch["policy"]["joints"].tolist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0], [0, 1, 2]]
    assert batch["camera_obs"]["front"].float().mean(dim=(1, 2, 3)).tolist() == [0, 7, 0, 7]
    some = batched({1: one, 3: other}, SPEC, 4)["camera_obs"]["front"]
    assert some[1].float().mean() == 7
    with pytest.raises(UnannouncedPictureError, match="'front' of env slots 3"):
        some[3]
