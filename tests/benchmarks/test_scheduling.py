"""Benchmarks of scheduling."""

import dataclasses

import numpy as np
import pytest

from benchmarks.scheduling.cluster import ClusterOptions, SimulatedJob, lower_bound_s, simulate
from benchmarks.scheduling.scale import AIM, KINDS, Options, outcomes
from isaaclab_arena.interfaces.episode import count_episodes

CLUSTER = ClusterOptions(num_ranks=40, joining_s=20.0, start_up_s=10.0, build_s=5.0)


def jobs(episode_s: float = 4.0) -> list[SimulatedJob]:
    """Ten jobs of unequal length, two to an environment."""
    generator = np.random.default_rng(0)
    return [
        SimulatedJob(
            environment=f"environment {index // 2}",
            episode_s=episode_s * generator.lognormal(sigma=0.3, size=400 * (1 + index % 4)),
        )
        for index in range(10)
    ]


@pytest.mark.parametrize("failures_per_gpu_day", [0.0, 20.0, 500.0])
def test_every_episode_is_committed_once_and_no_run_beats_its_bound(failures_per_gpu_day):
    cluster = dataclasses.replace(CLUSTER, failures_per_gpu_day=failures_per_gpu_day)
    ended = simulate(jobs(), cluster, np.random.default_rng(1))
    assert ended.num_committed == sum(count_episodes(job.episodes) for job in jobs())
    assert ended.over_bound >= 1.0
    assert (ended.num_failures > 0) == (failures_per_gpu_day > 0)
    assert (ended.num_episodes_lost > 0) == (failures_per_gpu_day > 0)


@pytest.mark.parametrize(("kind", "within"), zip(KINDS, (AIM, 1.06, AIM), strict=True))
def test_a_tenth_of_the_ranks_of_the_page_keep_to_its_aim_or_come_near(kind, within):
    # A tenth of the ranks have a tenth of the work, so it ends as it does for a thousand, with more of it by chance.
    # An hour of episodes of a minute, of which the longest take ten, misses the aim by a thousandth.
    options = Options(ranks=100, draws=3, service_ms=0.4, word_ms=0.4)
    over = [each.over_bound for each in outcomes(kind, "RSC-1, jobs of 1,024 GPUs", options)]
    assert np.mean(over) <= within


def test_the_bound_counts_what_ranks_can_do_while_they_are_there():
    (job,) = [SimulatedJob(environment="one", episode_s=np.full(30, 1.0))]
    assert lower_bound_s([job], [(0.0, np.inf), (0.0, np.inf)], build_s=2.0) == pytest.approx(17.0)
    # The second rank was there for 8 s, 2 s of which it was building.
    assert lower_bound_s([job], [(0.0, np.inf), (4.0, 12.0)], build_s=2.0) == pytest.approx(26.0)
    assert lower_bound_s([job], [(0.0, np.inf), (0.0, np.inf)], build_s=2.0, lost_s=4.0) == pytest.approx(19.0)
    # Many ranks do not cut an episode.
    assert lower_bound_s([job], [(float(rank), np.inf) for rank in range(90)], build_s=0.0) > 1.0
