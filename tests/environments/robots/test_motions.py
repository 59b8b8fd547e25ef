import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from PIL import Image

from isaaclab_arena.cli.main import main
from isaaclab_arena.environments.robots.embodiment import PANDA, SO101, Embodiment, described_embodiment
from isaaclab_arena.environments.robots.lookup import find_embodiment, findings, measured_motions

DOCUMENT = Path(__file__).parents[3] / "docs" / "how_to" / "robots.md"
SHOULDER = '<position name="shoulder" joint="shoulder"/>'
YAW = '<position name="yaw" joint="yaw"/>'
YAW_JOINT = '<joint name="yaw" axis="0 0 1"/>'
SHOULDER_JOINT = '<joint name="shoulder" range="-1.9 1.9"/>'
BASE = '<body name="base">'
GRIPPER = '<position name="gripper" joint="left" kp="4000" kv="120" forcerange="-70 70"/>'
SERVO = 'biastype="affine"'
COUPLED = '<equality>\n    <joint joint1="left" joint2="right"/>\n  </equality>'


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """The robot that docs/how_to/robots.md describes."""
    directory = tmp_path_factory.mktemp("robot")
    text = DOCUMENT.read_text()
    (directory / "six_axis.xml").write_text(re.findall(r"```xml\n(.*?)```", text, re.DOTALL)[0])
    (directory / "six_axis.yaml").write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])
    return described_embodiment(directory / "six_axis.yaml")


def changed(documented: Embodiment, *replaced: tuple[str, str], **of_robot) -> Embodiment:
    """The robot with other text in its MJCF file, and other numbers in its description."""
    text = Path(documented.asset).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    asset = Path(documented.asset).with_name("changed.xml")
    asset.write_text(text)
    return replace(documented, asset=str(asset), robot=replace(documented.robot, **of_robot))


def told(embodiment: Embodiment, *, fails: bool) -> list[str]:
    return [
        f"{found.key}: {found.message}"
        for found in findings(embodiment, measured_motions(embodiment))
        if found.fails == fails
    ]


@pytest.mark.parametrize("robot", [PANDA, SO101], ids=["panda", "so101"])
def test_the_robots_of_this_package_do_what_they_say(robot):
    assert findings(robot, measured_motions(robot)) == ()


def test_the_documented_robot_does_what_it_says(documented):
    assert findings(documented, measured_motions(documented)) == ()


