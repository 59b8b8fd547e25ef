"""Robots of MuJoCo Menagerie: MJCF files from a checkout or its package, with our descriptions; and a user's own."""

import importlib
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco

from isaaclab_arena.environments.robots.description import RobotDescription, read_description
from isaaclab_arena.environments.robots.embodiment import Embodiment, Workspace
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import expanded, not_a_plain_file
from isaaclab_arena.sim.mjcf_trial import wrong_with_mjcf
from isaaclab_arena.sim.scene import ASSETS, PartFrame, Robot, file_outside

# Robots of MuJoCo Menagerie: MJCF files from a checkout or its package, with descriptions that come along.

_PACKAGE = "mujoco_menagerie"


def menagerie_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory of a checkout of MuJoCo Menagerie, None if MENAGERIE_ROOT is not set."""
    return expanded(environ.get("MENAGERIE_ROOT")) or None


def menagerie_embodiment(name: str) -> Embodiment:
    """Return a Menagerie robot by its directory, such as ``franka_emika_panda``; ConfigError if it is missing."""
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
_KINDS = {_JOINT: "joint", _ACTUATOR: "actuator", _BODY: "body"}


def described_embodiment(path: str | Path, *, directory: Path | None = None) -> Embodiment:
    """Return the robot of a YAML or JSON description; ConfigError with every problem."""
    path = Path(path)
    description = read_description(path)
    # All files must lie below ``directory`` (default: the description's), or below MENAGERIE_ROOT's checkout.
    is_strange = directory is None
    directory = directory or path.parent
    asset = (directory / description.mjcf).resolve()
    checker = _Checker(str(path), _compiled(asset, directory, str(path), is_strange=is_strange))
    checker.check(description)

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
        robot=_robot(description, checker.model),
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


class _Checker:
    """Collects the contradictions between a description and its MJCF file."""

    def __init__(self, file: str, model: mujoco.MjModel) -> None:
        self.model = model
        self._file = file
        self._problems: list[Problem] = []

    def check(self, description: RobotDescription) -> None:
        # All names are checked before an error is raised, so that one run shows every problem.
        self._named("base.body", _BODY, description.base.body)
        self._named("tool.body", _BODY, description.tool.body)
        taken = [self.model.camera(index).name for index in range(self.model.ncam)]
        for index, camera in enumerate(description.cameras):
            self._named(f"cameras.{index}.body", _BODY, camera.body)
            if camera.name in taken:
                way_out = "give this one another name, or leave it out"
                self._problem(f"cameras.{index}.name", f"there is a camera called '{camera.name}' already; {way_out}")
            taken.append(camera.name)
        self._arm(description)
        self._gripper(description)
        for axis, low, high in zip("xyz", description.workspace.low, description.workspace.high, strict=True):
            if low >= high:
                self._problem("workspace", f"{axis} of low is {low}, which is not below that of high, {high}")
        if self._problems:
            raise ConfigError(self._problems)

    def _arm(self, description: RobotDescription) -> None:
        arm = description.arm
        actuators = arm.joints if arm.actuators is None else arm.actuators
        self._each_once("arm.joints", arm.joints, "joints")
        for key, values in (("arm.actuators", actuators), ("arm.home", arm.home)):
            if len(values) != len(arm.joints):
                self._problem(key, f"has {len(values)} entries for {len(arm.joints)} joints")
                return
        for index, (joint, actuator, home) in enumerate(zip(arm.joints, actuators, arm.home, strict=True)):
            if self._named(f"arm.joints.{index}", _JOINT, joint):
                found = self.model.joint(joint)
                low, high = map(float, found.range)
                if found.type[0] != mujoco.mjtJoint.mjJNT_HINGE:
                    self._problem(f"arm.joints.{index}", f"'{joint}' is no hinge")
                elif not self.model.jnt_limited[found.id]:
                    self._problem(f"arm.joints.{index}", f"'{joint}' has no limits; give it a range in the MJCF file")
                elif not low <= home <= high:
                    message = f"{home} is outside the range of '{joint}', {low:.4f} to {high:.4f}"
                    self._problem(f"arm.home.{index}", message)

            # A position actuator of the joint pulls it towards its control as a spring does.
            if self._named(f"arm.actuators.{index}", _ACTUATOR, actuator):
                number = self.model.actuator(actuator).id
                of_joint = int(self.model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_JOINT)
                target = int(self.model.actuator_trnid[number, 0])
                gain, stiffness = self.model.actuator_gainprm[number, 0], self.model.actuator_biasprm[number, 1]
                is_spring = gain > 0 and math.isclose(gain, -stiffness)
                if not (of_joint and self.model.joint(target).name == joint and is_spring):
                    self._problem(f"arm.actuators.{index}", f"'{actuator}' is no position actuator of joint '{joint}'")

    def _each_once(self, key: str, names: Sequence[str], kind: str) -> None:
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._problem(key, f"'{name}' moves as two {kind} at once; name it once")

    def _gripper(self, description: RobotDescription) -> None:
        gripper = description.gripper
        if gripper is None:
            return
        arm = description.arm
        self._each_once("gripper.joints", (*dict.fromkeys(arm.joints), *gripper.joints), "joints")
        actuators = (*dict.fromkeys(arm.actuators or arm.joints), gripper.actuator)
        self._each_once("gripper.actuator", actuators, "actuators")
        for index, joint in enumerate(gripper.joints):
            self._named(f"gripper.joints.{index}", _JOINT, joint)
        for index, body in enumerate(gripper.bodies):
            self._named(f"gripper.bodies.{index}", _BODY, body)
        self._named("gripper.palm", _BODY, gripper.palm)
        if self._named("gripper.actuator", _ACTUATOR, gripper.actuator):
            low, high = self.model.actuator(gripper.actuator).ctrlrange.tolist()
            slack = 1e-6 * (high - low)
            for key in ("closed_control", "open_control"):
                # An actuator without a range has 0 for both ends.
                control = getattr(gripper, key)
                if low < high and not low - slack <= control <= high + slack:
                    takes = f"beyond what '{gripper.actuator}' takes, {low:g} to {high:g}"
                    self._problem(f"gripper.{key}", f"{control:g} is {takes}")
        if len(gripper.open) != len(gripper.joints):
            self._problem("gripper.open", f"has {len(gripper.open)} entries for {len(gripper.joints)} joints")
        if gripper.closed_control == gripper.open_control:
            self._problem("gripper.open_control", "is the same as closed_control")

    def _named(self, key: str, kind: mujoco.mjtObj, name: str) -> bool:
        if mujoco.mj_name2id(self.model, kind, name) >= 0:
            return True
        counts = {_JOINT: self.model.njnt, _ACTUATOR: self.model.nu, _BODY: self.model.nbody}
        names = [mujoco.mj_id2name(self.model, kind, index) for index in range(counts[kind])]
        hint = did_you_mean(name, [known for known in names if known and known != "world"])
        self._problem(key, f"the MJCF file has no {_KINDS[kind]} called '{name}'{hint}")
        return False

    def _problem(self, key: str, message: str) -> None:
        self._problems.append(Problem(message, file=self._file, key=key))


def _robot(description: RobotDescription, model: mujoco.MjModel) -> Robot:
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
    return Robot(
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
        gripper_actuator=_in_scene((gripper.actuator,))[0] if gripper else None,
        gripper_closed=gripper.closed_control if gripper else 0.0,
        gripper_open=gripper.open_control if gripper else 0.0,
        gripper_width=gripper.width if gripper else 0.0,
        hand_body=_in_scene((_TOOL,))[0],
        palm_body=_in_scene((gripper.palm if gripper else description.tool.body,))[0],
        finger_bodies=_in_scene(gripper.bodies) if gripper else (),
        tcp_site=_in_scene((_TOOL,))[0],
        base_body=_in_scene((description.base.body,))[0],
        finger_unit="m" if slides else "rad",
        hand_down=description.hand_down,
        rotation_weight=description.rotation_weight or weight,
        ik_damping=description.ik_damping,
        right_finger_fixed=gripper.right_finger_fixed if gripper else False,
    )


def _in_scene(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"robot/{name}" for name in names)
