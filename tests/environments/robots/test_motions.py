import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.cli.main import main
from isaaclab_arena.environments.robots.embodiment import PANDA, SO101, Embodiment, described_embodiment
from isaaclab_arena.environments.robots.lookup import find_embodiment, findings, measured_motions

SHOULDER = '<position name="shoulder" joint="shoulder"/>'
YAW = '<position name="yaw" joint="yaw"/>'
YAW_JOINT = '<joint name="yaw" axis="0 0 1"/>'
SHOULDER_JOINT = '<joint name="shoulder" range="-1.9 1.9"/>'
BASE = '<body name="base">'
GRIPPER = '<position name="gripper" joint="left" kp="4000" kv="120" forcerange="-70 70"/>'
SERVO = 'biastype="affine"'
COUPLED = '<equality>\n    <joint joint1="left" joint2="right"/>\n  </equality>'


@pytest.fixture
def description(directory):
    return directory / "six_axis.yaml"


@pytest.fixture(scope="module")
def documented(robot_files):
    return described_embodiment(robot_files / "six_axis.yaml")


def changed(documented: Embodiment, *replaced: tuple[str, str], **of_robot) -> Embodiment:
    """The robot with other text in its MJCF file, and other numbers in its description."""
    text = Path(documented.asset).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    asset = Path(documented.asset).with_name("changed.xml")
    asset.write_text(text)
    return replace(documented, asset=str(asset), robot=replace(documented.robot, **of_robot))


def told(embodiment: Embodiment) -> dict[bool, list[str]]:
    """Return the findings, by failure or not."""
    found = findings(embodiment, measured_motions(embodiment))
    return {fails: [f"{each.key}: {each.message}" for each in found if each.fails == fails] for fails in (True, False)}


@pytest.mark.parametrize("robot", [PANDA, SO101, None], ids=["panda", "so101", "documented"])
def test_robots_of_this_package_and_the_documented_one_do_what_they_say(documented, robot):
    robot = robot or documented
    assert findings(robot, measured_motions(robot)) == ()


def general(name: str, joint: str, attributes: str) -> str:
    return f'<general {SERVO} name="{name}" joint="{joint}" {attributes}/>'


def narrowed(ctrlrange: str) -> tuple[str, str]:
    return SHOULDER, SHOULDER.replace("/>", f' inheritrange="0" ctrlrange="{ctrlrange}"/>')


def more(text: str, attributes: str) -> tuple[str, str]:
    return text, text.replace("/>", f" {attributes}/>")


MOTOR = (GRIPPER, '<motor name="gripper" joint="left" ctrlrange="-70 70"/>')
WRONG = {
    "negative gear": ([more(YAW, 'gear="-1"')], {}, "arm.joints.0: -0.100 +0.100 -1"),
    "gear of two": (
        [more(SHOULDER, 'gear="2" ctrlrange="-4 4" inheritrange="0"')],
        {},
        "arm.joints.1: +0.206 +0.411 gear",
    ),
    "velocity servo": (
        [(YAW, '<intvelocity name="yaw" joint="yaw" kp="2000" kv="120" actrange="-3 3" inheritrange="0"/>')],
        {},
        "arm.joints.0: -0.068 -0.200 integrates",
    ),
    "constant bias": (
        [(SHOULDER, general("shoulder", "shoulder", 'gainprm="2000" biasprm="600 -2000 -120"'))],
        {},
        "arm.joints.1: +0.711 +0.411 constant",
    ),
    "narrow control range": ([narrowed("-0.2 0.2")], {}, "arm.joints.1: +0.200 +0.411 targets"),
    "spring": ([more(SHOULDER_JOINT, 'stiffness="300" springref="1.5"')], {}, "arm.joints.1: stands"),
    "base on a free joint": ([(BASE, f"{BASE}<freejoint/>")], {}, "base.body: 12 free"),
    "gripper in other units": (
        [(GRIPPER, general("gripper", "left", 'ctrlrange="0 255" gainprm="0.6" biasprm="0 -4000 -9"'))],
        {},
        "gripper.open_control: 0.000 0.08 0.04",
    ),
    "finger that nothing drives": ([(COUPLED, "")], {}, "gripper.bodies: 'right' 0.000 0.040 'gripper'"),
    "gripper that only closes": (
        [('forcerange="-70 70"', 'forcerange="-70 0"')],
        {},
        "gripper.actuator: 0.000 0.080 1",
    ),
    "physics that breaks down": (
        [(YAW, '<position name="yaw" joint="yaw" kp="1e14" forcelimited="false"/>')],
        {},
        "mjcf: breaks",
    ),
    "width in millimetres": ([], {"gripper_width": 80.0}, "gripper.width: 0.080 80 metres"),
}
"""What is replaced in the robot's file and in its description, and the key and words of what is told."""

