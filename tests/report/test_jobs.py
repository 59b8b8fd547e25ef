"""What the report says of each job."""

import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.config.schema import Meanwhile, Question
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
)
from isaaclab_arena.report.writing import EvidenceCurve, evidence_curve, html_of, page_of
from isaaclab_arena.results.merge import merge_results, records, stored_results, write_tables
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.results.stopping import Answering, PairCounts, log_e_value_of_difference, log_e_value_of_equality
from tests.analysis.recorded_runs import failed_by, write_run
from tests.report.reading import unpacked_numbers
from tests.results.late_runs import LATE, write_late_run


def job_of(directory: Path, outcomes: str) -> JobOnPage:
    merged = merge_results(write_run(directory / "run", {"lift": outcomes}))
    return job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift")


def test_a_job_says_what_a_paper_says_and_counts_every_episode_once(tmp_path: Path):
    job = job_of(tmp_path, "sssfte")
    assert job.sentence.startswith("lift (")
    assert job.sentence.endswith("): 3 of 5, 60.0 % [23.1, 88.2]; 1 error")
    assert (job.failed, job.num_scored, job.reasons) == ({3, 4, 5}, 5, ())
    assert job.outcomes == {"success": 3, "failure": 1, "timeout": 1, "error": 1}
    assert sum(each.count for each in job.lengths) == 5
    empty = job_of(tmp_path / "empty", "--")
    assert (empty.rate, empty.episodes["count"]) == ("-", 0)
    assert empty.sentence.endswith("2 missing")


def test_conditions_that_have_no_room_are_counted(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "run", {"lift": "ssff"}))
    row = records(merged.jobs)[0]
    assert job_on_page(row, merged.episodes, run=0, label="lift", most_values=4).episodes["conditions_left_out"] == 0
    assert job_on_page(row, merged.episodes, run=0, label="lift", most_values=3).episodes["conditions_left_out"] == 1


def test_failures_are_grouped_by_what_decided_them_with_three_films_at_most(tmp_path: Path):
    told = dict.fromkeys(range(1, 6), failed_by("reached_and_missed")) | {6: failed_by("dropped"), 7: failed_by(None)}
    merged = merge_results(write_run(tmp_path / "run", {"lift": "sfffftffe"}, events=told))
    filmed = frozenset({0, 2, 3, 4, 5, 7})
    job = job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift", filmed=filmed)
    assert [(each.event, each.count, each.filmed) for each in job.reasons] == [
        ("reached and missed", 5, (2, 3, 4)),
        ("dropped", 1, ()),
        ("none of the events", 1, (7,)),
    ]
    assert "decisive_event" in job.episodes


def packed(values) -> dict[str, Any]:
    found = packed_texts(values) if isinstance(values, list) else packed_numbers(values)
    assert found is not None
    return found


def test_whole_numbers_keep_every_digit_and_equal_ones_take_no_room():
    values = np.array([3.0, 160.0, 1e6, np.nan])
    np.testing.assert_array_equal(unpacked_numbers(packed(values), 4), values)
    assert packed(values)["bytes"] == 4
    equal = packed(np.full(1000, 0.025))
    assert (equal["data"], unpacked_numbers(equal, 1000)[0]) == ("", 0.025)
    assert packed_numbers(np.full(3, np.nan)) is packed_texts([None, None]) is None


def test_each_text_is_there_once():
    several = packed(["time limit", None, "fell", "time limit"])
    assert several["texts"] == ["time limit", "fell"]
    assert several["data"]
    assert packed(["fell", "fell"])["data"] == ""


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e5])
def test_other_numbers_are_right_to_the_decimals_that_are_shown(scale: float):
    values = np.random.default_rng(0).normal(size=500) * scale
    decimals = packed(values)["decimals"]
    found = unpacked_numbers(packed(values), 500)
    assert [f"{value:.{decimals}f}" for value in found] == [f"{value:.{decimals}f}" for value in values]


def test_every_number_and_text_is_a_column():
    columns = condition_columns(
        [
            json.dumps({"cube.position": [0.1, 0.2, 0.3], "mass": 1.5, "colour": "red"}),
            json.dumps({"cube.position": [0.4, 0.5, 0.6], "mass": None, "colour": "blue"}),
            "{}",
        ]
    )
    assert [*columns] == ["cube.position.x", "cube.position.y", "cube.position.z", "mass", "colour"]
    np.testing.assert_array_equal(columns["cube.position.y"], [0.2, 0.5, np.nan])
    np.testing.assert_array_equal(columns["mass"], [1.5, np.nan, np.nan])
    assert columns["colour"].tolist() == ["red", "blue", None]


def told(columns, success):
    return telling_conditions(columns, success, [str(index) for index in range(len(success))])


