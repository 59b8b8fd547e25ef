"""What the report says of each job."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.config.schema import Meanwhile
from isaaclab_arena.interfaces.episode import SETBACKS, EpisodeEvents
from isaaclab_arena.report.jobs import (
    JobOnPage,
    condition_columns,
    curves,
    histogram,
    job_on_page,
    matrix,
    mutual_information_bits,
    packed_numbers,
    packed_texts,
    telling_conditions,
    title_of,
)
from isaaclab_arena.report.writing import html_of, page_of
from isaaclab_arena.results.merge import merge_results, records, stored_results, write_tables
from isaaclab_arena.results.statistics import wilson_interval
from tests.analysis.recorded_runs import failed_by, write_run
from tests.report.reading import unpacked_numbers, words_of
from tests.results.evidence import there
from tests.results.late_runs import LATE, write_late_run


def job_of(directory: Path, outcomes: str, *, events: dict[int, EpisodeEvents] | None = None, **how: Any) -> JobOnPage:
    merged = merge_results(write_run(directory / "run", {"lift": outcomes}, events=events))
    return job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift", **how)


def test_a_job_says_what_a_paper_says_and_counts_every_episode_once(tmp_path: Path):
    job = job_of(tmp_path, "sssfte")
    assert job.sentence.startswith("lift (")
    assert job.sentence.endswith("): 3 of 5, 60.0 % [23.1, 88.2]; 1 error")
    assert (job.failed, job.num_scored, job.num_failed, job.num_errors) == ({3, 4, 5}, 5, 2, 1)
    reasons = [("ended without success", 2), ("error: the physics diverged", 1)]
    assert [(each.event, each.count) for each in job.reasons] == reasons
    assert job.outcomes == {"success": 3, "failure": 1, "timeout": 1, "error": 1}
    assert sum(each.count for each in job.lengths) == 5
    empty = job_of(tmp_path / "empty", "--")
    assert (empty.rate, empty.episodes["count"]) == ("-", 0)
    assert empty.sentence.endswith("2 missing")


@pytest.mark.parametrize(("most_values", "left_out"), [(4, 0), (3, 1)])
def test_conditions_that_have_no_room_are_counted(tmp_path: Path, most_values: int, left_out: int):
    assert job_of(tmp_path, "ssff", most_values=most_values).episodes["conditions_left_out"] == left_out


def test_failures_are_grouped_by_what_decided_them_with_three_films_at_most(tmp_path: Path):
    told = dict.fromkeys(range(1, 6), failed_by("reached_and_missed")) | {6: failed_by("dropped"), 7: failed_by(None)}
    job = job_of(tmp_path, "sfffftffe", events=told, filmed=frozenset({0, 2, 3, 4, 5, 7}))
    assert [(each.event, each.count, each.filmed) for each in job.reasons] == [
        ("reached and missed", 5, (2, 3, 4)),
        ("dropped", 1, ()),
        ("none of the events", 1, (7,)),
        ("error: the physics diverged", 1, ()),
    ]
    assert "decisive_event" in job.episodes


def test_the_film_that_opens_for_a_reason_is_the_most_typical_one(tmp_path: Path):
    told = {}
    for index, moment in enumerate((10, 90, 52, 50, 54, 20)):
        seen = {"stuck": (1, 1), "dropped": (moment, 1)}
        told[index] = EpisodeEvents(progress=0.5, decisive="dropped", seen=seen)
    job = job_of(tmp_path, "ffffff", events=told, filmed=frozenset({0, 1, 4, 5}))
    # The median moment of all six episodes is 51.
    assert job.reasons[0].filmed == (4, 5, 1)


def test_rare_reasons_share_a_line_and_no_failure_is_left_out(tmp_path: Path):
    names = [*SETBACKS][:10]
    names.append(names[0])
    job = job_of(tmp_path, "f" * len(names), events={index: failed_by(name) for index, name in enumerate(names)})
    assert (job.reasons[0].event, job.reasons[0].count) == ("wrong object", 2)
    assert (job.reasons[-1].event, job.reasons[-1].count, len(job.reasons)) == ("3 other reasons", 3, 8)
    assert job.num_failed == len(names)


def test_a_title_says_in_words_which_policies_were_evaluated_on_what(jobs: list[JobOnPage]):
    def titled(*named: tuple[str, str]) -> str:
        return title_of([with_row(jobs[0], policy=policy, environment=task, object="cube") for policy, task in named])

    assert titled(("my_file:my_action", "lift_object")) == "My action (my_file.py) on lift object, cube"
    assert titled(("A", "reach"), ("B", "reach")) == "A against B on reach, cube"
    checkpoints = [with_row(jobs[0], policy="rsl_rl", environment="lift", checkpoint=f"model_{n}.pt") for n in (1, 2)]
    assert title_of(checkpoints).startswith("Rsl rl, model_1.pt against rsl rl, model_2.pt on lift")
    assert titled(("A", "reach"), ("B", "reach"), ("C", "lift")) == "3 policies on 2 tasks"
    assert title_of([]) == "Evaluation without a job"


def test_whole_numbers_and_texts_are_kept_whole_and_equal_ones_take_no_room():
    values = np.array([3.0, 160.0, 1e6, np.nan])
    packed = there(packed_numbers(values))
    np.testing.assert_array_equal(unpacked_numbers(packed, 4), values)
    assert packed["bytes"] == 4
    equal = there(packed_numbers(np.full(1000, 0.025)))
    assert (equal["data"], unpacked_numbers(equal, 1000)[0]) == ("", 0.025)
    several = there(packed_texts(["time limit", None, "fell", "time limit"]))
    assert (several["texts"], bool(several["data"])) == (["time limit", "fell"], True)
    assert there(packed_texts(["fell", "fell"]))["data"] == ""
    assert packed_numbers(np.full(3, np.nan)) is packed_texts([None, None]) is None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e5])
def test_other_numbers_are_right_to_the_decimals_that_are_shown(scale: float):
    values = np.random.default_rng(0).normal(size=500) * scale
    packed = there(packed_numbers(values))
    shown = f"{{:.{packed['decimals']}f}}".format
    assert [*map(shown, unpacked_numbers(packed, 500))] == [*map(shown, values)]


def test_every_number_and_text_is_a_column():
    first = {"cube.position": [0.1, 0.2, 0.3], "mass": 1.5, "colour": "red"}
    second = {"cube.position": [0.4, 0.5, 0.6], "mass": None, "colour": "blue"}
    columns = condition_columns([json.dumps(first), json.dumps(second), "{}"])
    assert [*columns] == ["cube.position.x", "cube.position.y", "cube.position.z", "mass", "colour"]
    np.testing.assert_array_equal(columns["cube.position.y"], [0.2, 0.5, np.nan])
    np.testing.assert_array_equal(columns["mass"], [1.5, np.nan, np.nan])
    assert columns["colour"].tolist() == ["red", "blue", None]


def telling(columns, success):
    return telling_conditions(columns, success, [str(index) for index in range(len(success))])


def test_the_condition_that_decides_comes_first_with_rates_that_count_every_episode():
    near, noise = np.random.default_rng(2).random((2, 400))
    success = (near < 0.5).astype(float)
    found = telling({"noise": noise, "near": near}, success)
    assert [each.name for each in found] == ["near", "noise"]
    assert sum(each.scored for each in found[0].bins) == 400
    assert sum(each.successes for each in found[0].bins) == success.sum()
    assert (found[0].bins[0].rate, found[0].bins[-1].rate) == (1.0, 0.0)
    assert found[1].bits < 0.05


def test_mutual_information_is_that_of_the_definition_less_its_bias():
    groups, won = np.repeat([0, 1], 500), np.repeat([True, False], 500)
    assert mutual_information_bits(groups, won) == pytest.approx(1.0 - 1 / (2000 * math.log(2)))
    assert mutual_information_bits(groups, np.tile([True, False], 500)) == 0.0


def test_texts_have_a_rate_each_and_what_does_not_vary_has_none():
    success = np.tile([1.0, 0.0], 20)
    columns = {"colour": np.array(["red", "blue"] * 20, object), "height": np.full(40, 0.8)}
    (found,) = telling(columns, success)
    assert {each.label: each.rate for each in found.bins} == {"red": 1.0, "blue": 0.0}


@pytest.mark.parametrize("success", [np.ones(50), np.zeros(50), np.array([1.0, 0.0] * 5), np.full(50, np.nan)])
def test_nothing_is_said_where_nothing_can_be_told(success: np.ndarray):
    assert telling({"x": np.arange(len(success), dtype=float)}, success) == ()


def test_a_range_in_which_conditions_repeat_has_the_interval_of_these():
    success = np.tile([1.0, 1.0, 0.0, 1.0], 10)
    columns = {"place": np.tile([0.0, 1.0, 2.0, 3.0], 10)}
    (found,) = telling_conditions(columns, success, [str(place) for place in columns["place"]])
    one = wilson_interval(1, 1)
    assert one is not None
    assert [each.interval.low for each in found.bins if each.rate == 1.0] == pytest.approx([one.low] * 3)
    assert [(each.scored, each.distinct) for each in found.bins] == [(10, 1)] * 4


def jobs_of(directory: Path, outcomes: dict[str, str], **how: Any) -> list[JobOnPage]:
    merged = merge_results(write_run(directory / "run", outcomes, **how))
    rows = records(merged.jobs)
    parts = [pd.DataFrame(merged.episodes[merged.episodes["job"] == row["name"]]) for row in rows]
    return [job_on_page(row, part, run=0, label=row["name"]) for row, part in zip(rows, parts, strict=True)]


@pytest.fixture
def jobs(tmp_path: Path) -> list[JobOnPage]:
    return jobs_of(tmp_path, {"a": "ssss", "b": "sfff", "c": "sssf"}, own_starts=True)


def with_row(job: JobOnPage, **cells: object) -> JobOnPage:
    keys = {name: str(value) for name, value in cells.items() if not name.startswith("sweep.")}
    return replace(job, row={**job.row, **cells}, keys={**job.keys, **keys})


def test_jobs_that_play_the_same_episodes_under_other_seeds_are_pooled_as_one(tmp_path: Path):
    jobs = jobs_of(tmp_path, dict.fromkeys("abc", "ssss"))
    swept = [with_row(job, **{"sweep.noise.high": float(at > 0), "sweep.seed": at}) for at, job in enumerate(jobs)]
    (curve,) = curves(swept)
    once, twice = curve.points
    assert (once.repeats, twice.repeats) == ("", " (4 different conditions)")
    assert (twice.scored, twice.distinct) == (8, 4)
    assert twice.interval.low == pytest.approx(once.interval.low)


def test_jobs_of_one_strength_are_pooled_over_seeds(jobs: list[JobOnPage]):
    strengths = zip(jobs, (0.1, 0.5, 0.5), (0, 0, 1), strict=True)
    swept = [with_row(job, **{"sweep.noise.high": high, "sweep.seed": seed}) for job, high, seed in strengths]
    (curve,) = curves(swept)
    assert [(point.label, point.successes, point.scored) for point in curve.points] == [("0.1", 4, 4), ("0.5", 4, 8)]
    assert curve.points[1].interval == wilson_interval(4, 8)
    assert not curve.over_checkpoints
    assert curves([with_row(job, **{"sweep.object": name}) for job, name in zip(jobs, "xyz", strict=True)]) == ()


@pytest.mark.parametrize("path", ["run/model_{}.pt", "checkpoints/{:06}/pretrained_model"])
def test_checkpoints_make_a_learning_curve_in_the_order_of_their_steps(jobs: list[JobOnPage], path):
    key = "sweep.policy_config_dict.checkpoint_path"
    swept = [with_row(job, **{key: path.format(step)}) for job, step in zip(jobs, (1000, 50, 300), strict=True)]
    (curve,) = curves(swept)
    assert curve.over_checkpoints
    assert [point.label for point in curve.points] == ["50", "300", "1000"]
    assert [point.address for point in curve.points] == ["#job-1", "#job-2", "#job-0"]
    assert [(round(point.x, 4), point.rate) for point in curve.points] == [(0.0, 0.25), (0.2632, 0.75), (1.0, 1.0)]


def test_policies_stand_against_tasks(jobs: list[JobOnPage]):
    said = (("lift", "mine:A"), ("reach", "mine:A"), ("lift", "mine:B"))
    told = [with_row(job, environment=task, policy=who) for job, (task, who) in zip(jobs, said, strict=True)]
    found = there(matrix(told))
    assert [policy for policy, _ in found.lines] == ["A", "B"]
    assert there(found.lines[0][1][0]).successes == 4
    assert found.lines[1][1][1] is matrix(jobs) is None


def test_every_episode_is_in_one_bin_with_how_it_came_out():
    generator = np.random.default_rng(1)
    values, won = generator.normal(size=333), generator.random(333) < 0.3
    bins = histogram(values, won)
    assert (sum(each.count for each in bins), sum(each.successes for each in bins)) == (333, won.sum())
    assert (bins[0].low, bins[-1].high) == (values.min(), values.max())
    whole = histogram(np.repeat(np.arange(10, 60), 3).astype(float), np.ones(150, bool), whole=True)
    assert {each.high - each.low for each in whole} == {whole[0].high - whole[0].low}
    assert sum(each.count for each in whole) == 150
    assert all(each.low == int(each.low) for each in whole)
    assert [each.count for each in histogram(np.full(5, 7.0), np.ones(5, bool)) if each.count] == [5]
    assert histogram(np.full(2, np.nan), np.ones(2, bool)) == ()


def page_words(directory: Path, *, stored: bool = False) -> str:
    merged = merge_results(directory)
    if stored:
        write_tables(directory, merged)
        merged = there(stored_results(directory))
    return words_of(html_of(page_of({directory: merged}, embedded_bytes=0), directory))


@pytest.mark.parametrize("stored", [False, True])
def test_each_job_says_what_was_assumed_what_was_measured_and_what_it_came_to(tmp_path, stored):
    words = page_words(write_late_run(tmp_path / "run"), stored=stored)
    assert words.count("Late answers") == len(LATE)
    assert "assumed 4 control steps, meanwhile hold measured 62.0 ms (p50), 169.1 ms (p95)" in words
    assert "stale actions 80 %, 4.00 queries a second" in words
    waits = page_words(write_late_run(tmp_path / "waits", Meanwhile.WAIT))
    assert waits.count("stale actions 0 %, 20.00 queries a second") == len(LATE)


def test_a_sweep_over_latency_gives_a_curve_with_an_interval_at_each_point(tmp_path):
    directory = write_late_run(tmp_path / "run")
    (curve,) = page_of({directory: merge_results(directory)}, embedded_bytes=0).curves
    assert curve.key == "latency.steps"
    shown = [(point.label, point.successes, point.scored, point.x) for point in curve.points]
    successes = zip((0, 1, 2, 4, 8), (10, 9, 7, 4, 1), strict=True)
    assert shown == [(str(steps), successes, 10, steps / 8) for steps, successes in successes]
    assert all(point.interval.low <= point.rate <= point.interval.high for point in curve.points)
