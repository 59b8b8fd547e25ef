import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.ledger import (
    AttemptEntry,
    SettledBatch,
    attempt_numbers,
    attempt_path,
    policy_batches_in_effect,
    read_attempt,
    read_attempts,
    settle,
    write_attempt,
)
from tests.results.evidence import attempt, planned


def test_attempts_come_back_in_order(tmp_path):
    first = attempt(1, jobs=(AttemptEntry(job="lift", finished=((0, 3), (7, 8))), AttemptEntry(job="reach")))
    write_attempt(tmp_path, attempt(10, retry_errors=True))
    write_attempt(tmp_path, first)
    assert attempt_numbers(tmp_path) == [1, 10]
    assert read_attempts(tmp_path) == ([first, attempt(10, retry_errors=True)], [])


def test_an_attempt_is_never_written_over(tmp_path):
    write_attempt(tmp_path, attempt(1))
    with pytest.raises(StorageError, match="exists already"):
        write_attempt(tmp_path, attempt(1, world_size=2))


def test_a_missing_attempt_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"attempt_3\.json is missing"):
        read_attempt(tmp_path, 3)


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 9}', '{"schema_version": 1}'])
def test_an_attempt_that_cannot_be_read_is_told_and_no_obstacle(tmp_path, content):
    write_attempt(tmp_path, attempt(1))
    (tmp_path / "attempts" / "attempt_2.json").write_text(content)
    attempts, problems = read_attempts(tmp_path)
    assert attempts == [attempt(1)]
    assert "attempt_2.json" in problems[0]
    assert attempt_numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    "name", ["attempt_0.json", "attempt_\u0663.json", f"attempt_{'9' * 200}.json", "attempt_1.json.bak"]
)
def test_a_file_of_another_name_is_no_attempt(tmp_path, name):
    write_attempt(tmp_path, attempt(1))
    (tmp_path / "attempts" / name).touch()
    assert attempt_numbers(tmp_path) == [1]


def test_an_attempt_whose_file_is_a_directory_is_named_as_that_and_the_others_are_read(tmp_path):
    write_attempt(tmp_path, attempt(2))
    attempt_path(tmp_path, 1).mkdir()
    attempts, problems = read_attempts(tmp_path)
    assert [each.number for each in attempts] == [2]
    told = "is a directory, not a file; run.json and the recordings say with which versions it ran"
    assert problems == [f"{attempt_path(tmp_path, 1)}: {told}"]


def test_an_attempt_of_another_run_does_not_count(tmp_path):
    write_attempt(tmp_path, attempt(1, run="theirs"))
    write_attempt(tmp_path, attempt(2, run="ours"))
    attempts, [problem] = read_attempts(tmp_path, "ours")
    assert [each.number for each in attempts] == [2]
    assert problem.startswith(f"{attempt_path(tmp_path, 1)}: is of another run; ")
    assert len(read_attempts(tmp_path)[0]) == 2


def test_the_batch_of_a_job_is_what_an_attempt_says_and_before_that_what_was_settled(tmp_path):
    jobs = [planned("lift"), planned("reach"), planned("push")]
    settle(tmp_path / "lift", SettledBatch(policy_batch=8))
    assert policy_batches_in_effect(tmp_path, jobs, [attempt(1, jobs=(AttemptEntry(job="lift"),))]) == {"lift": 8}
    said = [
        attempt(1),
        attempt(2, jobs=(AttemptEntry(job="lift", policy_batch=4), AttemptEntry(job="reach", policy_batch=16))),
    ]
    assert policy_batches_in_effect(tmp_path, jobs, [*said, attempt(3)]) == {"lift": 4, "reach": 16}
    (tmp_path / "push").mkdir()
    (tmp_path / "push" / "settled.json").write_text("{")
    anew = attempt(3, jobs=(AttemptEntry(job="lift", is_rerun=True), AttemptEntry(job="reach", is_rerun=True)))
    assert policy_batches_in_effect(tmp_path, jobs, [*said, anew]) == {"lift": 8}
