"""What the table promises of a job, and the columns beside it, from what ranks and attempts leave on disk."""

import dataclasses
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.results.merge import merge_results, records
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import read_commits, write_attempt
from isaaclab_arena.storage.reports import JobReport, ReportedStatus, Reproducible
from tests.evaluation.jobs import coin_job, settings
from tests.results.evidence import attempt, commit_lines, planned, report, write_lines, write_plan, write_report

BITWISE, PLAN = Reproducible.BITWISE, Reproducible.PLAN
HERE = Node(host="here", cpu="some", cores=2, platform="Linux")


def merged(directory: Path, *reports: JobReport, attempts: tuple[Any, ...] = (), **job: Any) -> dict[str, Any]:
    """Return the row of a job of ten finished episodes that left some reports, in a run of some attempts."""
    write_plan(directory, planned(**job), world_size=2)
    write_lines(directory, commit_lines("sfsfsfsfsf"))
    for each in reports:
        write_report(directory, each)
    for each in attempts:
        write_attempt(directory, each)
    (row,) = records(merge_results(directory).jobs)
    return row


@pytest.mark.parametrize(
    ("promises", "expected"),
    [
        ([BITWISE, BITWISE], "bitwise"),
        ([BITWISE, PLAN], "plan"),
        ([PLAN, BITWISE], "plan"),
        ([PLAN, PLAN], "plan"),
        ([BITWISE, None], "bitwise"),
        ([None, PLAN], "plan"),
        ([None, None], None),
    ],
)
def test_a_job_that_ranks_share_promises_what_all_of_them_promise(tmp_path, promises, expected):
    shares = [report(rank=rank, reproducible=promise) for rank, promise in enumerate(promises)]
    assert merged(tmp_path, *shares)["reproducible"] == expected


def test_what_an_earlier_attempt_could_not_promise_no_later_one_can(tmp_path):
    """Its episodes are in the same rate."""
    attempts = [report(attempt=1, reproducible=PLAN, status="interrupted"), report(attempt=2, reproducible=BITWISE)]
    assert merged(tmp_path, *attempts)["reproducible"] == "plan"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "bitwise"),
        ({"machine": dataclasses.replace(HERE, host="there", cores=64)}, "bitwise"),
        ({"world_size": 3, "devices": ("cpu",) * 3, "command_line": ("--resume",)}, "bitwise"),
        ({"machine": dataclasses.replace(HERE, cpu="another")}, "plan"),
        ({"machine": dataclasses.replace(HERE, platform="Darwin")}, "plan"),
        ({"versions": {"torch": "2.13.1", "mujoco": "4.0.0"}}, "plan"),
        ({"versions": {"torch": "2.13.0"}}, "plan"),
        ({"versions": {"torch": "2.13.0", "mujoco": "4.0.0", "onnxruntime": "1.20"}}, "plan"),
    ],
    ids=["same", "another host", "more ranks", "processor", "platform", "package", "one less", "one more"],
)
def test_what_changes_from_one_attempt_to_another_takes_the_promise_away_where_it_matters(tmp_path, changes, expected):
    first = attempt(1, versions={"torch": "2.13.0", "mujoco": "4.0.0"})
    later = attempt(2, **{"versions": first.versions, **changes})
    row = merged(tmp_path, report(), report(attempt=2), attempts=(first, later))
    assert row["reproducible"] == expected
    problems = merge_results(tmp_path).problems
    assert bool(problems) is (expected == "plan")
    assert all(problem.startswith("attempt 2 ran with ") for problem in problems)


def test_a_change_that_was_undone_is_still_one(tmp_path):
    other = dataclasses.replace(HERE, cpu="another")
    row = merged(tmp_path, report(), attempts=(attempt(1), attempt(2, machine=other), attempt(3)))
    assert row["reproducible"] == "plan"
    assert merge_results(tmp_path).problems == (
        "attempt 2 ran with cpu another, the first one with some; results may differ in their last digits",
    )


def test_jobs_stand_in_the_order_of_their_indices_whatever_the_plan_lists_first(tmp_path):
    write_plan(tmp_path, planned("c", index=2), planned("a", index=1), planned("b", index=0))
    for name in ("a", "b"):
        write_lines(tmp_path, commit_lines("ss", job=name))
    results = merge_results(tmp_path)
    assert results.jobs["name"].tolist() == ["b", "a", "c"]
    assert results.episodes["job"].tolist() == ["b", "b", "a", "a"]
    assert [owed.job for owed in results.missing] == ["b", "a", "c"]


def test_episodes_stand_in_the_order_of_their_indices_whatever_rank_was_quicker(tmp_path):
    write_plan(tmp_path, planned(num_episodes=4), world_size=2)
    late, early = commit_lines("ss", first=2), commit_lines("ff", rank=1)
    write_lines(tmp_path, late)
    write_lines(tmp_path, early)
    results = merge_results(tmp_path)
    assert results.episodes["episode_index"].tolist() == [0, 1, 2, 3]
    assert results.episodes["success"].tolist() == [False, False, True, True]


def test_cut_is_what_the_last_attempt_left_and_nothing_where_all_episodes_finished(tmp_path):
    reports = [
        report(attempt=1, status=ReportedStatus.INTERRUPTED, cut_episodes=7),
        report(attempt=2, cut_episodes=2),
        report(attempt=2, rank=1, cut_episodes=3),
    ]
    assert merged(tmp_path / "steps", *reports, num_episodes=None, num_steps=50)["cut"] == 5
    assert merged(tmp_path / "some", *reports, num_episodes=12)["cut"] == 5
    assert merged(tmp_path / "all", *reports, num_episodes=10)["cut"] == 0


def test_how_long_a_job_took_is_the_longest_rank_of_each_attempt(tmp_path):
    reports = [
        report(attempt=1, rank=0, wall_s=10.0, build_s=4.0, env_steps=100),
        report(attempt=1, rank=1, wall_s=7.0, build_s=6.0, env_steps=100),
        report(attempt=2, rank=1, wall_s=3.0, build_s=1.0, env_steps=40),
    ]
    row = merged(tmp_path, *reports)
    assert (row["wall_s"], row["build_s"], row["env_steps"], row["attempts"]) == (13.0, 11.0, 240, 2)
    assert row["env_steps_per_s"] == pytest.approx(240 / (6.0 + 2.0))
    assert (row["rank"], row["device"]) == ("0, 1", "cpu")


def test_a_job_that_did_nothing_but_build_has_no_steps_per_second(tmp_path):
    row = merged(tmp_path, report(wall_s=4.0, build_s=4.0, env_steps=0))
    assert (row["wall_s"], row["env_steps_per_s"]) == (4.0, None)


@pytest.mark.parametrize("policy_batch", [None, 8])
def test_no_time_is_negative_although_the_clock_goes_back(tmp_path, monkeypatch, policy_batch):
    """Whoever sets a clock back while a run goes on changes when things happened, and not how long they took."""
    looks = count()
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600.0 * next(looks))
    ended = JobRunner(settings(tmp_path, policy_batch=policy_batch)).run(coin_job(num_episodes=6))
    parts = (ended.build_s, ended.simulate_s, ended.policy_s, ended.render_s, ended.record_s, ended.idle_s)
    assert ended.status is ReportedStatus.COMPLETED
    assert all(seconds >= 0 for seconds in parts)
    assert 0 < ended.wall_s < 3600
    assert sum(parts) == pytest.approx(ended.wall_s, abs=0.05)
    walls = [line.wall_s for line in read_commits(tmp_path / "coins", "coins").lines]
    assert len(walls) == 6
    assert all(wall is not None and 0 <= wall < 3600 for wall in walls)
