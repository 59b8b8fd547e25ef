import logging

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.results.merge import merge_results, write_tables
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.storage.reports import ReportedStatus
from isaaclab_arena.tracking.watched_run import MAX_FILMS_OF_A_JOB, OpenedTracker, WatchedRun, tracked_run
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.tracking.runs import NotingTracker, finished_run, stopped_run, write_film


def watched(directory, *trackers) -> WatchedRun:
    opened = [OpenedTracker(f"tracker {number}", lambda each=each: each) for number, each in enumerate(trackers)]
    return WatchedRun(directory, read_run_plan(directory), opened)


def test_each_look_tells_how_a_job_stands_and_only_what_is_new(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=5), planned("still", index=1))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    run.look()
    assert (tracker.jobs, tracker.tables) == ([], [])
    write_lines(tmp_path, commit_lines("sf"))
    run.look()
    run.look()
    write_lines(tmp_path, commit_lines("sst", first=2))
    run.look()
    assert [(each.job, each.episodes) for each in tracker.jobs] == [("lift", 2), ("lift", 5)]
    assert tracker.jobs[1].values["success_rate"] == pytest.approx(0.6)
    assert tracker.jobs[1].values["success_low"] < 0.6 < tracker.jobs[1].values["success_high"]
    assert (tracker.jobs[1].values["failures"], tracker.jobs[1].values["timeouts"]) == (1, 1)


@pytest.mark.parametrize("status", [ReportedStatus.COMPLETED, ReportedStatus.FAILED])
def test_a_row_is_told_when_its_job_has_ended(tmp_path, status):
    write_plan(tmp_path, planned("lift", num_episodes=2), planned("still", index=1, num_episodes=2))
    write_lines(tmp_path, commit_lines("sf"))
    write_lines(tmp_path, commit_lines("s", job="still"))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    write_report(tmp_path, report(status=status))
    run.look()
    [[row]] = tracker.tables
    assert (row["name"], row["status"], row["successes"]) == ("lift", status, 1)


def test_the_last_table_is_that_of_the_run(tmp_path):
    tracker = NotingTracker()
    watched(finished_run(tmp_path), tracker).finish()
    assert tracker.is_closed
    assert [(row["name"], row["success_rate"]) for row in tracker.tables[-1]] == [("early", 2 / 3), ("late.v2", 1.0)]
    assert tracker.tables[-1][0]["sweep.policy_config_dict.checkpoint_path"] == "runs/model_100.pt"


def test_swept_checkpoints_make_a_curve_over_their_training_steps(tmp_path):
    tracker = NotingTracker()
    watched(finished_run(tmp_path), tracker).finish()
    points = [(each.series, each.step, each.values["success_rate"]) for each in tracker.checkpoints]
    assert points == [("lift_object", 100, pytest.approx(2 / 3)), ("lift_object", 200, 1.0)]


def test_films_of_failures_are_told_once_and_those_of_successes_never(tmp_path):
    tracker = NotingTracker()
    run = watched(finished_run(tmp_path), tracker)
    run.look()
    run.finish()
    [film] = tracker.films
    assert (film.job, film.episode_index, film.outcome) == ("early", 1, "failure")


def test_a_film_that_is_complete_after_its_episode_was_committed_is_told_at_the_end(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=1))
    write_lines(tmp_path, commit_lines("f"))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    run.look()
    write_film(tmp_path, "lift", 0)
    run.finish()
    assert [film.path.name for film in tracker.films] == ["viewport-env0-episode-0.mp4"]


def test_few_films_of_a_job_are_told(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=12))
    write_lines(tmp_path, commit_lines("f" * 12))
    for index in range(12):
        write_film(tmp_path, "lift", index, num_frames=1)
    tracker = NotingTracker()
    watched(tmp_path, tracker).finish()
    assert len(tracker.films) == MAX_FILMS_OF_A_JOB


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(tmp_path, caplog):
    broken, sound = NotingTracker(broken="no route to host\nand more"), NotingTracker()
    with caplog.at_level(logging.WARNING, logger="isaaclab_arena"):
        watched(finished_run(tmp_path), broken, sound).finish()
    [warning] = caplog.messages
    assert warning == "tracker 0 gets no more results of this run, which goes on: no route to host"
    assert not broken.is_closed
    assert (len(sound.jobs), sound.is_closed) == (2, True)


def test_what_services_show_of_a_job_is_its_settings_without_secrets(tmp_path):
    run = finished_run(tmp_path / "sweep")
    shown = tracked_run(run, read_run_plan(run), tmp_path)
    assert (shown.name, shown.run_id) == ("sweep", "run")
    assert shown.jobs["early"]["policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    assert shown.jobs["early"]["arena_env_args.environment"] == "lift_object"
    assert "hush" not in str(shown)


def test_the_table_that_is_told_equals_the_file_of_the_run(tmp_path):
    tracker = NotingTracker()
    watched(finished_run(tmp_path), tracker).finish()
    write_tables(tmp_path, merge_results(tmp_path))
    table = pd.read_csv(tmp_path / "results.csv")
    numbers = ["episodes", "success_rate", "success_low", "success_high", "mean_length"]
    assert list(table["name"]) == [row["name"] for row in tracker.tables[-1]]
    told = [[row[name] for name in numbers] for row in tracker.tables[-1]]
    assert table[numbers].to_numpy(dtype=float) == pytest.approx(np.array(told, dtype=float))


def test_a_job_that_stopped_at_its_answer_ends_with_the_rate_of_its_row(tmp_path):
    stopped_run(tmp_path)
    tracker = NotingTracker()
    watched(tmp_path, tracker).finish()
    rows = {row["name"]: row for row in tracker.tables[-1]}
    assert rows["new"]["decided_at"] < 12
    for name, row in rows.items():
        last = [each for each in tracker.jobs if each.job == name][-1]
        assert last.episodes == row["episodes"] == row["decided_at"]
        assert (last.values["success_low"], last.values["success_high"]) == (row["success_low"], row["success_high"])


def test_a_job_that_stopped_at_its_answer_is_complete_while_the_run_goes_on(tmp_path):
    stopped_run(tmp_path, episodes=8)
    tracker = NotingTracker()
    watched(tmp_path, tracker).look()
    [rows] = tracker.tables
    told = [(row["name"], row["status"], row["episodes"], row["decided_at"]) for row in rows]
    assert told == [("new", "completed", 7, 7), ("old", "completed", 7, 7)]
    assert rows[0]["decision"] == "better: new is better than old"
