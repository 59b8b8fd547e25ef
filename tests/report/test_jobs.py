from pathlib import Path

from isaaclab_arena.report.jobs import JobOnPage, job_on_page
from isaaclab_arena.results.merge import merge_results, records
from tests.analysis.recorded_runs import failed_by, write_run


def job_of(directory: Path, outcomes: str) -> JobOnPage:
    merged = merge_results(write_run(directory / "run", {"lift": outcomes}))
    return job_on_page(records(merged.jobs)[0], merged.episodes, run=0, label="lift")


def test_the_sentence_says_what_a_paper_says(tmp_path: Path):
    job = job_of(tmp_path, "sssfe")
    assert job.sentence.startswith("lift (")
    assert job.sentence.endswith("): 3 of 4, 75.0 % [30.1, 95.4]; 1 error")
    assert job.failed == {3, 4}
    assert job.num_scored == 4


def test_outcomes_count_every_episode_once(tmp_path: Path):
    job = job_of(tmp_path, "ssfte")
    assert job.outcomes == {"success": 2, "failure": 1, "timeout": 1, "error": 1}
    assert sum(each.count for each in job.lengths) == 4


def test_a_job_without_an_episode_has_no_rate(tmp_path: Path):
    job = job_of(tmp_path, "--")
    assert job.rate == "-"
    assert job.sentence.endswith("2 missing")
    assert job.episodes["count"] == 0


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


def test_a_job_whose_environment_tells_nothing_has_no_reasons(tmp_path: Path):
    assert job_of(tmp_path, "sf").reasons == ()
