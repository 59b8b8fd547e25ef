"""Jobs that are repeated, and promises that they give the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isaaclab_arena.api import Results
from isaaclab_arena.config.schema import Question
from isaaclab_arena.interfaces.episode import SEED_CONDITION
from isaaclab_arena.results.console import caveats, group_by, groups_table
from isaaclab_arena.results.exports import export_lerobot
from isaaclab_arena.results.merge import merge_results, records, write_tables
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.results.stopping import PairCounts, RateCounts, anytime_interval
from isaaclab_arena.storage.ledger import JobReport, read_run_plan, write_attempt, write_run_plan
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun
from tests.analysis.recorded_runs import write_run
from tests.results.evidence import (
    EPISODE_COLUMNS,
    GROUP_COLUMNS,
    HERE,
    JOB_COLUMNS,
    attempt,
    commit_lines,
    planned,
    printed,
    report,
    there,
    write_job,
    write_lines,
    write_plan,
    write_report,
)
from tests.tracking.runs import NotingTracker


def asked(directory: Path, *questions: Question) -> Path:
    """Let a run ask something of its jobs."""
    plan = dataclasses.replace(read_run_plan(directory), questions=questions)
    (directory / "run.json").unlink()
    write_run_plan(directory, plan)
    return directory


def wilson(successes: int, trials: int) -> Any:
    interval = there(wilson_interval(successes, trials))
    return pytest.approx((interval.low, interval.high))


def test_a_job_says_how_many_conditions_its_rate_has_and_counts_these(tmp_path):
    [row] = records(merge_results(write_run(tmp_path, {"lift": "s" * 40}, starts=2)).jobs)
    assert (row["episodes"], row["successes"], row["distinct_conditions"]) == (40, 40, 2)
    assert (row["success_low"], row["success_high"]) == wilson(2, 2)
    assert "40 scored episodes of 2 different" in "".join(caveats(merge_results(tmp_path)))


@pytest.mark.parametrize(("starts", "distinct", "told"), [(2, 2, 2.0), (None, 4, None)])
def test_python_trackers_and_exports_are_told_how_many_conditions_a_rate_has(tmp_path, starts, distinct, told):
    run, tracker = write_run(tmp_path / "run", {"lift": "sfsf"}, starts=starts), NotingTracker()
    assert Results(merge_results(run), run).job("lift").num_distinct == distinct
    watch = WatchedRun(run, read_run_plan(run), [OpenedTracker("noting", lambda: tracker)])
    watch.look()
    watch.finish()
    assert [job.values.get("distinct_conditions") for job in tracker.jobs] == [told]
    lines = export_lerobot(run, tmp_path / "out")
    assert any("2 different conditions" in line for line in lines) is bool(told)


def test_a_run_without_repeats_has_the_tables_that_it_always_had_also_one_of_an_earlier_version(tmp_path):
    [commits] = (write_run(tmp_path, {"lift": "ssff"}) / "lift").glob("*.jsonl")
    share = '"saturated_action_share": null, '
    assert share in commits.read_text()
    commits.write_text(commits.read_text().replace(share, ""))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    assert not merged.problems
    assert list(pd.read_csv(tmp_path / "results.csv").columns) == list(JOB_COLUMNS)
    assert list(pd.read_csv(tmp_path / "episodes.csv").columns) == list(EPISODE_COLUMNS)
    assert list(group_by(merged, ["seed"]).columns) == ["seed", *GROUP_COLUMNS]
    assert "conditions" not in "".join(caveats(merged))


def test_the_same_episodes_under_several_seeds_are_pooled_as_once(tmp_path):
    jobs = {f"seed-{seed}": "ssss" for seed in range(5)}
    [group] = records(groups := group_by(merge_results(write_run(tmp_path, jobs)), ["environment"]))
    assert (group["scored"], group["distinct_conditions"]) == (20, 4)
    assert (group["success_low"], group["success_high"]) == wilson(4, 4)
    assert "conditions" in printed(lambda console: console.print(groups_table(groups, ["environment"])))


def test_a_suite_whose_tasks_share_seeds_stands_on_these_and_positions_are_those_of_its_tasks(tmp_path):
    jobs = {f"mine:{task}": "sf" * 10 for task in "abcd"}
    merged = merge_results(write_run(tmp_path / "seeds", jobs, condition=SEED_CONDITION))
    [row] = records(merged.suites)
    twenty = there(wilson_interval(10, 20))
    assert (row["scored"], row["distinct_conditions"]) == (80, 20)
    assert (row["mean_low"], row["pooled_low"]) == pytest.approx((twenty.low, twenty.low), abs=0.01)
    assert "80 scored episodes of 20 different" in "".join(caveats(merged))
    # Each task for itself has as many conditions as episodes.
    assert "distinct_conditions" not in merged.jobs
    assert "distinct_conditions" not in merge_results(write_run(tmp_path / "positions", jobs)).suites


def test_episodes_that_began_and_went_alike_under_other_seeds_are_one(tmp_path):
    for name, same in (("alike", {"length": 40}), ("unlike", {})):
        write_job(tmp_path / name, "", report(cut_episodes=0), num_episodes=16)
        lines = [dataclasses.replace(line, start=5, episode_return=0.0, **same) for line in commit_lines("f" * 16)]
        told = [dataclasses.replace(line, conditions={SEED_CONDITION: line.episode_index}) for line in lines]
        write_lines(tmp_path / name, told)
    merged = merge_results(tmp_path / "alike")
    [row] = records(merged.jobs)
    assert row["distinct_conditions"] == 1
    assert (row["success_low"], row["success_high"]) == wilson(0, 1)
    assert merged.episodes["start"].tolist() == [5] * 16
    assert "16 scored episodes of 1 condition: " in "".join(caveats(merged))
    # Where lengths differ, something random came after the start.
    assert "distinct_conditions" not in merge_results(tmp_path / "unlike").jobs


def test_a_question_bets_once_on_each_start_and_the_interval_holds_what_it_counts(tmp_path):
    run = write_run(tmp_path, {"new": "s" * 40, "old": "f" * 40}, starts=2)
    run = asked(run, Question(name="better", jobs=("new", "old"), max_episodes=40))
    merged = merge_results(run)
    [answer] = merged.answers
    assert (answer.verdict, answer.episodes, answer.repeated) == (None, 40, 38)
    assert answer.counts == PairCounts(both=0, only_first=2, only_second=0, neither=0)
    assert "* better: episodes that do not count: 38 repeat the conditions of an earlier one" in caveats(merged)
    row = records(merged.jobs)[0]
    assert (row["success_low"], row["success_high"]) == (anytime_interval(RateCounts(successes=2, trials=2)).low, 1.0)
    write_tables(run, merged)
    [told] = json.loads((run / "results.json").read_text())["answers"]
    assert told["repeated"] == 38


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


VERSIONS = {"torch": "2.13.0", "mujoco": "4.0.0"}
CHANGES = {
    "same": ({}, None),
    "another host": ({"machine": dataclasses.replace(HERE, host="there", cores=64)}, None),
    "more ranks": ({"world_size": 3, "devices": ("cpu",) * 3, "command_line": ("--resume",)}, None),
    "processor": ({"machine": dataclasses.replace(HERE, cpu="another")}, "cpu another, the first one with some"),
    "platform": ({"machine": dataclasses.replace(HERE, platform="Darwin")}, "platform Darwin"),
    "package": ({"versions": {**VERSIONS, "torch": "2.13.1"}}, "torch 2.13.1, the first one with 2.13.0"),
    "one less": ({"versions": {"torch": "2.13.0"}}, "mujoco"),
    "one more": ({"versions": {**VERSIONS, "onnxruntime": "1.20"}}, "onnxruntime 1.20"),
}


@pytest.mark.parametrize(("changes", "told"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_matters_takes_the_promise_away_also_if_it_is_undone(tmp_path, changes, told):
    first = attempt(1, versions=VERSIONS)
    later, undone = attempt(2, **{"versions": VERSIONS, **changes}), dataclasses.replace(first, number=3)
    row = merged(tmp_path, report(), report(attempt=2), attempts=(first, later, undone))
    assert row["reproducible"] == ("plan" if told else "bitwise")
    problems = merge_results(tmp_path).problems
    assert len(problems) == bool(told)
    assert all(problem.startswith(f"attempt 2 ran with {told}") for problem in problems if told)


def test_jobs_and_episodes_stand_in_the_order_of_their_indices(tmp_path):
    """The plan may list others first, and a rank may be quicker."""
    write_plan(tmp_path, planned("c", index=2), planned("a", index=1, num_episodes=4), planned("b", index=0))
    for outcomes, job, rank, first in (("ss", "a", 0, 2), ("ff", "a", 1, 0), ("s", "b", 0, 0)):
        write_lines(tmp_path, commit_lines(outcomes, job=job, rank=rank, first=first))
    results = merge_results(tmp_path)
    assert results.jobs["name"].tolist() == [owed.job for owed in results.missing] == ["b", "a", "c"]
    assert results.episodes["job"].tolist() == ["b", *"aaaa"]
    assert results.episodes["episode_index"].tolist() == [0, 0, 1, 2, 3]
    assert results.episodes["success"].tolist() == [True, False, False, True, True]
