import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.robots.embodiment import described_embodiment, menagerie_embodiment
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.sim.scene import ASSETS
from tests.environments.building import build, play, refusal
from tests.environments.six_axis import DESCRIPTION, JOB_FILE

DOCUMENT = Path(__file__).parents[3] / "docs" / "how_to" / "robots.md"


def changed(directory: Path, **changes) -> Path:
    """Write another description; a change ``arm__home`` replaces ``arm.home``, None leaves a key out."""
    values = yaml.safe_load((directory / "six_axis.yaml").read_text())
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = values
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[key]
        else:
            place[key] = value
    file = directory / "changed.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def problems_of(file: Path) -> dict[str | None, str]:
    with pytest.raises(ConfigError) as caught:
        described_embodiment(file)
    assert {problem.file for problem in caught.value.problems} == {str(file)}
    return {problem.key: problem.message for problem in caught.value.problems}


def solves(task: str, embodiment: str, **options) -> ArenaEnvironment:
    """Return an environment in which the scripted policy has solved an episode in each of two env slots."""
    env = build(task, num_envs=2, embodiment=embodiment, **options)
    ends = play(env, ScriptedPolicy(), 2)
    assert [record.outcome for record in ends.records.values()] == [Outcome.SUCCESS] * 2
    return env


@pytest.mark.parametrize(("task", "mode"), [("reach", "ee_delta"), ("lift_object", "joint_position")])
def test_the_documented_robot_solves_tasks_where_its_description_puts_it_and_has_its_cameras(directory, task, mode):
    camera = {"name": "top_cam", "body": "forearm", "position": [0.1, 0, 0], "fovy_deg": 50.0}
    changes = {"base__position": [0.05, 0.0, 0.0], "cameras": [camera]}
    env: Any = solves(task, str(changed(directory, **changes)), action_mode=mode)
    assert env.provenance()["embodiment"] == "six_axis"
    assert env.state()["articulation"]["robot"]["root_pose"][:, 0].tolist() == pytest.approx([0.05] * 2)
    assert {"top_cam_rgb", "wrist_cam_rgb"} <= set(env.filmable)


def test_the_page_shows_the_description_that_is_written():
    (shown,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert DESCRIPTION.endswith(f"\n{shown.replace('my_robot', 'six_axis')}")


def test_the_job_file_that_is_written_completes(directory, monkeypatch):
    (directory / "jobs.json").write_text(JOB_FILE)
    monkeypatch.chdir(directory)
    assert main(["--eval_jobs_config", "jobs.json", "--output_dir", "out"]) == 0
    jobs = json.loads((directory / "out" / "results.json").read_text())["jobs"]
    assert [(job["status"], job["success_rate"]) for job in jobs] == [("completed", 1.0)] * 2
    assert [job["embodiment"] for job in jobs] == ["six_axis"] * 2, "results call the robot by its name"


def test_limits_come_from_the_mjcf_file(directory):
    robot = described_embodiment(directory / "six_axis.yaml").robot
    assert (robot.joint_low[1], robot.joint_high[1]) == (-1.9, 1.9)
    assert robot.joint_torque_limit == (90.0,) * 6
    assert robot.arm_actuators == robot.arm_joints
    assert robot.finger_unit == "m"


def test_a_robot_without_a_gripper_has_no_width_in_its_action_and_no_task_that_needs_fingers(directory):
    file = str(changed(directory, gripper=None))
    assert solves("reach", file).action_spec.shape == (6,)
    (problem,) = refusal("lift_object", embodiment=file).problems
    assert "no gripper" in problem.message


def test_every_wrong_name_is_told_at_once_with_its_key(directory):
    file = changed(
        directory,
        base__body="bas",
        arm__joints=["yaw", "sholder", "elbow", "wrist_pitch", "wrist_yaw", "wrist_roll"],
        arm__actuators=["yaw", "shoulder", "elbow", "wrist_pitch", "wrist_yaw", "gripper"],
        gripper__actuator="grip",
        tool__body="hnd",
    )
    problems = problems_of(file)
    assert "'base'" in problems["base.body"]
    assert "'shoulder'" in problems["arm.joints.1"]
    assert "'wrist_roll'" in problems["arm.actuators.5"]
    assert {"gripper.actuator", "tool.body"} <= set(problems)


WRIST, MINE = ({"name": name, "body": "hand"} for name in ("wrist_cam", "mine"))
TWO_JOINTS = {"arm__home": [0.0, 0.0], "gripper": None}


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"arm__home": [0.0, 3.0, 0, 0, 0, 0]}, "arm.home.1", "-1.9000 to 1.9000"),
        ({"arm__home": [0.0]}, "arm.home", "1 entries for 6"),
        ({"arm__joints": ["yaw", "left"], "arm__home": [0.0, 0.0]}, "arm.joints.1", "'left' is no hinge"),
        ({"gripper__joints": ["left", "left"]}, "gripper.joints", "two joints at once"),
        ({"arm__joints": ["yaw", "yaw"], **TWO_JOINTS}, "arm.joints", "'yaw' moves as two"),
        ({"gripper__actuator": "wrist_roll"}, "gripper.actuator", "two actuators at once"),
        ({"gripper__open_control": 40}, "gripper.open_control", "0 to 0.04"),
        ({"cameras": [WRIST]}, "cameras.0.name", "'wrist_cam' already"),
        ({"cameras": [MINE, MINE]}, "cameras.1.name", "'mine' already"),
        ({"gripper__open": [0.04]}, "gripper.open", "1 entries for 2"),
        ({"gripper__open_control": 0.0}, "gripper.open_control", "closed_control"),
        ({"workspace__low": [0.6, -0.2, 0.1]}, "workspace", "0.52"),
        ({"gripper__width": -1.0}, "gripper.width", "greater than 0.0"),
        ({"arm__home": None}, "arm.home", "missing"),
        ({"arm__joint": ["yaw"]}, "arm.joint", "unknown key"),
        ({"name": 3}, "name", "quotes"),
        ({"mjcf": "other.xml"}, "mjcf", "no such file"),
        ({"mjcf": "broken.xml"}, "mjcf", "broken.xml"),
    ],
)
def test_a_mistake_in_the_description_is_told_with_its_key(directory, changes, key, message):
    (directory / "broken.xml").write_text("<mujoco><worldbdy/></mujoco>")
    assert message in problems_of(changed(directory, **changes))[key]


