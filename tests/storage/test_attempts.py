import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.attempts import (
    JobWork,
    attempt_numbers,
    read_attempt,
    read_attempts,
    write_attempt,
)
from tests.results.evidence import attempt


def test_attempts_come_back_in_order(tmp_path):
    first = attempt(1, jobs=(JobWork(job="lift", finished=((0, 3), (7, 8))), JobWork(job="reach")))
    write_attempt(tmp_path, attempt(10, retry_errors=True))
    write_attempt(tmp_path, first)
    assert attempt_numbers(tmp_path) == [1, 10]
    assert read_attempts(tmp_path) == [first, attempt(10, retry_errors=True)]


def test_an_attempt_is_never_written_over(tmp_path):
    write_attempt(tmp_path, attempt(1))
    with pytest.raises(StorageError, match="exists already"):
        write_attempt(tmp_path, attempt(1, world_size=2))


def test_a_missing_attempt_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"attempt_3\.json is missing"):
        read_attempt(tmp_path, 3)
