"""Embodiments: robots with their MJCF files and workspaces. Two arms are built in, and YAML files describe others."""

import importlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import mujoco
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import error_message
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import expanded, not_a_plain_file
from isaaclab_arena.sim.mjcf_trial import wrong_with_mjcf
from isaaclab_arena.sim.scene import ASSETS, CameraPose, PartFrame, Robot, ScenePart, file_outside

TABLE = "scenes/table.xml"  # the scene that every robot on the table stands in, relative to the package's assets
Area: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # lowest and highest corner of a box


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The part of the table, and of the space above it, in which a robot can do its work."""

    # Lowest corner: x, y, z [m]. Tasks are laid out for the reference workspace, the Panda's. They are scaled so that
    # its corners map to this box's corners.
    low: tuple[float, float, float]
    high: tuple[float, float, float]  # highest corner: x, y, z [m]
    reach_m: float  # largest horizontal distance from the base at which it can touch things
    tallest_m: float = math.inf  # of an object to grasp from above or push

    def on_table(self, low: tuple[float, ...], high: tuple[float, ...]) -> Area:
        """Scale an area of the reference table to this workspace: x and y [m]; further values stay unchanged."""
        return self.in_space(low, high, num_axes=2)

    def in_space(self, low: tuple[float, ...], high: tuple[float, ...], *, num_axes: int = 3) -> Area:
        """Scale a box of the reference workspace to this one: x, y and z [m], or only the first axes."""
        reference = REFERENCE_WORKSPACE
        if (self.low, self.high) == (reference.low, reference.high):
            return low, high
        axes = [*zip(self.low, self.high, reference.low, reference.high, strict=True)][:num_axes]
        fitted = [
            [
                begin + (at - first) * (end - begin) / (last - first)
                for at, (begin, end, first, last) in zip(corner, axes, strict=False)
            ]
            for corner in (low, high)
        ]
        return (*fitted[0], *low[num_axes:]), (*fitted[1], *high[num_axes:])


REFERENCE_WORKSPACE = Workspace(low=(0.40, -0.25, 0.10), high=(0.60, 0.25, 0.45), reach_m=0.855)


@dataclass(frozen=True, kw_only=True)
class Embodiment(ScenePart):
    """A robot that environments can be built with, as a part of their scenes.

    Attributes:
        robot: The names of its parts, in a scene where its prefix is ``robot``, and its limits.
        workspace: The box in which it can work.
        scene_cameras: Cameras of the scene that have another pose for this robot.
    """

    prefix: str = "robot"
    robot: Robot
    workspace: Workspace
    scene_cameras: tuple[CameraPose, ...] = ()

    @property
    def words(self) -> str:
        """Its description in a list of robots."""
        robot = self.robot
        gripper = f"gripper {100 * robot.gripper_width:.0f} cm wide" if robot.gripper_width else "no gripper"
        return f"{len(robot.arm_joints)} joints, {gripper}, reaches {self.workspace.reach_m:.2f} m"

    def part(self) -> ScenePart:
        """Return the robot as a part of a scene."""
        return self


# The Franka Emika Panda: seven joints, a parallel gripper of 0 to 0.04 m per finger.

_PANDA_JOINTS = tuple(f"robot/panda_joint{number}" for number in range(1, 8))

PANDA = Embodiment(
    asset="robots/panda.xml",
    workspace=REFERENCE_WORKSPACE,
    robot=Robot(
        name="panda",
        arm_joints=_PANDA_JOINTS,
        arm_actuators=_PANDA_JOINTS,
        joint_low=(-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973),
        joint_high=(2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973),
        joint_velocity_limit=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
        joint_torque_limit=(87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
        home=(0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.7854),
        finger_joints=("robot/panda_finger_joint1", "robot/panda_finger_joint2"),
        finger_open=(0.04, 0.04),
        gripper_actuator="robot/gripper",
        gripper_closed=0.0,
        gripper_open=0.04,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/hand",
        finger_bodies=("robot/left_finger", "robot/right_finger"),
        tcp_site="robot/tcp",
        base_body="robot/link0",
    ),
)


# The SO-ARM101 of The Robot Studio, LeRobot's arm: five joints, and a gripper with one moving jaw.
#
# Joint names and ranges, link lengths, masses and the servos' friction and torque are those of
# https://github.com/TheRobotStudio/SO-ARM100, Simulation/SO101/so101_new_calib.xml, in which zero is the middle of each
# joint's range. The servos are Feetech STS3215 of 12 V: 2.94 Nm, and 45 turns per minute without load.

_SO101_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
_JAW_OPEN_RAD = 1.0015
_HALF_SQRT = 0.5**0.5

SO101 = Embodiment(
    asset="robots/so101.xml",
    workspace=Workspace(low=(0.20, -0.16, 0.06), high=(0.27, 0.16, 0.22), reach_m=0.39, tallest_m=0.17),
    scene_cameras=(
        CameraPose(name="robot_head_cam", position=(0.12, -0.50, 0.48), target=(0.18, 0.0, 0.09), fovy_deg=46.0),
        CameraPose(name="viewport", position=(0.50, -0.75, 0.42), target=(0.16, 0.0, 0.10), fovy_deg=34.0),
    ),
    robot=Robot(
        name="so101",
        arm_joints=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        arm_actuators=tuple(f"robot/{joint}" for joint in _SO101_JOINTS),
        joint_low=(-1.91986, -1.74533, -1.69, -1.65806, -2.74385),
        joint_high=(1.91986, 1.74533, 1.69, 1.65806, 2.84121),
        joint_velocity_limit=(4.7,) * 5,
        joint_torque_limit=(2.94,) * 5,
        home=(0.0, -0.80, 0.55, 1.45, 0.0487),
        finger_joints=("robot/gripper",),
        finger_open=(_JAW_OPEN_RAD,),
        gripper_actuator="robot/gripper",
        gripper_closed=-0.1745,
        gripper_open=_JAW_OPEN_RAD,
        gripper_width=0.08,
        hand_body="robot/hand",
        palm_body="robot/gripper",
        finger_bodies=("robot/moving_jaw", "robot/fixed_jaw"),
        tcp_site="robot/tcp",
        base_body="robot/base",
        finger_unit="rad",
        hand_down=(0.0, _HALF_SQRT, _HALF_SQRT, 0.0),
        rotation_weight=0.05,
        ik_damping=0.02,
        right_finger_fixed=True,
    ),
)


# Robots that a description file names by the parts of an MJCF file: a user's own, and those of MuJoCo Menagerie.

Point = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Positive = Annotated[float, Field(gt=0)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MountDescription(_Described):
    """A frame fixed to a body of the robot.

    Attributes:
        body: The body.
        position: Where the frame is in that body [m].
        quaternion: How it is turned, w x y z.
    """

    body: str
    position: Point = (0.0, 0.0, 0.0)
    quaternion: Quaternion = (1.0, 0.0, 0.0, 0.0)


class BaseDescription(MountDescription):
    """Where the robot stands: its outermost body, and its file's origin in the scene, where the table top is z = 0."""


