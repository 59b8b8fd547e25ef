"""A robot whose short MJCF file asks for too much time and memory is refused before anything is built."""

import pytest
import yaml

from isaaclab_arena import ConfigError, make
from tests.environments.six_axis import DESCRIPTION, MJCF

LEVELS = 15
DOUBLED = "".join(['<replicate count="2" offset="1 0 0">' * LEVELS, '<geom size=".1"/>', "</replicate>" * LEVELS])


def test_a_robot_that_is_too_greedy_is_a_mistake_of_its_description(tmp_path):
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump({**yaml.safe_load(DESCRIPTION), "mjcf": "robot.xml"}))
    (tmp_path / "robot.xml").write_text(MJCF.replace("</mujoco>", f"<worldbody>{DOUBLED}</worldbody></mujoco>"))
    with pytest.raises(ConfigError) as caught:
        make("reach", embodiment=str(tmp_path / "robot.yaml"))
    (problem,) = caught.value.problems
    assert problem.key == "arena_env_args.embodiment"
    assert problem.message.startswith(f"{tmp_path / 'robot.yaml'}: mjcf: ")
    assert "give the robot fewer replicas" in problem.message
