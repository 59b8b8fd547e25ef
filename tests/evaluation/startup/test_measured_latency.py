"""How late answers are is measured once, and then stands for all ranks and for what is resumed."""

import dataclasses

from isaaclab_arena.config.latency import Delays, LatencyConfig
from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.evaluation.latency.job_latency import JobLatency
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.startup.measured_latency import NUM_QUERIES, settle_latencies, with_latencies
from isaaclab_arena.evaluation.startup.settled_backends import Machinery
from isaaclab_arena.storage.run.attempts import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.fakes import CoinBuilder

MACHINERY = Machinery(devices=("cpu",), num_threads=1)
THREE = Delays(steps=((3, 1),), control_dt=0.1)


def measuring(builder: CoinBuilder, name: str = "coins", *, measured: bool = True, **config) -> Job:
    latency = LatencyConfig(measured=True) if measured else LatencyConfig(steps=(1, 1))
    job = coin_job(name, builder=builder, latency=latency, **config)
    return dataclasses.replace(job, latency=JobLatency(config=latency))


def test_a_latency_is_a_distribution_of_queries_that_took_place_in_control_steps():
    builder = CoinBuilder()
    settled = settle_latencies([measuring(builder)], MACHINERY, known={})
    # A policy that does nothing answers within one step of 100 ms.
    assert settled == {"coins": Delays(steps=((1, NUM_QUERIES),), control_dt=0.1)}
    assert [(each.num_envs, each.closed) for each in builder.built] == [(1, True)]


def test_what_was_measured_when_the_run_began_stands():
    builder = CoinBuilder()
    assert settle_latencies([measuring(builder)], MACHINERY, known={"coins": THREE}) == {"coins": THREE}
    assert builder.built == []


def test_only_jobs_that_ask_for_it_and_are_to_run_are_measured():
    builder = CoinBuilder()
    jobs = [coin_job(builder=builder), measuring(builder, measured=False)]
    assert settle_latencies([*jobs, measuring(builder, status=JobStatus.COMPLETED)], MACHINERY, known={}) == {}
    assert builder.built == []


def test_a_job_whose_policy_raises_is_left_to_fail_by_itself():
    jobs = [measuring(CoinBuilder(), "broken", raise_at=1), measuring(CoinBuilder())]
    assert list(settle_latencies(jobs, MACHINERY, known={})) == ["coins"]


def test_every_rank_is_told_what_was_measured():
    work = [AttemptEntry(job="coins", finished=()), AttemptEntry(job="other", finished=())]
    assert [each.latency for each in with_latencies(work, {"coins": THREE})] == [THREE, None]