class ArmDescription(_Described):
    """The arm.

    Attributes:
        joints: Its joints, base to wrist; their limits are those of the MJCF file.
        actuators: The position actuators of these joints, in the same order; by default they have the joints' names.
        home: Joint positions at the start of an episode [rad].
        velocity_limit: Highest speed of every joint [rad/s].
    """

    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    actuators: tuple[str, ...] | None = None
    home: tuple[float, ...]
    velocity_limit: Positive = 2.0


class GripperDescription(_Described):
    """A gripper of two fingers.

    Attributes:
        joints: Joints of the fingers that move.
        open: Their positions when it is open, in the same order.
        bodies: The left finger, on the side of the tool's +y, and the right one.
        palm: The body that carries both.
        actuator: The actuator that moves them.
        closed_control: The actuator's control when the fingers meet.
        open_control: Its control when the gripper is open.
        width: Distance between the fingertips when it is open [m].
        right_finger_fixed: Whether only the left finger moves.
    """

    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    open: tuple[float, ...]
    bodies: tuple[str, str]
    palm: str
    actuator: str
    closed_control: float
    open_control: float
    width: Positive
    right_finger_fixed: bool = False


class CameraDescription(MountDescription):
    """A camera on the robot; it looks along its own -z, and its +y is up.

    Attributes:
        name: Its name; policies see ``<name>_rgb``.
        fovy_deg: Vertical field of view.
    """

    name: str
    fovy_deg: Annotated[float, Field(gt=0, lt=180)] = 60.0


