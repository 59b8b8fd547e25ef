import pytest
import torch

from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena_gr00t.config import JointFiles, PolicyJoints
from isaaclab_arena_gr00t.observations import from_groups, to_groups, wired_action

ORDER = ("hip", "knee", "elbow", "wrist")


def wired(order: tuple[str, ...], **groups: tuple[str, ...]) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    files = JointFiles(policy=PolicyJoints(state={}, action=groups))
    places, problems = wired_action(ArraySpec(shape=(len(order),), names=order), list(groups), files)
    return places, [str(problem) for problem in problems]


def test_groups_take_their_joints_by_name_wherever_the_simulation_has_them():
    positions, problems = wired(ORDER, arm=("wrist", "elbow"), leg=("hip", "knee"))
    assert problems == []
    values = torch.tensor([[[0.0, 1.0, 2.0, 3.0]], [[10.0, 11.0, 12.0, 13.0]]])
    groups = to_groups(values, positions)
    assert groups["arm"].tolist() == [[[3.0, 2.0]], [[13.0, 12.0]]]
    assert groups["leg"].tolist() == [[[0.0, 1.0]], [[10.0, 11.0]]]


def test_what_was_taken_apart_comes_together_again():
    positions = {"a": (3, 0), "b": (2,), "c": (1,)}
    values = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(from_groups(to_groups(values, positions), positions), values)


@pytest.mark.parametrize(
    ("order", "joints", "says"),
    [
        (ORDER, ("hip", "elbows"), "action group 'arm': there is no joint 'elbows'; did you mean 'elbow'"),
        (("hip", "knee", "hip"), ("hip",), "action group 'arm': 'hip' stands at positions 0 and 2"),
    ],
)
def test_a_joint_that_is_not_there_or_there_twice_is_named(order, joints, says):
    _, problems = wired(order, arm=joints)
    assert any(says in problem for problem in problems)