def test_the_condition_that_decides_comes_first_with_rates_that_count_every_episode():
    generator = np.random.default_rng(2)
    near, noise = generator.random(400), generator.random(400)
    success = (near < 0.5).astype(float)
    found = told({"noise": noise, "near": near}, success)
    assert [each.name for each in found] == ["near", "noise"]
    assert sum(each.scored for each in found[0].bins) == 400
    assert sum(each.successes for each in found[0].bins) == success.sum()
    assert found[0].bins[0].rate == 1.0
    assert found[0].bins[-1].rate == 0.0
    assert found[1].bits < 0.05


def test_mutual_information_is_that_of_the_definition_less_its_bias():
    groups, won = np.repeat([0, 1], 500), np.repeat([True, False], 500)
    assert mutual_information_bits(groups, won) == pytest.approx(1.0 - 1 / (2000 * math.log(2)))
    assert mutual_information_bits(groups, np.tile([True, False], 500)) == 0.0


def test_texts_have_a_rate_each_and_what_does_not_vary_has_none():
    success = np.tile([1.0, 0.0], 20)
    columns = {"colour": np.array(["red", "blue"] * 20, object), "height": np.full(40, 0.8)}
    (found,) = told(columns, success)
    assert {each.label: each.rate for each in found.bins} == {"red": 1.0, "blue": 0.0}


@pytest.mark.parametrize("success", [np.ones(50), np.zeros(50), np.array([1.0, 0.0] * 5), np.full(50, np.nan)])
def test_nothing_is_said_where_nothing_can_be_told(success: np.ndarray):
    assert told({"x": np.arange(len(success), dtype=float)}, success) == ()


def test_a_range_in_which_conditions_repeat_has_the_interval_of_these():
    success = np.tile([1.0, 1.0, 0.0, 1.0], 10)
    columns = {"place": np.tile([0.0, 1.0, 2.0, 3.0], 10)}
    (found,) = telling_conditions(columns, success, [str(place) for place in columns["place"]])
    one = wilson_interval(1, 1)
    assert one is not None
    assert [each.interval.low for each in found.bins if each.rate == 1.0] == pytest.approx([one.low] * 3)
    assert [(each.scored, each.distinct) for each in found.bins] == [(10, 1)] * 4


QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=100)


def curve_of(
    directory, new: str, old: str, question: Question | None = None, *, num_questions: int = 1
) -> EvidenceCurve:
    arms = read_run(write_run(directory, {"new": new, "old": old})).arms
    answer = None if question is None else Answering(question, num_questions=num_questions).answer
    return evidence_curve(arms["new"], arms["old"], answer, num_questions=num_questions)


def pairs(wins: int, losses: int, alike: int = 0) -> PairCounts:
    return PairCounts(both=alike, only_first=wins, only_second=losses, neither=0)


def test_evidence_ends_at_the_e_value_of_all_episodes(tmp_path):
    curve = curve_of(tmp_path / "run", "s" * 14 + "sfsf", "f" * 14 + "sffs")
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1][0] == 18
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(pairs(15, 1)) / math.log(10))
    assert curve.line.startswith("0.00,")


def test_the_questions_of_a_run_share_the_level_that_decides(tmp_path):
    alone = curve_of(tmp_path / "1", "ss", "ff")
    assert (alone.needed, alone.bar) == ("20", "alpha 0.05, if nothing else is asked")
    two = curve_of(tmp_path / "2", "ss", "ff", QUESTION, num_questions=2)
    assert (two.needed, two.bar) == ("40", "alpha 0.05, shared by 2 questions")
    strict = curve_of(tmp_path / "3", "ss", "ff", dataclasses.replace(QUESTION, alpha=0.01))
    assert (strict.needed, strict.bar) == ("100", "alpha 0.01, shared by one question")


@pytest.mark.parametrize("jobs", [("new", "old"), ("old", "new")])
def test_with_a_margin_the_evidence_is_that_of_the_question_whichever_job_is_shown_first(tmp_path, jobs):
    asked = dataclasses.replace(QUESTION, jobs=jobs, margin=0.05)
    curve = curve_of(tmp_path / "run", "ssss", "sffs", asked)
    expected = log_e_value_of_difference(pairs(2, 0, 2) if jobs[0] == "new" else pairs(0, 2, 2), -0.05)
    assert curve.points[-1][1] == pytest.approx(expected / math.log(10))
    assert curve.against == f"{jobs[0]} is 5 points worse than {jobs[1]}"


def test_what_decides_lies_in_the_picture_and_evidence_beyond_what_a_number_holds_is_a_power_of_ten(tmp_path):
    curve = curve_of(tmp_path / "little", "s", "f", QUESTION, num_questions=1_000)
    at_zero = float(curve.line.split()[0].partition(",")[2])
    assert 0 < curve.limit < at_zero < 100
    assert curve_of(tmp_path / "much", "s" * 2_000, "f" * 2_000).e_value == "10^600"
    assert curve_of(tmp_path / "none", "sf", "sf").e_value == "1"


