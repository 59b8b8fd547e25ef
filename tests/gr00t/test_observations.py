"""Joints and images, as a GR00T model names them."""

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.specs import resized_with_padding
from isaaclab_arena_gr00t.config import (
    read_joint_order,
    read_policy_joints,
)
from isaaclab_arena_gr00t.observations import Wiring, action_chunks, to_groups
from tests.gr00t.fakes import GROUPS, write_yaml


def test_what_was_taken_apart_comes_together_again():
    positions = {"a": (3, 0), "b": (2,), "c": (1,)}
    values = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    groups = {key: part.numpy() for key, part in to_groups(values, positions).items()}
    wiring = Wiring(cameras={}, image_size=(1, 1), state_terms=(), state={}, action=positions, language_keys=())
    assert torch.equal(action_chunks(groups, wiring, num_slots=2, chunk_length=5), values)


def test_one_list_of_groups_serves_state_and_action_and_each_may_have_its_own(tmp_path):
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", {"arm": ["b", "a"], "hand": ["c"]}))
    assert joints.state == joints.action == {"arm": ("b", "a"), "hand": ("c",)}
    joints = read_policy_joints(write_yaml(tmp_path / "j.yaml", GROUPS))
    assert (joints.state["hand"], joints.action["hand"]) == (("right_finger", "left_finger"), ("grip",))


def test_the_order_of_a_simulation_is_that_of_its_positions_and_not_of_the_lines(tmp_path):
    assert read_joint_order(write_yaml(tmp_path / "o.yaml", {"b": 1, "c": 2, "a": 0})) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ([], None),
        ({}, None),
        ({"a": 0, "b": "1"}, "b"),
        ({"a": 0, "b": True}, "b"),
        ({"a": 0, "b": 2}, "b"),
        ({"a": 0, "b": 0}, "b"),
    ],
)
def test_an_order_with_holes_or_nonsense_is_refused(tmp_path, document, key):
    path = write_yaml(tmp_path / "o.yaml", document)
    with pytest.raises(ConfigError) as refused:
        read_joint_order(path)
    assert (refused.value.problems[0].file, refused.value.problems[0].key) == (path, key)


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


def pictures(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (5, height, width, 3), dtype=torch.uint8, generator=generator)


def test_a_picture_that_is_shrunk_to_half_is_the_mean_of_each_four_pixels():
    images = pictures(8, 8)
    small = resized_with_padding(images, height=4, width=4)
    means = images.float().reshape(5, 4, 2, 4, 2, 3).mean(dim=(2, 4))
    assert small.dtype == torch.uint8
    assert torch.equal(small, means.round().to(torch.uint8))


def test_a_picture_keeps_its_aspect_between_black_bars():
    images = torch.full((2, 10, 20, 3), 200, dtype=torch.uint8)
    square = resized_with_padding(images, height=8, width=8)
    assert torch.equal(square[:, 2:6], torch.full((2, 4, 8, 3), 200, dtype=torch.uint8))
    assert not square[:, :2].any()
    assert not square[:, 6:].any()
    tall = torch.full((1, 4, 2, 3), 90, dtype=torch.uint8)
    large = resized_with_padding(tall, height=8, width=8)
    assert torch.equal(large[:, :, 2:6], torch.full((1, 8, 4, 3), 90, dtype=torch.uint8))
    assert large.sum() == 8 * 4 * 3 * 90
    assert resized_with_padding(images, height=10, width=20) is images


def test_a_picture_does_not_depend_on_those_beside_it():
    images = pictures(9, 13)
    together = resized_with_padding(images, height=7, width=7)
    assert all(
        torch.equal(resized_with_padding(images[[index]], height=7, width=7)[0], together[index]) for index in range(5)
    )


def test_even_a_sliver_keeps_a_pixel():
    shown = resized_with_padding(torch.full((1, 1, 1000, 3), 255, dtype=torch.uint8), height=8, width=8)
    assert shown.any(dim=-1).sum(dim=1).tolist() == [[1] * 8]
