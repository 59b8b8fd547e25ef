from dataclasses import replace

import pytest

from isaaclab_arena.environments.tasks.cartpole import CARTPOLE_ROBOT as CART
from isaaclab_arena.errors import ConfigError


def test_every_name_that_the_file_of_a_floor_robot_lacks_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        replace(CART, root_body="robot/rial", joints=("robot/slider", "hinge"), free_joint="robot/free")
    assert [problem.message for problem in caught.value.problems] == [
        "'cartpole': no body called 'robot/rial'; did you mean 'robot/rail'?",
        "'cartpole': no free joint called 'robot/free'",
        "'cartpole': no joint called 'hinge'; did you mean 'robot/hinge'?",
    ]
    assert {problem.file.rpartition("/")[2] for problem in caught.value.problems if problem.file} == {"cartpole.xml"}


def test_its_numbers_pair_up_with_its_joints_and_actuators():
    with pytest.raises(ConfigError, match="action_scale has 2 entries for 1 actuators"):
        replace(CART, action_scale=(1.0, 2.0))
