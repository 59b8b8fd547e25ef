"""Sessions of clients that come and go as they please, in env slots of one policy."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.serving import HostFullError, ObservationRefusedError, PolicyHost
from isaaclab_arena.interfaces.episode import Episode
from tests.evaluation.serving.hosts import CountingPolicy, CountingTogetherPolicy, hosting, played, showing

BOTH = pytest.mark.parametrize("policy_class", [CountingPolicy, CountingTogetherPolicy])


def noise(episode_index: int, count: int) -> list[float]:
    generator = Episode(job="coins", episode_index=episode_index, seed=3).policy_generator()
    return [generator.random() for _ in range(count)]


def together(host: PolicyHost) -> CountingTogetherPolicy:
    policy = host.policy.policy
    assert isinstance(policy, CountingTogetherPolicy)
    return policy


def due(episode_index: int, clocks: list[float]) -> list[list[float]]:
    drawn = noise(episode_index, len(clocks))
    sums = [float(np.float32(clock + one)) for clock, one in zip(clocks, drawn, strict=True)]
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
        assert host.statistics().queries == 3 * (2 + 3 + 4 + 5)


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
    assert (statistics.queries, statistics.calls) == (15, 5)


def test_a_query_that_shares_no_call_waits_for_no_other():
    with hosting(CountingPolicy, max_wait_s=1000.0) as host:
        session, silent = host.open(), host.open()
        silent.start_episode(Episode(job="coins", episode_index=1, seed=3))
        assert played(session, 0, [1.0, 2.0]) == due(0, [1.0, 2.0])
        assert host.statistics().calls == 2


def test_no_call_has_more_queries_than_it_may_have():
    with hosting(CountingTogetherPolicy, max_batch=2, max_wait_s=0.05) as host:
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(lambda number: played(host.open(), number, [1.0] * 5), range(4)))
        assert max(together(host).asked) <= 2


def test_a_policy_that_moves_every_env_slot_on_has_one_object_for_each():
    with hosting(CountingPolicy) as host:
        assert not host.policy.acts_together
        assert host.policy.environment.num_envs == 1
    with hosting(CountingTogetherPolicy) as host:
        assert host.policy.acts_together
        assert host.policy.environment.num_envs == 4


def test_the_client_the_job_and_the_environment_say_what_to_do_in_this_order():
    with hosting(CountingTogetherPolicy) as host:
        session = host.open()
        played(session, 0, [1.0], "toss it")
        played(session, 1, [1.0])
        assert together(host).words[1:] == ["toss it", "call the coin"]


def test_a_session_without_an_env_slot_is_refused_until_another_one_ends():
    with hosting(CountingTogetherPolicy, num_slots=2) as host:
        first, second = host.open(), host.open()
        with pytest.raises(HostFullError, match="all 2 env slots of the served policy are taken"):
            host.open()
        first.close()
        first.close()
        assert played(second, 5, [1.0]) == due(5, [1.0])
        assert played(opened(host), 6, [1.0]) == due(6, [1.0])
        with pytest.raises(HostFullError):
            opened(host)


def test_an_env_slot_stays_with_its_session_from_one_episode_to_the_next():
    with hosting(CountingTogetherPolicy, num_slots=2) as host:
        sessions = [host.open(), host.open()]
        for episode_index in range(3):
            for session in sessions:
                assert played(session, episode_index, [1.0, 2.0]) == due(episode_index, [1.0, 2.0])
        with pytest.raises(HostFullError):
            opened(host)


def opened(host: PolicyHost):
    """Return a session as soon as an env slot is given back, which happens on the host's own thread."""
    for _ in range(6_000):
        try:
            return host.open()
        except HostFullError:
            threading.Event().wait(0.01)
    return host.open()


def test_an_observation_that_is_refused_leaves_the_episode_as_it_was():
    with hosting(CountingTogetherPolicy) as host:
        session = host.open()
        assert played(session, 0, [1.0]) == due(0, [1.0])
        with pytest.raises(ObservationRefusedError, match="lacks the arrays of 'policy' 'heads'"):
            session.act({"policy": {"clock": np.zeros(1, np.float32)}})
        assert session.act(showing(2.0)).action.tolist() == due(0, [1.0, 2.0])[1]


@BOTH
def test_what_goes_wrong_in_the_policy_ends_the_episode_and_not_the_host(policy_class):
    with hosting(policy_class) as host:
        session, other = host.open(), host.open()
        session.start_episode(Episode(job="coins", episode_index=0, seed=3))
        with pytest.raises(ValueError, match="the clock runs backwards"):
            session.act(showing(-1.0))
        with pytest.raises(PolicyError, match="no episode is under way in this session"):
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
            session.ask(showing(13.0)).result(timeout=60.0)
        host.close()
        assert host.failure == "13 gigabytes"


def test_a_query_that_waits_when_the_host_is_closed_is_told_so():
    with hosting(CountingTogetherPolicy, max_wait_s=20.0) as host:
        session, other = host.open(), host.open()
        for each in (session, other):
            each.start_episode(Episode(job="coins", episode_index=0, seed=3))
        waiting = session.ask(showing(1.0))
        host.close()
        with pytest.raises(PolicyError, match="no longer served"):
            waiting.result(timeout=60.0)


def test_a_closed_host_answers_nobody():
    with hosting(CountingTogetherPolicy) as host:
        session = host.open()
        played(session, 0, [1.0])
        host.close()
        assert host.is_closed
        with pytest.raises(PolicyError, match="no longer served"):
            session.act(showing(1.0))
        with pytest.raises(HostFullError):
            host.open()
