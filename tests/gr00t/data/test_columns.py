import numpy as np

from isaaclab_arena_gr00t.data.features import Column, whole_arrays

JOINTS = np.arange(14, dtype=np.float32).reshape(2, 7)
FINGERS = np.array([[70, 71], [72, 73]], np.float32)
ARRAYS = {"obs/joints": JOINTS, "obs/fingers": FINGERS}


def reordered(**groups: tuple[int, ...]) -> Column:
    sources = {"obs/joints": 7, "obs/fingers": 2}
    return Column(sources=sources, groups=groups, names=tuple("abcdefghi"))


def test_a_column_holds_its_groups_side_by_side_in_their_own_order():
    column = reordered(hand=(8, 7), arm=(6, 0))
    assert column.packed(ARRAYS).tolist() == [[71, 70, 6, 0], [73, 72, 13, 7]]
    assert column.spans() == {"hand": (0, 2), "arm": (2, 4)}
    assert column.size == 4


def test_what_a_column_holds_whole_comes_back():
    column = reordered(hand=(8, 7), arm=(6, 5, 4, 3, 2, 1, 0))
    arrays = column.unpacked(column.packed(ARRAYS))
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    assert column.incomplete_groups() == ()


def test_an_array_of_which_a_joint_is_missing_does_not_come_back_and_its_group_is_named():
    column = reordered(hand=(8, 7), arm=(6, 5, 4, 3, 2, 1))
    assert list(column.unpacked(column.packed(ARRAYS))) == ["obs/fingers"]
    assert column.incomplete_groups() == ("arm",)


def test_whole_arrays_are_groups_of_their_own():
    column = whole_arrays({"joints": ("obs/joints", 7), "fingers": ("obs/fingers", 2)})
    assert column.spans() == {"joints": (0, 7), "fingers": (7, 9)}
    assert column.names[6:8] == ("joints_6", "fingers_0")
    assert column.packed(ARRAYS)[0].tolist() == [*range(7), 70, 71]
