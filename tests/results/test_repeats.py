"""Runs whose episodes repeat conditions: every table says how many there are, and counts them so."""

import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.api.results import Results
from isaaclab_arena.config.schema import Question, SuiteMember
from isaaclab_arena.interfaces.episode import SEED_CONDITION
from isaaclab_arena.results.console import caveats, group_by, groups_table
from isaaclab_arena.results.exports import export_lerobot
from isaaclab_arena.results.merge import (
    merge_results,
    records,
    stale_tables,
    stored_results,
    write_tables,
)
from isaaclab_arena.results.statistics import rate_interval, wilson_interval
from isaaclab_arena.results.stopping import PairCounts
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun
from tests.results.evidence import (
    EPISODE_COLUMNS,
    GROUP_COLUMNS,
    JOB_COLUMNS,
    commit_lines,
    planned,
    report,
    write_lines,
    write_plan,
    write_report,
)
from tests.tracking.runs import NotingTracker


def write_run(
    directory: Path, jobs: dict[str, str], *, starts: int | None = None, told: str = "cube.x", **said
) -> Path:
    """Write a run.

    Args:
        directory: Where to.
        jobs: Name of a job to the outcomes of its episodes; ``mine:0`` is a task of the suite ``mine``.
        starts: How many starts a job plays in turns; None where each episode has one of its own.
        told: The condition that tells the start.
        said: What is said of every job.
    """
    directory.mkdir(exist_ok=True)
    entries = []
    for index, (name, letters) in enumerate(jobs.items()):
        suite, colon, task = name.partition(":")
        own = {"suite": SuiteMember(name=suite, suite="kitchen", task=task), "environment": task} if colon else {}
        entries.append(planned(name, index=index, num_episodes=len(letters), **own, **said))
    write_plan(directory, *entries)
    for name, letters in jobs.items():
        lines = commit_lines(letters, job=name)
        places = [{told: line.episode_index % (starts or len(letters))} for line in lines]
        placed = zip(lines, places, strict=True)
        write_lines(directory, [dataclasses.replace(line, variations=each) for line, each in placed])
        write_report(directory, report(name, cut_episodes=0))
    return directory


def asked(directory: Path, *questions: Question) -> Path:
    """Let a run ask something of its jobs."""
    plan = dataclasses.replace(read_run_plan(directory), questions=questions)
    (directory / "run.json").unlink()
    write_run_plan(directory, plan)
    return directory


def test_a_job_says_how_many_conditions_its_rate_has_and_counts_these(tmp_path):
    [row] = records(merge_results(write_run(tmp_path, {"lift": "s" * 40}, starts=2)).jobs)
    two = wilson_interval(2, 2)
    assert two is not None
    assert (row["episodes"], row["successes"], row["distinct_conditions"]) == (40, 40, 2)
    assert (row["success_low"], row["success_high"]) == pytest.approx((two.low, 1.0))
    assert "* job 'lift': 40 scored episodes, 2 different conditions: " in "".join(caveats(merge_results(tmp_path)))


def test_a_run_without_repeats_has_the_tables_that_it_always_had(tmp_path):
    merged = merge_results(write_run(tmp_path, {"lift": "ssff"}))
    write_tables(tmp_path, merged)
    assert list(pd.read_csv(tmp_path / "results.csv").columns) == list(JOB_COLUMNS)
    assert list(pd.read_csv(tmp_path / "episodes.csv").columns) == list(EPISODE_COLUMNS)
    assert list(group_by(merged, ["seed"]).columns) == ["seed", *GROUP_COLUMNS]
    assert "conditions" not in "".join(caveats(merged))


def test_tables_with_repeats_can_be_read_again(tmp_path):
    merged = merge_results(write_run(tmp_path, {"mine:a": "sfsf", "mine:b": "ssff"}, starts=2))
    write_tables(tmp_path, merged)
    assert stale_tables(tmp_path, merged) == []
    stored = stored_results(tmp_path)
    assert stored is not None
    pd.testing.assert_frame_equal(stored.jobs, merged.jobs)
    pd.testing.assert_frame_equal(stored.suites, merged.suites)
    assert pd.read_csv(tmp_path / "results.csv")["distinct_conditions"].tolist() == [2, 2]
    assert Results(merged, tmp_path).jobs["distinct_conditions"].tolist() == [2, 2]


def test_python_and_trackers_are_told_how_many_conditions_a_rate_has(tmp_path):
    repeats = write_run(tmp_path / "repeats", {"lift": "sfsf"}, starts=2)
    whole = write_run(tmp_path / "whole", {"lift": "sfsf"})
    for run, distinct, told in ((repeats, 2, 2.0), (whole, 4, None)):
        assert Results(merge_results(run), run).job("lift").num_distinct == distinct
        tracker = NotingTracker()
        watch = WatchedRun(run, read_run_plan(run), [OpenedTracker("noting", lambda tracker=tracker: tracker)])
        watch.look()
        watch.finish()
        assert [job.values.get("distinct_conditions") for job in tracker.jobs] == [told]


