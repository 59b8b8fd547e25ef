import pytest
import torch

from isaaclab_arena_gr00t.joints import from_groups, positions_of, to_groups

ORDER = ("hip", "knee", "elbow", "wrist")


def test_groups_take_their_joints_by_name_wherever_the_simulation_has_them():
    positions = {"arm": positions_of(("wrist", "elbow"), ORDER), "leg": positions_of(("hip",), ORDER)}
    values = torch.tensor([[[0.0, 1.0, 2.0, 3.0]], [[10.0, 11.0, 12.0, 13.0]]])
    groups = to_groups(values, positions)
    assert groups["arm"].tolist() == [[[3.0, 2.0]], [[13.0, 12.0]]]
    assert groups["leg"].tolist() == [[[0.0]], [[10.0]]]


def test_what_was_taken_apart_comes_together_again():
    positions = {"a": (3, 0), "b": (2,), "c": (1,)}
    values = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(from_groups(to_groups(values, positions), positions), values)


def test_a_joint_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(KeyError, match="there is no joint 'elbows'; did you mean 'elbow'"):
        positions_of(("hip", "elbows"), ORDER)


def test_a_joint_that_is_there_twice_is_refused():
    with pytest.raises(KeyError, match="'hip' stands at positions 0 and 2"):
        positions_of(("hip",), ("hip", "knee", "hip"))