class WorkspaceDescription(_Described):
    """The box in which tasks put objects; see `Workspace`.

    Attributes:
        low: Lowest corner: x, y, z [m].
        high: Highest corner: x, y, z [m].
        reach: Largest distance from its base at which the robot can touch things [m]; by default to the farthest
            corner.
        tallest: Height of the tallest object that it can grasp from above or push [m]; no limit by default.
    """

    low: Point
    high: Point
    reach: Positive | None = None
    tallest: Positive | None = None


class RobotDescription(_Described):
    """The content of a description file; docs/how_to/robots.md explains it with an example.

    Attributes:
        name: The robot's name.
        mjcf: Path of the MJCF file, relative to the description.
        base: Where it stands.
        arm: Its arm.
        gripper: Its gripper, if it has one.
        tool: The tool centre point, between the tips of the open fingers; its z axis points out of the hand and the
            fingers close along its y axis.
        cameras: Cameras that the MJCF file does not hold.
        workspace: Where it works.
        hand_down: Orientation of the tool when it points down, w x y z.
        rotation_weight: Weight of 1 rad against 1 m in inverse kinematics; small for fewer than six joints.
        ik_damping: Damping of the inverse kinematics.
        gravity_compensation: Whether its controller carries its own weight.
    """

    name: Annotated[str, Field(min_length=1)]
    mjcf: Annotated[str, Field(min_length=1)]
    base: BaseDescription
    arm: ArmDescription
    gripper: GripperDescription | None = None
    tool: MountDescription
    cameras: tuple[CameraDescription, ...] = ()
    workspace: WorkspaceDescription
    hand_down: Quaternion = (0.0, 1.0, 0.0, 0.0)
    rotation_weight: Positive | None = None
    ik_damping: Positive = 0.03
    gravity_compensation: bool = False


def read_description(path: Path) -> RobotDescription:
    """Read a description file; ConfigError with every problem, each with its key."""
    values = expanded(read_document(path))
    try:
        # Pydantic's JSON mode checks types strictly but accepts lists for tuples.
        return RobotDescription.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as invalid:
        known = sorted(RobotDescription.model_fields)
        problems = [
            Problem(error_message(error, known), file=str(path), key=".".join(map(str, error["loc"])) or None)
            for error in invalid.errors(include_url=False)
        ]
        raise ConfigError(problems) from invalid


# Robots of MuJoCo Menagerie: MJCF files from a checkout or its package, with descriptions that come along.

