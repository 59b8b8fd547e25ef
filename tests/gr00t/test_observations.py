"""Joints and images, as a GR00T model names them."""

import os
from pathlib import Path

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena_gr00t.config import (
    JointFiles,
    PolicyJoints,
    read_joint_order,
    read_policy_config,
    read_policy_joints,
)
from isaaclab_arena_gr00t.observations import Wiring, action_chunks, resized_with_padding, to_groups, wired_action
from tests.gr00t.fakes import GROUPS, write_yaml
from tests.gr00t.panda_checkpoint import CONFIGS

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
    groups = {key: part.numpy() for key, part in to_groups(values, positions).items()}
    wiring = Wiring(cameras={}, image_size=(1, 1), state_terms=(), state={}, action=positions, language_keys=())
    assert torch.equal(action_chunks(groups, wiring, num_slots=2, chunk_length=5), values)


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


def test_one_list_of_groups_serves_state_and_action(tmp_path):
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", {"arm": ["b", "a"], "hand": ["c"]}))
    assert joints.state == joints.action == {"arm": ("b", "a"), "hand": ("c",)}


def test_state_and_action_may_have_groups_of_their_own(tmp_path):
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", GROUPS))
    assert joints.state["hand"] == ("right_finger", "left_finger")
    assert joints.action["hand"] == ("grip",)


def test_the_order_of_a_simulation_is_that_of_its_positions_and_not_of_the_lines(tmp_path):
    assert read_joint_order(write_yaml(tmp_path / "o.yaml", {"b": 1, "c": 2, "a": 0})) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a mapping with at least one entry"),
        ({}, "must be a mapping with at least one entry"),
        ({"a": 0, "b": "1"}, "b: '1' is no position"),
        ({"a": 0, "b": True}, "b: True is no position"),
        ({"a": 0, "b": 2}, "b: has position 2, where 1 is the next; each of 0 to 1 is due"),
        ({"a": 0, "b": 0}, "b: has position 0, where 1 is the next"),
    ],
)
def test_an_order_with_holes_or_nonsense_is_refused(tmp_path, document, message):
    path = write_yaml(tmp_path / "o.yaml", document)
    with pytest.raises(ConfigError, match=message) as refused:
        read_joint_order(path)
    assert refused.value.problems[0].file == path


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"arm": "a"}, "arm"),
        ({"arm": []}, "arm"),
        ({"arm": ["a", "a"]}, "arm"),
        ({"arm": ["a"], "hand": [1]}, "hand"),
        ({"state": {"arm": ["a"]}, "action": {"arm": "a"}}, "action.arm"),
        ({"state": {"arm": ["a"]}, "action": {}}, "action"),
    ],
)
def test_groups_that_are_no_lists_of_different_names_are_refused_by_key(tmp_path, document, key):
    path = write_yaml(tmp_path / "j.yaml", document)
    with pytest.raises(ConfigError) as refused:
        read_policy_joints(path)
    assert [(problem.file, problem.key) for problem in refused.value.problems] == [(path, key)]


def test_the_files_of_the_panda_fit_together():
    groups = read_policy_joints(CONFIGS / "panda_joints.yaml")
    for kind, joints in (("state", groups.state), ("action", groups.action)):
        order = read_joint_order(CONFIGS / f"panda_{kind}_joints.yaml")
        assert sorted(order) == sorted(joint for group in joints.values() for joint in group)


@pytest.mark.parametrize("read", [read_policy_config, read_joint_order])
def test_a_yaml_file_that_is_a_pipe_or_a_device_is_refused(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(ConfigError, match=f"is {kind}, not a file") as caught:
            read(path)
        assert caught.value.problems[0].file == str(path)


def pictures(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, height, width, 3), dtype=torch.uint8, generator=generator)


def test_a_picture_of_the_right_size_is_left_as_it_is():
    images = pictures(6, 8)
    assert resized_with_padding(images, height=6, width=8) is images


def test_a_picture_that_is_shrunk_to_half_is_the_mean_of_each_four_pixels():
    images = pictures(8, 8)
    small = resized_with_padding(images, height=4, width=4)
    means = images.float().reshape(5, 4, 2, 4, 2, 3).mean(dim=(2, 4))
    assert small.dtype == torch.uint8
    assert torch.equal(small, means.round().to(torch.uint8))


def test_a_wide_picture_keeps_its_aspect_between_black_bars():
    images = torch.full((2, 10, 20, 3), 200, dtype=torch.uint8)
    square = resized_with_padding(images, height=8, width=8)
    assert torch.equal(square[:, 2:6], torch.full((2, 4, 8, 3), 200, dtype=torch.uint8))
    assert not square[:, :2].any()
    assert not square[:, 6:].any()


def test_a_tall_picture_is_enlarged_between_bars_at_its_sides():
    images = torch.full((1, 4, 2, 3), 90, dtype=torch.uint8)
    large = resized_with_padding(images, height=8, width=8)
    assert torch.equal(large[:, :, 2:6], torch.full((1, 8, 4, 3), 90, dtype=torch.uint8))
    assert large.sum() == 8 * 4 * 3 * 90


def test_a_picture_does_not_depend_on_those_beside_it():
    images = pictures(9, 13)
    together = resized_with_padding(images, height=7, width=7)
    assert all(
        torch.equal(resized_with_padding(images[[index]], height=7, width=7)[0], together[index]) for index in range(5)
    )


def test_even_a_sliver_keeps_a_pixel():
    shown = resized_with_padding(torch.full((1, 1, 1000, 3), 255, dtype=torch.uint8), height=8, width=8)
    assert shown.any(dim=-1).sum(dim=1).tolist() == [[1] * 8]
