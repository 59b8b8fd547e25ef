import os
from pathlib import Path

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena_gr00t.config import read_joint_order, read_policy_config, read_policy_joints
from tests.gr00t.fakes import GROUPS, write_yaml
from tests.gr00t.panda_checkpoint import CONFIGS


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