@pytest.mark.parametrize(
    ("embodiment", "told"),
    [("nowhere/none.yaml", "none.yaml"), ("menagerie:franka_emika_pand", "'franka_emika_panda'")],
)
def test_a_robot_that_is_nowhere_is_a_mistake_of_the_embodiment_option(embodiment, told):
    (problem,) = refusal("reach", embodiment=embodiment).problems
    assert problem.key == "embodiment"
    assert told in problem.message


def menagerie_checkout(directory: Path) -> Path:
    """Make a stand-in for a checkout: our Panda under the names that Menagerie's file has."""
    text = (ASSETS / "robots" / "panda.xml").read_text().replace("panda_", "")
    for number in range(1, 8):
        text = text.replace(f'<position name="joint{number}"', f'<position name="actuator{number}"')
    text = text.replace(
        '<position name="gripper" tendon="opening" kp="2000" kv="60" ctrlrange="0 0.04" forcerange="-70 70"/>',
        '<general name="actuator8" tendon="opening" forcerange="-100 100" ctrlrange="0 255" biastype="affine" '
        'gainprm="0.313725 0 0" biasprm="0 -2000 -60"/>',
    ).replace('<camera name="wrist_cam"', '<camera name="other_cam"')
    (directory / "franka_emika_panda").mkdir(parents=True)
    keyframe = '<keyframe><key name="home" qpos="0 0 0 -1.57 0 1.57 -0.78 0.04 0.04"/></keyframe></mujoco>'
    (directory / "franka_emika_panda" / "panda.xml").write_text(text.replace("</mujoco>", keyframe))
    return directory


def test_a_robot_of_menagerie_is_built_from_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("MENAGERIE_ROOT", str(menagerie_checkout(tmp_path)))
    env: Any = solves("lift_object", "menagerie:franka_emika_panda")
    assert env.robot.gripper_open == 255
    assert "wrist_cam_rgb" in env.filmable


UR5E_LINKS = (
    ('"shoulder_link" pos="0 0 0.163"', "shoulder_pan", 'axis="0 0 1"'),
    ('"upper_arm_link" pos="0 0.138 0" quat="1 0 1 0"', "shoulder_lift", ""),
    ('"forearm_link" pos="0 -0.131 0.425"', "elbow", 'range="-3.1415 3.1415"'),
    ('"wrist_1_link" pos="0 0 0.392" quat="1 0 1 0"', "wrist_1", ""),
    ('"wrist_2_link" pos="0 0.127 0"', "wrist_2", 'axis="0 0 1"'),
    ('"wrist_3_link" pos="0 0 0.1"', "wrist_3", ""),
)
UR5E = """
<mujoco model="ur5e">
  <compiler angle="radian" autolimits="true"/>
  <default>
    <joint axis="0 1 0" range="-6.28319 6.28319" armature="0.1" damping="100"/>
    <position kp="3000" ctrlrange="-6.2831 6.2831" forcerange="-150 150"/>
    <geom type="sphere" size="0.03" mass="1.5" contype="0" conaffinity="1"/>
  </default>
  <worldbody><body name="base" quat="1 0 0 1"><geom contype="0" conaffinity="0"/>{bodies}</body></worldbody>
  <actuator>{actuators}</actuator>
</mujoco>
"""


def ur5e() -> str:
    """Return a stand-in for Menagerie's UR5e, with its names and lengths."""
    bodies = ""
    for body, name, joint in UR5E_LINKS[::-1]:
        flange = "" if bodies else 'pos="0 0.07 0"'
        bodies = f'<body name={body}><joint name="{name}_joint" {joint}/><geom {flange}/>{bodies}</body>'
    actuators = (f'<position name="{name}" joint="{name}_joint"/>' for _, name, _ in UR5E_LINKS)
    return UR5E.format(bodies=bodies, actuators="".join(actuators))


def test_an_arm_of_menagerie_without_a_gripper_solves_what_needs_none(tmp_path, monkeypatch):
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    (tmp_path / "universal_robots_ur5e").mkdir()
    (tmp_path / "universal_robots_ur5e" / "ur5e.xml").write_text(ur5e())
    solves("press_button", "menagerie:universal_robots_ur5e")


def test_without_a_checkout_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MENAGERIE_ROOT", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="MENAGERIE_ROOT"):
        menagerie_embodiment("franka_emika_panda")
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    with pytest.raises(ConfigError, match="no directory 'franka_emika_panda'"):
        menagerie_embodiment("franka_emika_panda")
