import dataclasses
import json
import math
from collections.abc import Mapping
from itertools import permutations
from types import MappingProxyType

import pytest

from isaaclab_arena.interfaces.episode import Episode, EpisodeEvents, EpisodeRecord, Outcome
from isaaclab_arena.storage.ledger import CommitWriter, commit_line, read_commits

CONTEXT = {"rank": 1, "episode_in_env": 0, "timestamp": "2026-01-01T00:00:00+00:00", "wall_s": 0.5, "checksum": 7}
ARENA_FIELDS = {"job_name", "env_id", "episode_in_env", "language_instruction", "seed", "success"} | {
    "episode_length",
    "timestamp",
    "variations",
}


def line(index: int, metrics: Mapping[str, float] = MappingProxyType({"distance_m": 0.25}), **changes):
    record = EpisodeRecord(
        episode=Episode(job="lift", episode_index=index, seed=3),
        env_id=2,
        outcome=Outcome.SUCCESS,
        success=True,
        length=10,
        episode_return=1.5,
        termination="terminated",
        conditions={"cube.position": (0.1, 0.2), "cube.colour": "red"},
        language_instruction="lift the \n cube",
        metrics=dict(metrics),
    )
    return dataclasses.replace(commit_line(record, **CONTEXT), **changes)


def write(directory, *lines):
    writer = CommitWriter(directory, 1)
    for each in lines:
        writer.write(each)
    writer.close()
    return writer.path


def test_a_line_comes_back_as_it_was_and_holds_arenas_fields(tmp_path):
    path = write(tmp_path, line(0))
    said = json.loads(path.read_text())
    assert said.keys() >= ARENA_FIELDS
    assert said["variations"] == {"cube.position": [0.1, 0.2], "cube.colour": "red"}
    (read,) = read_commits(tmp_path, "lift").lines
    assert dataclasses.replace(read, variations=line(0).variations) == line(0)


def test_events_come_back_as_they_were(tmp_path):
    events = EpisodeEvents(progress=0.25, decisive="dropped", seen={"dropped": (31, 2)})
    write(tmp_path, line(0, events=events))
    assert read_commits(tmp_path, "lift").lines[0].events == events


def test_progress_has_arenas_shape_and_is_null_for_tasks_of_one_part(tmp_path):
    metrics = {"progress": 0.5, "progress.red_in_left_bin": 1.0, "progress.blue_in_right_bin": 0.0}
    write(tmp_path, line(0), line(1, metrics))
    one, two = read_commits(tmp_path, "lift").lines
    assert one.progress is None
    assert two.progress == {
        "overall_score": 0.5,
        "all_complete": False,
        "criteria": {
            "red_in_left_bin": {"score": 1.0, "is_complete": True},
            "blue_in_right_bin": {"score": 0.0, "is_complete": False},
        },
    }


def test_lines_are_sorted_by_episode(tmp_path):
    write(tmp_path, line(10), line(9), line(0))
    assert [each.episode_index for each in read_commits(tmp_path, "lift").lines] == [0, 9, 10]


def test_what_is_not_a_number_is_written_as_null(tmp_path):
    path = write(tmp_path, line(0, episode_return=math.nan, metrics={"distance_m": math.inf}))
    said = json.loads(path.read_text(), parse_constant=lambda name: f"bare {name}")
    assert said["episode_return"] is None
    assert said["metrics"] == {"distance_m": None}


def test_a_torn_last_line_is_ignored(tmp_path):
    path = write(tmp_path, line(0), line(1))
    content = path.read_bytes()
    for length in range(content.index(b"\n") + 1, len(content)):
        path.write_bytes(content[:length])
        log = read_commits(tmp_path, "lift")
        assert [each.episode_index for each in log.lines] == [0]
        assert log.problems == ()


def test_garbage_is_reported_with_its_line_and_the_rest_is_read(tmp_path):
    path = write(tmp_path, line(0))
    garbage = [b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"job_name": "lift"}']
    wrong = json.dumps({**json.loads(path.read_text()), "episode_index": True}).encode()
    path.write_bytes(b"\n".join([path.read_bytes().strip(), *garbage, wrong, b""]))
    log = read_commits(tmp_path, "lift")
    assert len(log.lines) == 1
    assert [problem.split(": ")[1].split(" is")[0] for problem in log.problems] == [f"line {n}" for n in range(2, 8)]


def test_of_two_lines_of_an_episode_the_first_counts_and_unequal_ones_are_named(tmp_path):
    write(tmp_path, line(0), line(1))
    write(tmp_path, line(0, wall_s=9.0, env_id=5, timestamp="later"), line(1, success=False, outcome=Outcome.FAILURE))
    log = read_commits(tmp_path, "lift")
    assert [each.success for each in log.lines] == [True, True]
    assert log.unequal_episodes == (1,)


THREE_ATTEMPTS = (
    line(0, attempt=1, outcome=Outcome.ERROR, success=None),
    line(0, attempt=2),
    line(0, attempt=3, success=False, outcome=Outcome.FAILURE),
)


@pytest.mark.parametrize("order", list(permutations(THREE_ATTEMPTS)))
def test_the_earliest_attempt_that_is_no_error_counts_whatever_file_its_line_is_in(tmp_path, order):
    for each in order:
        write(tmp_path, each)
    log = read_commits(tmp_path, "lift")
    assert [(each.attempt, each.outcome) for each in log.lines] == [(2, "success")]
    assert log.retried_episodes == (0,)
    assert log.unequal_episodes == (0,)


@pytest.mark.parametrize("later_is_first", [False, True])
def test_of_unequal_results_the_earlier_attempt_counts_and_an_error_takes_no_place(tmp_path, later_is_first):
    failed = line(0, attempt=1, success=False, outcome=Outcome.FAILURE)
    lines = [failed, line(0, attempt=2, outcome=Outcome.ERROR, success=None)]
    for each in reversed(lines) if later_is_first else lines:
        write(tmp_path, each)
    log = read_commits(tmp_path, "lift")
    assert [each.outcome for each in log.lines] == ["failure"]
    assert (log.unequal_episodes, log.retried_episodes) == ((0,), ())


@pytest.mark.parametrize(
    "changed",
    [
        {"checksum": 8},
        {"outcome": "timeout"},
        {"success": None},
        {"episode_length": 11},
        {"episode_return": 1.6},
        {"termination": "time_limit"},
        {"episode_seed": 5},
    ],
)
def test_whatever_says_how_an_episode_went_makes_two_lines_unequal(tmp_path, changed):
    write(tmp_path, line(0))
    write(tmp_path, line(0, **changed))
    assert read_commits(tmp_path, "lift").unequal_episodes == (0,)


def test_each_process_writes_a_file_of_its_own(tmp_path):
    first, second = CommitWriter(tmp_path, 0), CommitWriter(tmp_path, 0)
    assert first.path.name == "episode_results_rank0.jsonl"
    assert second.path.name == "episode_results_rank0_life1.jsonl"
    first.close()
    second.close()


def test_lines_of_another_job_are_reported(tmp_path):
    write(tmp_path, line(0, job_name="other"))
    log = read_commits(tmp_path, "lift")
    assert log.lines == ()
    assert "belongs to job 'other'" in log.problems[0]


def test_a_job_without_files_has_no_lines(tmp_path):
    assert read_commits(tmp_path / "never", "lift").lines == ()
