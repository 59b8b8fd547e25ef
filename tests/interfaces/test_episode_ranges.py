import pytest

from isaaclab_arena.interfaces.episode import as_ranges, count_episodes, cut, of_ranges, remaining_episodes


@pytest.mark.parametrize(
    ("indices", "ranges"),
    [((), ()), ((0,), ((0, 1),)), ((5, 0, 1, 2), ((0, 3), (5, 6))), (range(4), ((0, 4),)), ((3, 3, 4), ((3, 5),))],
)
def test_ranges_hold_the_indices_they_were_made_of(indices, ranges):
    assert as_ranges(indices) == ranges
    assert of_ranges(ranges) == frozenset(indices)
    assert count_episodes(ranges) == len(set(indices))


@pytest.mark.parametrize(
    ("finished", "remaining"),
    [
        ((), ((0, 10),)),
        (((0, 10),), ()),
        (((0, 3), (5, 6)), ((3, 5), (6, 10))),
        (((2, 12),), ((0, 2),)),
        (((10, 20),), ((0, 10),)),
        (((3, 4), (12, 14)), ((0, 3), (4, 10))),
    ],
)
def test_what_remains_is_what_is_planned_and_not_finished(finished, remaining):
    assert remaining_episodes(10, finished) == remaining


def test_all_but_a_few_remain_when_those_are_finished():
    assert remaining_episodes(8, as_ranges([0, 3, 4])) == ((1, 3), (5, 8))
    assert of_ranges(remaining_episodes(10, as_ranges([7, 2]))) == frozenset(range(10)) - {2, 7}


def test_parts_are_cut_across_gaps():
    assert cut(((0, 3), (5, 7)), [2, 2, 0, 1]) == [((0, 2),), ((2, 3), (5, 6)), (), ((6, 7),)]


def test_parts_must_add_up():
    with pytest.raises(ValueError, match="parts of 3 episodes cannot be cut from 4"):
        cut(((0, 4),), [1, 2])