DOUBTFUL = {
    "other zero": ([more(SHOULDER_JOINT, 'ref="0.5"')], {}, ""),
    "filter": ([more(YAW, 'timeconst="0.5"')], {}, "arm.joints.0: +0.081 +0.100 0.5"),
    "second actuator": ([(YAW, f'{YAW}<velocity name="yaw_v" joint="yaw" kv="300"/>')], {}, "arm.joints.0: 'yaw_v'"),
    "control range around home": ([narrowed("-1 1")], {}, "arm.joints.1: -1.900 1.900 -1.0"),
    "base on a slide": (
        [(BASE, f'{BASE}<joint name="lift" type="slide" axis="0 0 1" range="0 1"/>')],
        {},
        "base.body: 145 'lift'",
    ),
    "base in the middle": ([], {"base_body": "robot/forearm"}, "base.body: 'forearm' 34 outermost"),
    "open beyond the range": ([], {"finger_open": (4.0, 0.04)}, "gripper.open.0: 'left' 4 0.040"),
    "fingers swapped": ([], {"finger_bodies": ("robot/right", "robot/left")}, "gripper.bodies: (+0.0 -1.0 +0.0)"),
    "motor": ([MOTOR], {"gripper_closed": -50.0, "gripper_open": 50.0}, "gripper.actuator: 0.040 0.087"),
}


@pytest.mark.parametrize(
    ("case", "fails"), [*((each, True) for each in WRONG.values()), *((each, False) for each in DOUBTFUL.values())]
)
def test_a_robot_that_cannot_do_what_it_says_is_told_with_numbers_and_cause_and_an_odd_one_is_doubtful_at_most(
    documented, case, fails
):
    replaced, of_robot, due = case
    found = told(changed(documented, *replaced, **of_robot))
    assert bool(found[True]) is fails
    if not due:
        assert found[False] == []
        return
    key, *words = due.split()
    assert found[fails][0].startswith(f"{key} ")
    assert all(word in found[fails][0] for word in words), found


def change(description: Path, old: str, new: str) -> None:
    mjcf = description.with_suffix(".xml")
    text = mjcf.read_text()
    assert old in text
    mjcf.write_text(text.replace(old, new))


def test_validate_refuses_such_a_robot_until_its_file_is_mended(description, capsys):
    jobs = description.with_name("jobs.yaml")
    environment = {"environment": "reach", "embodiment": str(description), "num_envs": 2}
    block = {"name": "mine", "arena_env_args": environment, "policy_type": "zero_action", "num_episodes": 2}
    jobs.write_text(yaml.safe_dump({"jobs": [block]}))
    change(description, 'joint="yaw"/>', 'joint="yaw" gear="-1"/>')
    assert main(["validate", str(jobs)]) == 2
    assert f"{description}: arm.joints.0: " in capsys.readouterr().err
    change(description, ' gear="-1"', "")
    assert main(["validate", str(jobs)]) == 0


def test_what_is_doubtful_is_told_once_for_each_content(description, caplog):
    change(description, 'joint="yaw"/>', 'joint="yaw" timeconst="0.5"/>')
    with caplog.at_level(logging.WARNING):
        assert find_embodiment(str(description)) is find_embodiment(str(description))
    [record] = caplog.records
    assert record.getMessage().startswith(f"embodiment {description}: arm.joints.0: ")