FAILING = {
    "negative_gear": (
        (YAW, YAW.replace("/>", ' gear="-1"/>')),
        "arm.joints.0: 'yaw' moved -0.100 rad where +0.100 was asked: the gear of its actuator is -1, not 1",
    ),
    "gear_of_two": (
        (SHOULDER, SHOULDER.replace("/>", ' gear="2" ctrlrange="-4 4" inheritrange="0"/>')),
        "arm.joints.1: 'shoulder' stands at +0.206 rad where +0.411, its home, was asked: the gear of its actuator",
    ),
    "velocity_servo": (
        (YAW, '<intvelocity name="yaw" joint="yaw" kp="2000" kv="120" actrange="-3 3" inheritrange="0"/>'),
        "arm.joints.0: 'yaw' moved -0.068 rad where -0.200 was asked: its actuator integrates its target",
    ),
    "constant_bias": (
        (SHOULDER, f'<general {SERVO} name="shoulder" joint="shoulder" gainprm="2000" biasprm="600 -2000 -120"/>'),
        "arm.joints.1: 'shoulder' stands at +0.711 rad where +0.411, its home, was asked: its actuator has a constant",
    ),
    "narrow_control_range": (
        (SHOULDER, SHOULDER.replace("/>", ' inheritrange="0" ctrlrange="-0.2 0.2"/>')),
        "arm.joints.1: 'shoulder' stands at +0.200 rad where +0.411, its home, was asked: its actuator takes targets",
    ),
    "spring": (
        (SHOULDER_JOINT, SHOULDER_JOINT.replace("/>", ' stiffness="300" springref="1.5"/>')),
        "arm.joints.1: 'shoulder' stands at ",
    ),
    "base_on_a_free_joint": (
        (BASE, f"{BASE}<freejoint/>"),
        "base.body: 'base' moved by 12 mm as the arm did: it hangs on a free joint; take that out of the MJCF file",
    ),
    "gripper_in_other_units": (
        (
            GRIPPER,
            f'<general {SERVO} name="gripper" joint="left" ctrlrange="0 255" gainprm="0.6" biasprm="0 -4000 -9"/>',
        ),
        "gripper.open_control: the fingers open by 0.000 m and not by 0.08 m between the controls 0 and 0.04; its",
    ),
    "finger_that_nothing_drives": (
        (COUPLED, ""),
        "gripper.bodies: 'right' moves by 0.000 m and not by 0.040 m as the gripper opens: actuator 'gripper' does not",
    ),
    "gripper_that_only_closes": (
        ('forcerange="-70 70"', 'forcerange="-70 0"'),
        "gripper.actuator: once closed, the fingers open to 0.000 m and not to 0.080 m within 1 s",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_robot_that_cannot_do_what_it_says_is_told_with_numbers_and_cause(documented, case):
    replaced, problem = FAILING[case]
    assert told(changed(documented, replaced), fails=True)[0].startswith(problem)


def test_a_width_in_millimetres_is_told(documented):
    [problem] = told(changed(documented, gripper_width=80.0), fails=True)
    assert problem.startswith(
        "gripper.width: the fingers open by 0.080 m and not by 80 m between the controls 0 and 0.04"
    )
    assert problem.endswith("; give metres")


DOUBTFUL = {
    "other_zero": ((SHOULDER_JOINT, SHOULDER_JOINT.replace("/>", ' ref="0.5"/>')), []),
    "filter": (
        (YAW, YAW.replace("/>", ' timeconst="0.5"/>')),
        ["arm.joints.0: 'yaw' moved +0.081 rad where +0.100 was asked: its actuator delays its target by 0.5 s"],
    ),
    "second_actuator": (
        (YAW, f'{YAW}<velocity name="yaw_v" joint="yaw" kv="300"/>'),
        ["arm.joints.0: actuator 'yaw_v' drives 'yaw' too and stays at control 0; take it out if it brakes"],
    ),
    "control_range_around_home": (
        (SHOULDER, SHOULDER.replace("/>", ' inheritrange="0" ctrlrange="-1 1"/>')),
        ["arm.joints.1: 'shoulder' can turn from -1.900 to 1.900 rad, and its actuator takes targets from -1.0"],
    ),
    "base_on_a_slide": (
        (BASE, f'{BASE}<joint name="lift" type="slide" axis="0 0 1" range="0 1"/>'),
        ["base.body: 'base' moved by 145 mm as the arm did: joint 'lift' carries it; make that a fixed body"],
    ),
}
DOUBTFUL_DESCRIPTION = {
    "base_in_the_middle": (
        {"base_body": "robot/forearm"},
        "base.body: 'forearm' moved by 34 mm as the arm did: name the outermost body",
    ),
    "open_beyond_the_range": (
        {"finger_open": (4.0, 0.04)},
        "gripper.open.0: 'left' starts episodes at 4 m and is open at 0.040",
    ),
    "fingers_swapped": (
        {"finger_bodies": ("robot/right", "robot/left")},
        "gripper.bodies: the left finger is to be on the side of the tool's +y, and is towards (+0.0 -1.0 +0.0)",
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_robot_that_is_odd_and_works_is_doubtful_at_most(documented, case):
    replaced, doubtful = DOUBTFUL[case]
    robot = changed(documented, replaced)
    assert told(robot, fails=True) == []
    for found, due in zip(told(robot, fails=False), doubtful, strict=True):
        assert found.startswith(due)


@pytest.mark.parametrize("case", DOUBTFUL_DESCRIPTION)
def test_a_description_that_is_odd_and_works_is_doubtful(documented, case):
    of_robot, doubtful = DOUBTFUL_DESCRIPTION[case]
    robot = changed(documented, **of_robot)
    assert told(robot, fails=True) == []
    assert told(robot, fails=False)[0].startswith(doubtful)


def test_a_motor_may_open_and_close_a_gripper_and_holds_no_width_between(documented):
    motor = (GRIPPER, '<motor name="gripper" joint="left" ctrlrange="-70 70"/>')
    robot = changed(documented, motor, gripper_closed=-50.0, gripper_open=50.0)
    assert told(robot, fails=True) == []
    [doubtful] = told(robot, fails=False)
    assert doubtful.startswith("gripper.actuator: asked for 0.040 m the fingers stand 0.087 m apart")


def test_physics_that_breaks_down_at_home_is_told(documented):
    robot = changed(documented, (YAW, '<position name="yaw" joint="yaw" kp="1e14" forcelimited="false"/>'))
    [problem] = told(robot, fails=True)
    assert problem.startswith("mjcf: the physics breaks down within two seconds at home")


@pytest.fixture
def description(documented, tmp_path):
    """The documented robot's two files, to be changed."""
    for source in (Path(documented.asset), Path(documented.asset).with_suffix(".yaml")):
        shutil.copy(source, tmp_path)
    return tmp_path / "six_axis.yaml"


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
    assert f"{description}: arm.joints.0: 'yaw' moved -0.100 rad where +0.100 was asked" in capsys.readouterr().err
    change(description, ' gear="-1"', "")
    assert main(["validate", str(jobs)]) == 0


def test_what_is_doubtful_is_told_once_for_each_content(description, caplog):
    change(description, 'joint="yaw"/>', 'joint="yaw" timeconst="0.5"/>')
    with caplog.at_level(logging.WARNING):
        assert find_embodiment(str(description)) is find_embodiment(str(description))
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"embodiment {description}: arm.joints.0: 'yaw' moved +0.081 rad where +0.100"
    )


def test_a_robot_whose_files_changed_is_read_again(description):
    assert find_embodiment(str(description)).robot.joint_high[4] == 1.5
    change(description, 'range="-1.5 1.5"', 'range="-1.4 1.4"')
    assert find_embodiment(str(description)).robot.joint_high[4] == 1.4


def test_a_robot_is_drawn_beside_what_was_asked_of_it(description, capsys):
    change(description, 'joint="yaw"/>', 'joint="yaw" gear="-1"/>')
    picture = description.with_suffix(".png")
    assert main(["view", str(description), "--check", "--output", str(picture)]) == 2
    assert f"{description}: arm.joints.0: 'yaw' moved -0.100 rad" in capsys.readouterr().err
    # Three pictures of 360 x 270 with captions, above charts of seven motions in three rows.
    assert Image.open(picture).size == (3 * 360, 270 + 16 + 3 * 120)


@pytest.mark.parametrize("arguments", [[], ["panda", "--num_envs", "2"], ["panda", "--output", "film.mp4"]])
def test_a_drawing_of_motions_takes_one_robot_and_a_picture(arguments):
    assert main(["view", "--check", *arguments]) == 2