_PACKAGE = "mujoco_menagerie"


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory of a checkout of MuJoCo Menagerie, None if MENAGERIE_ROOT is not set."""
    return expanded(environ.get("MENAGERIE_ROOT")) or None


def menagerie_embodiment(name: str) -> Embodiment:
    """Robots of MuJoCo Menagerie: MJCF files from a checkout or its package, with our descriptions; and a user's own.

    A name is the robot's directory, such as ``franka_emika_panda``; ConfigError if it is missing.
    """
    descriptions = {path.stem: path for path in (ASSETS / "robots" / "menagerie").glob("*.yaml")}
    if name not in descriptions:
        hint = did_you_mean(name, descriptions)
        way_out = "any other is used through a description of your own, as docs/how_to/robots.md shows"
        raise ConfigError(f"no description of the robot '{name}' of MuJoCo Menagerie{hint}; {way_out}")

    # A checkout comes before the package, which is optional.
    root = menagerie_root()
    if root is not None:
        directory = Path(root) / name
        if not directory.is_dir():
            raise ConfigError(f"MENAGERIE_ROOT is '{root}', which holds no directory '{name}'")
    elif importlib.util.find_spec(_PACKAGE) is None:
        way_out = (
            "set MENAGERIE_ROOT to a checkout of MuJoCo Menagerie, or install mujoco-menagerie, which downloads them"
        )
        raise ConfigError(f"the files of '{name}' are not here: {way_out}")
    else:
        package = importlib.import_module(_PACKAGE)
        try:
            directory = Path(package.get(name).path())
        except package.MenagerieError as error:
            raise ConfigError(f"mujoco-menagerie cannot provide '{name}': {error}") from error
    return described_embodiment(descriptions[name], directory=directory)


_TOOL = "arena_tool"
_JOINT, _ACTUATOR, _BODY = mujoco.mjtObj.mjOBJ_JOINT, mujoco.mjtObj.mjOBJ_ACTUATOR, mujoco.mjtObj.mjOBJ_BODY
_KINDS = {_JOINT: ("joint", "njnt"), _ACTUATOR: ("actuator", "nu"), _BODY: ("body", "nbody")}


def described_embodiment(path: str | Path, *, directory: Path | None = None) -> Embodiment:
    """Return the robot of a YAML or JSON description; ConfigError with every problem."""
    path = Path(path)
    description = read_description(path)
    # All files must lie below ``directory`` (default: the description's), or below MENAGERIE_ROOT's checkout.
    is_strange = directory is None
    directory = directory or path.parent
    asset = (directory / description.mjcf).resolve()
    model = _compiled(asset, directory, str(path), is_strange=is_strange)
    # All contradictions are collected before an error is raised, so that one run shows every problem.
    wrong = _contradictions(description, model)
    if problems := [Problem(message, file=str(path), key=key) for key, message in wrong]:
        raise ConfigError(problems)

    arm, gripper = description.arm, description.gripper
    actuators = arm.joints if arm.actuators is None else arm.actuators
    joints = [model.joint(joint) for joint in arm.joints]
    # An arm with fewer than six joints cannot reach every orientation.
    weight = 1.0 if len(arm.joints) >= 6 else 0.05
    torques = []
    for name in actuators:
        found = model.actuator(name)
        torques.append(float(found.forcerange[1]) if model.actuator_forcelimited[found.id] else math.inf)
    slides = gripper is None or model.joint(gripper.joints[0]).type[0] == mujoco.mjtJoint.mjJNT_SLIDE
    robot = Robot(
        name=description.name,
        arm_joints=_in_scene(arm.joints),
        arm_actuators=_in_scene(actuators),
        joint_low=tuple(float(joint.range[0]) for joint in joints),
        joint_high=tuple(float(joint.range[1]) for joint in joints),
        joint_velocity_limit=(arm.velocity_limit,) * len(arm.joints),
        joint_torque_limit=tuple(torques),
        home=arm.home,
        finger_joints=_in_scene(gripper.joints) if gripper else (),
        finger_open=gripper.open if gripper else (),
        gripper_actuator=f"robot/{gripper.actuator}" if gripper else None,
        gripper_closed=gripper.closed_control if gripper else 0.0,
        gripper_open=gripper.open_control if gripper else 0.0,
        gripper_width=gripper.width if gripper else 0.0,
        hand_body=f"robot/{_TOOL}",
        palm_body=f"robot/{gripper.palm if gripper else description.tool.body}",
        finger_bodies=_in_scene(gripper.bodies) if gripper else (),
        tcp_site=f"robot/{_TOOL}",
        base_body=f"robot/{description.base.body}",
        finger_unit="m" if slides else "rad",
        hand_down=description.hand_down,
        rotation_weight=description.rotation_weight or weight,
        ik_damping=description.ik_damping,
        right_finger_fixed=gripper.right_finger_fixed if gripper else False,
    )

    # The reach of a robot without a stated one goes to the farthest corner of its workspace.
    low, high, reach_m = description.workspace.low, description.workspace.high, description.workspace.reach
    if reach_m is None:
        x, y, _ = description.base.position
        reach_m = max(math.hypot(a - x, b - y) for a in (low[0], high[0]) for b in (low[1], high[1]))
    tallest_m = math.inf if description.workspace.tallest is None else description.workspace.tallest
    cameras = (
        PartFrame(camera_fovy_deg=camera.fovy_deg, **camera.model_dump(exclude={"fovy_deg"}))
        for camera in description.cameras
    )
    return Embodiment(
        robot=robot,
        asset=str(asset),
        workspace=Workspace(low=low, high=high, reach_m=reach_m, tallest_m=tallest_m),
        position=description.base.position,
        quaternion=description.base.quaternion,
        frames=(PartFrame(name=_TOOL, **dict(description.tool)), *cameras),
        gravity_compensation=description.gravity_compensation,
    )


def _compiled(asset: Path, directory: Path, file: str, *, is_strange: bool) -> mujoco.MjModel:
    """Return the model of a robot's MJCF file; ConfigError for strange or broken files."""

    def refusal(message: str) -> ConfigError:
        return ConfigError(Problem(message, file=file, key="mjcf"))

    wrong = not_a_plain_file(asset)
    if wrong is not None:
        raise refusal(f"'{asset}': {wrong}")

    # A foreign description must not read any file outside the robot's directory.
    root, checkout = directory.resolve(), menagerie_root()
    if checkout is not None and not asset.is_relative_to(root) and asset.is_relative_to(Path(checkout).resolve()):
        root = Path(checkout).resolve()
    try:
        outside = file_outside(asset, root)
    except OSError as error:
        raise refusal(f"a file of '{asset}' cannot be read: {error.filename}: {error.strerror}") from error
    if outside is not None:
        message = f"leads to '{outside}', which is not below '{root}'; keep the files of a robot below its description"
        raise refusal(message)

    # Files of MuJoCo Menagerie are trusted, so a trial compilation is not needed.
    wrong = wrong_with_mjcf(asset) if is_strange else None
    if wrong is not None:
        raise refusal(f"'{asset}': {wrong}")
    try:
        return mujoco.MjModel.from_xml_path(str(asset))
    except ValueError as error:
        raise refusal(f"MuJoCo cannot load '{asset}': {error}") from error


