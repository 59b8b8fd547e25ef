"""Ranks that share one policy server: what an episode does, and what is known of it, never depends on the others."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from isaaclab_arena.config.schema import PolicyServerConfig, ServerScope
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.policy_client import ServedNetwork
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.storage.reports import JobReport, ReportedStatus, Reproducible
from tests.environments.building import build
from tests.evaluation.jobs import coin_job, settings
from tests.evaluation.policy_server.serving import Socket
from tests.fakes import CoinConfig
from tests.fakes_network import RandomNetwork, ServablePolicy

SERVER = PolicyServerConfig(shared=ServerScope.NODE)
NUM_EPISODES = 6


class Actions(Observer):
    """Keeps the bits of every action, by episode."""

    sees_pictures = False

    def __init__(self) -> None:
        self.of: dict[int, list[bytes]] = {}
        self._in: dict[int, int] = {}

    def on_episode_start(self, environment, starts, observation):
        for start in starts:
            self._in[start.env_id] = start.episode.episode_index
            self.of[start.episode.episode_index] = []

    def on_step(self, environment, transition):
        for env_id in transition.running.nonzero().flatten().tolist():
            self.of[self._in[env_id]].append(transition.action[env_id].numpy().tobytes())


@pytest.fixture
def place(tmp_path):
    made = Socket(tmp_path)
    yield made
    made.listening.close()


def played(policy: ServablePolicy, episodes, num_envs: int) -> dict[int, list[bytes]]:
    """Play episodes of 12 steps, as a rank does; return the bits of their actions."""
    watching, environment = Actions(), build("reach", num_envs=num_envs)
    environment.max_episode_length = 12
    asked = (Episode(job="reach", episode_index=index, seed=3) for index in episodes)
    rollout(environment, policy, asked, [watching])
    environment.close()
    policy.close()
    return watching.of


@pytest.fixture(scope="module")
def without_server() -> dict[int, list[bytes]]:
    found = played(ServablePolicy(), range(NUM_EPISODES), num_envs=4)
    assert len({*map(tuple, found.values())}) == NUM_EPISODES
    return found


@pytest.mark.parametrize(("num_ranks", "num_envs"), [(1, 4), (2, 3), (3, 1)])
def test_actions_are_those_without_a_server_for_any_ranks_and_env_slots(place, without_server, num_ranks, num_envs):
    network = RandomNetwork()
    serving = place.serve(random=lambda: network)
    policies = [ServablePolicy.asking({}, ServedNetwork(place.address, "random")) for _ in range(num_ranks)]
    shares = [range(rank, NUM_EPISODES, num_ranks) for rank in range(num_ranks)]
    with ThreadPoolExecutor(num_ranks) as ranks:
        parts = list(ranks.map(played, policies, shares, [num_envs] * num_ranks))
    serving.close()
    assert {index: actions for part in parts for index, actions in part.items()} == without_server
    assert set(network.calls) == {8}


def run_job(tmp_path, address, observers=(), **changes) -> JobReport:
    coins = CoinConfig(success_step=5, failure_step=20)
    job = coin_job(policy_class=ServablePolicy, environment=coins, policy_server=SERVER, num_episodes=5, num_envs=4)
    runner = JobRunner(settings(tmp_path, policy_servers={SERVER: address}, **changes))
    report = runner.run(job, observers)
    runner.close()
    return report


def key_of_coins() -> str:
    job: Job = coin_job(policy_class=ServablePolicy, policy_server=SERVER)
    return job.network_key


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_job_promises_its_bits_and_says_what_it_took_of_the_server(tmp_path, place, num_groups):
    network = RandomNetwork()
    serving = place.serve(**{key_of_coins(): lambda: network})
    report = run_job(tmp_path, place.address, num_groups=num_groups)
    serving.close()
    assert (report.status, report.reproducible, report.policy_batch) == (
        ReportedStatus.COMPLETED,
        Reproducible.BITWISE,
        8,
    )
    used = report.policy_server
    assert used is not None
    # What the probe asked before the first step is no part of the job.
    assert used.entries == report.env_steps
    assert used.call_entries == 8 * used.calls
    assert 0 < used.calls < len(network.calls)


class Ends(Observer):
    """Ends a server for good after some steps."""

    sees_pictures = False

    def __init__(self, place: Socket, serving) -> None:
        self._place, self._serving, self._left = place, serving, 3

    def on_step(self, environment, transition):
        self._left -= 1
        if self._left == 0:
            self._serving.close()
            self._place.listening.close()


def test_the_end_of_the_rank_with_the_server_leaves_the_episodes_under_way_missing(tmp_path, place):
    serving = place.serve(**{key_of_coins(): RandomNetwork})
    report = run_job(tmp_path, place.address, [Ends(place, serving)])
    assert report.status is ReportedStatus.FAILED
    assert "the rank that ran the policy server" in str(report.error)
    assert [file.read_text() for file in tmp_path.glob("coins/*.jsonl")] == [""]
