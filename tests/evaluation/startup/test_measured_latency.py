"""How late answers are is measured once, and then stands for all ranks and for what is resumed."""

import dataclasses
import time
from functools import partial

import pytest

from isaaclab_arena.config.schema import Delays, JobStatus, LatencyConfig, Meanwhile, PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.latency import Answers
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import (
    NUM_QUERIES,
    Machinery,
    policy_as_served,
    query_times_ms,
    settle_latencies,
    settled_jobs,
    without_outliers,
)
from tests.evaluation.jobs import coin_job, request_of
from tests.evaluation.plants import NoisyChunks
from tests.evaluation.startup.test_backends_of_a_run import start_on
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, shrugging
from tests.fakes_network import ServablePolicy

MACHINERY = Machinery(devices=("cpu",), num_threads=1)
THREE = Delays(steps=((3, 1),), control_dt=0.1)


def measuring(
    builder: CoinBuilder, name: str = "coins", *, measured: bool = True, meanwhile: str = "wait", **config
) -> Job:
    how = Meanwhile(meanwhile)
    latency = LatencyConfig(measured=True, meanwhile=how) if measured else LatencyConfig(steps=(1, 1), meanwhile=how)
    return coin_job(name, builder=builder, latency=latency, **config)


def test_a_latency_is_a_distribution_of_queries_in_control_steps_and_a_policy_that_raises_has_none():
    builder = CoinBuilder()
    jobs = [measuring(CoinBuilder(), "broken", raise_at=1), measuring(builder)]
    # A policy that does nothing answers within one step of 100 ms.
    expected = {"coins": Delays(steps=((1, NUM_QUERIES),), control_dt=0.1)}
    assert settle_latencies(jobs, MACHINERY, known={}) == expected
    assert [(each.num_envs, each.closed) for each in builder.built] == [(1, True)]


def test_only_jobs_that_ask_for_it_are_to_run_and_were_not_measured_before_are_measured():
    builder = CoinBuilder()
    jobs = [measuring(builder), coin_job("plain", builder=builder), measuring(builder, "given", measured=False)]
    jobs.append(measuring(builder, "skipped", status=JobStatus.COMPLETED))
    assert settle_latencies(jobs, MACHINERY, known={"coins": THREE}) == {"coins": THREE}
    assert builder.built == []


def test_a_head_without_a_gpu_refuses_to_measure_for_ranks_that_have_one():
    builder = CoinBuilder()
    machinery = Machinery(devices=("cuda",), num_threads=1, measures=False)
    with pytest.raises(ConfigError, match="no GPU") as refused:
        settle_latencies([measuring(builder)], machinery, known={})
    assert [(each.job, each.key) for each in refused.value.problems] == [("coins", "latency")]
    assert builder.built == []
    assert settle_latencies([measuring(builder)], machinery, known={"coins": THREE}) == {"coins": THREE}


def test_every_rank_is_told_what_was_measured(tmp_path):
    builder = CoinBuilder()
    request = request_of(measuring(builder), coin_job("other", index=1), output_dir=str(tmp_path / "out"))
    ranks = start_on(["cpu", "cpu"], request)
    told = []
    for rank in ranks:
        assert rank.attempt is not None
        measured, other = settled_jobs(request.jobs, rank.attempt)
        assert other.delays is None
        told.append(measured.delays)
        assert [entry.latency for entry in rank.attempt.jobs] == [told[-1], None]
    assert told[0] == told[1] == ranks[0].plan.jobs[0].latency
    assert told[0] is not None
    assert len(builder.built) == 1


def test_one_slow_query_does_not_decide_how_late_answers_are():
    times_ms = [*range(1, 40), 5000]
    assert without_outliers(times_ms) == [*range(1, 40), 39]
    assert without_outliers([7.0, 7.0]) == [7.0, 7.0]


class QuickBuilder(CoinBuilder):
    """Builds coins with control steps of 4 ms."""

    def build(self, config, *, num_envs, device, num_threads):
        built = super().build(config, num_envs=num_envs, device=device, num_threads=num_threads)
        built.control_dt = 0.004
        return built


def test_what_is_too_late_is_refused_before_the_run_with_what_was_measured_and_a_way_out():
    builder = QuickBuilder()
    late = measuring(builder, "late", meanwhile="chunk", policy_class=shrugging(lambda *_: time.sleep(0.005)))
    with pytest.raises(ConfigError, match=r"use hold; .* ms \(p50\), .* ms \(p95\)") as refused:
        settle_latencies([late, measuring(CoinBuilder())], MACHINERY, known={})
    assert [(each.job, each.key) for each in refused.value.problems] == [("late", "latency.meanwhile")]
    assert [each.closed for each in builder.built] == [True]


class GoingOn(NoisyChunks):
    """Notes what it is to go on from."""

    TERM = "clock"

    def __init__(self) -> None:
        super().__init__()
        self.given = []

    def chunks(self, env, observation, env_ids, going_on=None):
        self.given.append(going_on)
        return super().chunks(env, observation, env_ids, going_on)


@pytest.mark.parametrize("continues", [True, False])
def test_queries_go_on_from_planned_actions_where_those_of_the_job_do(continues):
    policy, environment = GoingOn(), CoinEnvironment(CoinConfig(), 1)
    query_times_ms(policy, Answers(policy), environment, continues=continues)
    # Only the first query has nothing to go on from.
    assert [each is None for each in policy.given] == [True, *[not continues] * (len(policy.given) - 1)]
    assert not continues or all((each.weights[:, 0] == 1).all() for each in policy.given[1:])


def test_a_job_that_chunks_in_real_time_is_measured_going_on():
    given = []

    class Told(GoingOn):
        def __init__(self, config=None):
            super().__init__()
            given.append(self.given)

    job = measuring(CoinBuilder(), meanwhile="rtc", policy_class=Told)
    assert list(settle_latencies([job], MACHINERY, known={})) == ["coins"]
    assert sum(each is not None for each in given[0]) >= NUM_QUERIES


# The server is a process of its own, which imports torch.
def test_the_policy_in_a_runs_policy_server_is_the_one_that_is_measured(tmp_path):
    asked = []

    class Watched(ServablePolicy):
        @classmethod
        def asking(cls, options, network):
            asked.append(network)
            return super().asking(options, network)

    builder = CoinBuilder()
    job = measuring(builder, policy_class=Watched, policy_server=PolicyServerConfig(shared=ServerScope.RUN))
    job = dataclasses.replace(
        job, config=dataclasses.replace(job.config, policy_type="tests.fakes_network.ServablePolicy")
    )
    served = partial(policy_as_served, options=RunOptions(), output_directory=tmp_path)
    assert list(settle_latencies([job], MACHINERY, known={}, asked=served)) == ["coins"]
    assert asked[0].usage.queries >= NUM_QUERIES
    assert list(tmp_path.iterdir()) == []