def _contradictions(description: RobotDescription, model: mujoco.MjModel) -> Iterator[tuple[str, str]]:
    """Yield key and message of each contradiction between a description and its MJCF file."""
    yield from _missing(model, "base.body", _BODY, description.base.body)
    yield from _missing(model, "tool.body", _BODY, description.tool.body)
    taken = [model.camera(index).name for index in range(model.ncam)]
    for index, camera in enumerate(description.cameras):
        yield from _missing(model, f"cameras.{index}.body", _BODY, camera.body)
        if camera.name in taken:
            way_out = "give this one another name, or leave it out"
            yield f"cameras.{index}.name", f"there is a camera called '{camera.name}' already; {way_out}"
        taken.append(camera.name)
    yield from _wrong_in_arm(description, model)
    if description.gripper is not None:
        yield from _wrong_in_gripper(description.arm, description.gripper, model)
    for axis, low, high in zip("xyz", description.workspace.low, description.workspace.high, strict=True):
        if low >= high:
            yield "workspace", f"{axis} of low is {low}, which is not below that of high, {high}"


def _wrong_in_arm(description: RobotDescription, model: mujoco.MjModel) -> Iterator[tuple[str, str]]:
    arm = description.arm
    actuators = arm.joints if arm.actuators is None else arm.actuators
    yield from _twice("arm.joints", arm.joints, "joints")
    for key, values in (("arm.actuators", actuators), ("arm.home", arm.home)):
        if len(values) != len(arm.joints):
            yield key, f"has {len(values)} entries for {len(arm.joints)} joints"
            return
    for index, (joint, actuator, home) in enumerate(zip(arm.joints, actuators, arm.home, strict=True)):
        key = f"arm.joints.{index}"
        if missing := [*_missing(model, key, _JOINT, joint)]:
            yield from missing
        else:
            found = model.joint(joint)
            low, high = map(float, found.range)
            if found.type[0] != mujoco.mjtJoint.mjJNT_HINGE:
                yield key, f"'{joint}' is no hinge"
            elif not model.jnt_limited[found.id]:
                yield key, f"'{joint}' has no limits; give it a range in the MJCF file"
            elif not low <= home <= high:
                yield f"arm.home.{index}", f"{home} is outside the range of '{joint}', {low:.4f} to {high:.4f}"

        # A position actuator of the joint pulls it towards its control as a spring does.
        key = f"arm.actuators.{index}"
        if missing := [*_missing(model, key, _ACTUATOR, actuator)]:
            yield from missing
            continue
        number = model.actuator(actuator).id
        of_joint = int(model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_JOINT)
        gain, stiffness = model.actuator_gainprm[number, 0], model.actuator_biasprm[number, 1]
        is_spring = gain > 0 and math.isclose(gain, -stiffness)
        if not (of_joint and model.joint(int(model.actuator_trnid[number, 0])).name == joint and is_spring):
            yield key, f"'{actuator}' is no position actuator of joint '{joint}'"


