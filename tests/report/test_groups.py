from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.report.jobs import JobOnPage, curves, job_on_page, matrix
from isaaclab_arena.results.merge import merge_results, records
from isaaclab_arena.results.statistics import wilson_interval
from tests.analysis.recorded_runs import write_run


@pytest.fixture
def jobs(tmp_path: Path) -> list[JobOnPage]:
    merged = merge_results(write_run(tmp_path / "run", {"a": "ssss", "b": "sfff", "c": "sssf"}, own_starts=True))
    parts = [pd.DataFrame(merged.episodes[merged.episodes["job"] == name]) for name in ("a", "b", "c")]
    rows = records(merged.jobs)
    return [job_on_page(row, part, run=0, label=row["name"]) for row, part in zip(rows, parts, strict=True)]


def with_row(job: JobOnPage, **cells: object) -> JobOnPage:
    keys = {name: str(value) for name, value in cells.items() if not name.startswith("sweep.")}
    return replace(job, row={**job.row, **cells}, keys={**job.keys, **keys})


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
    swept = [with_row(job, **{key: f"run/model_{step}.pt"}) for job, step in zip(jobs, (1000, 50, 300), strict=True)]
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


def test_jobs_that_play_the_same_episodes_under_other_seeds_are_pooled_as_one(tmp_path: Path):
    merged = merge_results(write_run(tmp_path / "again", {"a": "ssss", "b": "ssss", "c": "ssss"}))
    rows = records(merged.jobs)
    parts = [pd.DataFrame(merged.episodes[merged.episodes["job"] == row["name"]]) for row in rows]
    jobs = [job_on_page(row, part, run=0, label=row["name"]) for row, part in zip(rows, parts, strict=True)]
    swept = [with_row(job, **{"sweep.noise.high": float(at > 0), "sweep.seed": at}) for at, job in enumerate(jobs)]
    (curve,) = curves(swept)
    once, twice = curve.points
    assert (once.repeats, twice.repeats) == ("", " (4 different conditions)")
    assert (twice.scored, twice.distinct) == (8, 4)
    assert twice.interval.low == pytest.approx(once.interval.low)