def test_there_is_one_bet_for_each_start(tmp_path):
    run = read_run(write_run(tmp_path / "run", {"new": "s" * 40, "old": "f" * 40}, starts=13))
    curve = evidence_curve(run.arms["new"], run.arms["old"], None, num_questions=1)
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(pairs(13, 0)) / math.log(10))


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
    swept = [
        with_row(jobs[0], **{"sweep.noise.high": 0.1, "sweep.seed": 0}),
        with_row(jobs[1], **{"sweep.noise.high": 0.5, "sweep.seed": 0}),
        with_row(jobs[2], **{"sweep.noise.high": 0.5, "sweep.seed": 1}),
    ]
    (curve,) = curves(swept)
    assert [(point.label, point.successes, point.scored) for point in curve.points] == [
        ("0.1", 4, 4),
        ("0.5", 4, 8),
    ]
    assert curve.points[1].interval == wilson_interval(4, 8)
    assert not curve.over_checkpoints


def test_checkpoints_make_a_learning_curve_in_the_order_of_their_steps(jobs: list[JobOnPage]):
    key = "sweep.policy_config_dict.checkpoint_path"
    paths = ("run/model_1000.pt", "checkpoints/000050/pretrained_model", "run/model_300.pt")
    swept = [with_row(job, **{key: path}) for job, path in zip(jobs, paths, strict=True)]
    (curve,) = curves(swept)
    assert curve.over_checkpoints
    assert [point.label for point in curve.points] == ["50", "300", "1000"]
    assert [point.address for point in curve.points] == ["#job-1", "#job-2", "#job-0"]
    assert [(round(point.x, 4), point.rate) for point in curve.points] == [(0.0, 0.25), (0.2632, 0.75), (1.0, 1.0)]


def test_other_texts_have_no_strength(jobs: list[JobOnPage]):
    assert curves([with_row(job, **{"sweep.object": name}) for job, name in zip(jobs, "xyz", strict=True)]) == ()


def test_policies_stand_against_tasks(jobs: list[JobOnPage]):
    told = [
        with_row(jobs[0], environment="lift", policy="mine:A"),
        with_row(jobs[1], environment="reach", policy="mine:A"),
        with_row(jobs[2], environment="lift", policy="mine:B"),
    ]
    found = matrix(told)
    assert found is not None
    assert [policy for policy, _ in found.lines] == ["A", "B"]
    assert found.lines[0][1][0] is not None
    assert found.lines[0][1][0].successes == 4
    assert found.lines[1][1][1] is None
    assert matrix(jobs) is None


def test_every_episode_is_in_one_bin_with_how_it_came_out():
    generator = np.random.default_rng(1)
    values, won = generator.normal(size=333), generator.random(333) < 0.3
    bins = histogram(values, won)
    assert sum(each.count for each in bins) == 333
    assert sum(each.successes for each in bins) == won.sum()
    assert (bins[0].low, bins[-1].high) == (values.min(), values.max())
    whole = histogram(np.repeat(np.arange(10, 60), 3).astype(float), np.ones(150, bool), whole=True)
    assert {each.high - each.low for each in whole} == {whole[0].high - whole[0].low}
    assert sum(each.count for each in whole) == 150
    assert all(each.low == int(each.low) for each in whole)
    assert [each.count for each in histogram(np.full(5, 7.0), np.ones(5, bool)) if each.count] == [5]
    assert histogram(np.full(2, np.nan), np.ones(2, bool)) == ()


# Late answers on the page: what was assumed beside what was measured, and success as latency grows.


def page_words(directory: Path, *, stored: bool = False) -> str:
    merged = merge_results(directory)
    if stored:
        write_tables(directory, merged)
        found = stored_results(directory)
        assert found is not None
        merged = found
    html = html_of(page_of({directory: merged}, embedded_bytes=0), directory)
    return " ".join(re.sub(r"<[^>]+>", "", html).split())


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
    page = page_of({directory: merge_results(directory)}, embedded_bytes=0)
    (curve,) = page.curves
    assert curve.key == "latency.steps"
    assert [(point.label, point.successes, point.scored) for point in curve.points] == [
        ("0", 10, 10),
        ("1", 9, 10),
        ("2", 7, 10),
        ("4", 4, 10),
        ("8", 1, 10),
    ]
    assert [point.x for point in curve.points] == [0.0, 0.125, 0.25, 0.5, 1.0]
    assert all(point.interval.low <= point.rate <= point.interval.high for point in curve.points)
