import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.attempts import (
    JobWork,
    as_ranges,
    attempt_numbers,
    of_ranges,
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


@pytest.mark.parametrize(
    ("indices", "ranges"),
    [((), ()), ((0,), ((0, 1),)), ((5, 0, 1, 2), ((0, 3), (5, 6))), (range(4), ((0, 4),)), ((3, 3, 4), ((3, 5),))],
)
def test_ranges_hold_the_indices_they_were_made_of(indices, ranges):
    assert as_ranges(indices) == ranges
    assert of_ranges(ranges) == frozenset(indices)
