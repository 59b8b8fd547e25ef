"""Questions to the tables of a run."""

import dataclasses

import pytest

from isaaclab_arena.config.schema import Delays, LatencyConfig, Meanwhile
from isaaclab_arena.results.rows import JobEvidence
from isaaclab_arena.storage.reports import QueryPace, ServerUsage
from tests.results.evidence import commit_lines, job_row, planned, report


def evidence(outcomes: str, *reports) -> JobEvidence:
    return JobEvidence(job=planned(), finished=commit_lines(outcomes), reports=list(reports) or [report()])


def test_what_ranks_asked_of_a_policy_server_adds_up_and_a_job_without_one_says_nothing():
    used = ServerUsage(
        queries=10, entries=30, calls=10.0, call_entries=40.0, queue_s=0.5, busy_s=1.0,
        seen_s=4.0, seen_busy_s=2.0, seen_entries=60,
    )  # fmt: skip
    ranks = [report(rank=rank, wall_s=5.0, build_s=1.0, policy_server=used) for rank in (0, 1)]
    cells = job_row(evidence("s", *ranks))
    assert [cells[name] for name in ("server_queries", "server_entries")] == [20, 60]
    # Both ranks saw the same server for 4 s, of which it was busy for 2 s with what both asked.
    assert [cells[name] for name in ("server_offered_per_s", "server_busy_share")] == [15.0, 0.5]
    assert [cells[name] for name in ("server_batch_fill", "server_queue_ms")] == [0.75, 50.0]
    silent = job_row(evidence("s"))
    assert all(silent[name] is None for name in silent if name.startswith("server_"))


def test_a_server_is_never_busier_than_always_however_many_nodes_have_one_and_whatever_other_jobs_ask():
    # Two nodes: the server of the first is busy without a pause, half of it with another job's queries.
    first = ServerUsage(queries=10, entries=30, busy_s=1.9, seen_s=4.0, seen_busy_s=4.0, seen_entries=80)
    second = ServerUsage(queries=10, entries=30, busy_s=4.8, seen_s=6.0, seen_busy_s=5.0, seen_entries=40)
    ranks = [
        report(rank=rank, wall_s=7.0, build_s=1.0, policy_server=each) for rank, each in enumerate((first, second))
    ]
    cells = job_row(evidence("s", *ranks))
    assert cells["server_busy_share"] == 0.9
    assert cells["server_offered_per_s"] == 12.0
    # One query shows nothing of what the server does beside it.
    once = [report(policy_server=ServerUsage(queries=1, entries=1, busy_s=1.0))]
    assert job_row(evidence("s", *once))["server_busy_share"] is None


def test_a_job_with_late_answers_tells_what_was_assumed_what_it_came_to_and_what_was_true():
    metrics = [{"latency.stale_share": share, "latency.queries_per_s": 2.0} for share in (0.0, 1.0)]
    lines = [dataclasses.replace(line, metrics=own) for line, own in zip(commit_lines("sf"), metrics, strict=True)]
    config = LatencyConfig(ms=(120.0, 120.0), meanwhile=Meanwhile.CHUNK)
    job = dataclasses.replace(
        planned(),
        config=dataclasses.replace(planned().config, latency=config),
        latency=Delays(steps=((3, 1),), control_dt=0.05),
    )
    ranks = [report(rank=0, query_s=(0.010, 0.020)), report(rank=1, query_s=(0.030,))]
    cells = job_row(JobEvidence(job=job, finished=lines, reports=ranks))
    assert (cells["latency"], cells["meanwhile"]) == ("3 control steps of 50 ms", "chunk")
    # The episodes have 10 and 11 control steps.
    assert (cells["stale_action_share"], cells["queries_per_s"]) == (pytest.approx(11 / 21), 2.0)
    assert (cells["measured_latency_p50_ms"], cells["measured_latency_p95_ms"]) == (20.0, pytest.approx(29.0))
    silent = job_row(evidence("s"))
    assert all(silent[name] is None for name in ("latency", "meanwhile", "queries_per_s", "measured_latency_p50_ms"))


def waiting(outcomes: str, *reports) -> dict[str, object]:
    config = LatencyConfig(steps=(3, 3), meanwhile=Meanwhile.WAIT)
    job = dataclasses.replace(planned(), config=dataclasses.replace(planned().config, latency=config))
    return job_row(JobEvidence(job=job, finished=commit_lines(outcomes), reports=reports))


def test_while_the_world_waits_nothing_is_stale_and_queries_follow_from_the_lengths_of_episodes():
    paced = report(query_pace=QueryPace(steps=8, control_dt=0.05))
    # Episodes of 10 and 11 control steps have two queries each.
    cells = waiting("sf", report(rank=1), paced)
    assert (cells["stale_action_share"], cells["queries_per_s"]) == (0.0, pytest.approx(4 / (21 * 0.05)))
    assert (waiting("", paced)["stale_action_share"], waiting("", paced)["queries_per_s"]) == (None, None)
    # Whoever finished the episodes did not live to say how often it asked.
    assert waiting("sf")["queries_per_s"] is None