def _wrong_in_gripper(
    arm: ArmDescription, gripper: GripperDescription, model: mujoco.MjModel
) -> Iterator[tuple[str, str]]:
    yield from _twice("gripper.joints", (*dict.fromkeys(arm.joints), *gripper.joints), "joints")
    actuators = (*dict.fromkeys(arm.actuators or arm.joints), gripper.actuator)
    yield from _twice("gripper.actuator", actuators, "actuators")
    for index, joint in enumerate(gripper.joints):
        yield from _missing(model, f"gripper.joints.{index}", _JOINT, joint)
    for index, body in enumerate(gripper.bodies):
        yield from _missing(model, f"gripper.bodies.{index}", _BODY, body)
    yield from _missing(model, "gripper.palm", _BODY, gripper.palm)
    if missing := [*_missing(model, "gripper.actuator", _ACTUATOR, gripper.actuator)]:
        yield from missing
    else:
        # An actuator without a range has 0 for both ends.
        low, high = model.actuator(gripper.actuator).ctrlrange.tolist()
        slack = 1e-6 * (high - low)
        for key in ("closed_control", "open_control"):
            control = getattr(gripper, key)
            if low < high and not low - slack <= control <= high + slack:
                takes = f"beyond what '{gripper.actuator}' takes, {low:g} to {high:g}"
                yield f"gripper.{key}", f"{control:g} is {takes}"
    if len(gripper.open) != len(gripper.joints):
        yield "gripper.open", f"has {len(gripper.open)} entries for {len(gripper.joints)} joints"
    if gripper.closed_control == gripper.open_control:
        yield "gripper.open_control", "is the same as closed_control"


def _twice(key: str, names: Sequence[str], kind: str) -> Iterator[tuple[str, str]]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield key, f"'{name}' moves as two {kind} at once; name it once"


def _missing(model: mujoco.MjModel, key: str, kind: mujoco.mjtObj, name: str) -> Iterator[tuple[str, str]]:
    if mujoco.mj_name2id(model, kind, name) < 0:
        word, count = _KINDS[kind]
        names = [mujoco.mj_id2name(model, kind, index) for index in range(getattr(model, count))]
        hint = did_you_mean(name, [known for known in names if known and known != "world"])
        yield key, f"the MJCF file has no {word} called '{name}'{hint}"


def _in_scene(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"robot/{name}" for name in names)