def test_the_same_episodes_under_several_seeds_are_pooled_as_once(tmp_path):
    jobs = {f"seed-{seed}": "ssss" for seed in range(5)}
    groups = group_by(merge_results(write_run(tmp_path, jobs)), ["environment"])
    four = wilson_interval(4, 4)
    assert four is not None
    assert groups["scored"].tolist() == [20]
    assert groups["distinct_conditions"].tolist() == [4]
    assert groups["success_low"].tolist() == pytest.approx([four.low])
    stream = io.StringIO()
    Console(file=stream, width=120).print(groups_table(groups, ["environment"]))
    assert "conditions" in stream.getvalue()


def test_a_suite_whose_tasks_share_seeds_stands_on_these(tmp_path):
    jobs = {f"mine:{task}": "sf" * 10 for task in "abcd"}
    merged = merge_results(write_run(tmp_path, jobs, told=SEED_CONDITION))
    [row] = records(merged.suites)
    twenty = wilson_interval(10, 20)
    assert twenty is not None
    assert (row["scored"], row["distinct_conditions"]) == (80, 20)
    assert (row["mean_low"], row["pooled_low"]) == pytest.approx((twenty.low, twenty.low), abs=0.01)
    assert "* suite 'mine': 80 scored episodes, 20 different conditions: " in "".join(caveats(merged))
    # Each task for itself has as many conditions as episodes.
    assert "distinct_conditions" not in merged.jobs


def test_positions_of_a_suite_are_those_of_its_tasks(tmp_path):
    [row] = records(merge_results(write_run(tmp_path, {f"mine:{task}": "sf" * 10 for task in "ab"})).suites)
    assert "distinct_conditions" not in row


def test_episodes_that_began_and_went_alike_under_other_seeds_are_one(tmp_path):
    write_run(tmp_path, {"lift": "f" * 16}, told=SEED_CONDITION)
    lines = [
        dataclasses.replace(
            line, job_name="again", variations={SEED_CONDITION: line.episode_index}, start=5, episode_return=0.0
        )
        for line in commit_lines("f" * 16)
    ]
    alike = [dataclasses.replace(line, episode_length=40) for line in lines]
    for name, own in (("alike", alike), ("unlike", lines)):
        run = tmp_path / name
        run.mkdir()
        write_plan(run, planned("again", num_episodes=16))
        write_lines(run, own)
        write_report(run, report("again", cut_episodes=0))
    merged = merge_results(tmp_path / "alike")
    [row] = records(merged.jobs)
    one = wilson_interval(0, 1)
    assert one is not None
    assert (row["distinct_conditions"], row["success_high"]) == (1, pytest.approx(one.high))
    assert merged.episodes["start"].tolist() == [5] * 16
    assert "16 scored episodes, all of the same conditions: " in "".join(caveats(merged))
    # Where lengths differ, something random came after the start.
    assert "distinct_conditions" not in merge_results(tmp_path / "unlike").jobs


def test_a_question_bets_once_on_each_start_and_the_interval_holds_what_it_counts(tmp_path):
    run = write_run(tmp_path, {"new": "s" * 40, "old": "f" * 40}, starts=2)
    run = asked(run, Question(name="better", jobs=("new", "old"), max_episodes=40))
    merged = merge_results(run)
    [answer] = merged.answers
    assert (answer.verdict, answer.episodes, answer.repeated) == (None, 40, 38)
    assert answer.counts == PairCounts(both=0, only_first=2, only_second=0, neither=0)
    assert "* better: of its episodes 38 repeat the conditions of an earlier one; they do not count" in caveats(merged)
    row = records(merged.jobs)[0]
    assert (row["success_low"], row["success_high"]) == (rate_interval(2, 2).low, 1.0)
    write_tables(run, merged)
    [told] = json.loads((run / "results.json").read_text())["answers"]
    assert told["repeated"] == 38


def test_a_question_about_a_job_that_the_plan_lacks_stays_open(tmp_path):
    bar = Question(name="bar", jobs=("gone",), max_episodes=4, at_least=0.5)
    merged = merge_results(asked(write_run(tmp_path, {"new": "ssff"}, starts=2), bar))
    assert [(answer.verdict, answer.episodes) for answer in merged.answers] == [(None, 0)]


def test_the_interval_of_a_question_counts_the_first_episode_of_each_condition_and_holds_the_rate(tmp_path):
    bar = Question(name="bar", jobs=("new",), max_episodes=4, at_least=0.5)
    [row] = records(merge_results(asked(write_run(tmp_path, {"new": "ssff"}, starts=2), bar)).jobs)
    assert rate_interval(2, 2).low < row["success_rate"] == 0.5
    assert (row["success_low"], row["success_high"]) == (rate_interval(2, 2).low, 1.0)


def test_an_export_says_what_its_rates_stand_on(tmp_path):
    told = export_lerobot(write_run(tmp_path / "run", {"lift": "ssff"}, starts=2), tmp_path / "out")
    assert any("4 scored episodes, 2 different conditions" in line for line in told)
