"""Scenes, robots and poses as MuJoCo models, and the files that they are made of."""

import errno
import html
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeAlias

import mujoco
import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, first_line
from isaaclab_arena.paths import not_a_plain_file

# Find the files that an MJCF file makes MuJoCo open, which must all lie below one directory.

ContentKey: TypeAlias = tuple[tuple[Path, tuple[int, ...]], ...]
"""Files with their stamps, see `stamps`."""

_known_keys: dict[Path, ContentKey] = {}
"""What MJCF files were made of when they were read last, links among them beside what they lead to."""

# Looked for anywhere in the text and not in parsed elements: MuJoCo's parser takes XML that others refuse, and what
# this finds beyond what MuJoCo reads does no harm.
_NAME = re.compile(r"file\w*|meshdir|texturedir|assetdir")
_VALUE = re.compile(r"""\s*=\s*(["'])(.*?)\1""", re.DOTALL)
_MAX_BYTES = 1 << 29
"""Of all files of a robot together."""
_MAX_PLACES = 200_000
"""Names times the directories that each may start from."""


def file_outside(mjcf: Path, root: Path) -> Path | None:
    """Return a file that MuJoCo might open for an MJCF file though it does not lie below a directory, None if all do.

    Included files, attached models, meshes, textures and height fields are followed, links are resolved, and both
    kinds of slash separate directories, as they do for MuJoCo.

    Args:
        mjcf: The MJCF file.
        root: The directory below which everything has to lie.

    Raises:
        OSError: If a file cannot be read or is no plain file, or there are too many.
    """
    root, mjcf = root.resolve(), mjcf.resolve()
    seen: dict[Path, None] = {mjcf: None}
    known = 0
    # A directory that is named in the last file holds for the names in the first one too, so all are read again.
    while known != len(seen):
        known = len(seen)
        for found in [path.resolve() for path in _named_files(list(seen))]:
            seen[found] = None
            if not found.is_relative_to(root):
                return found
    return None if mjcf.is_relative_to(root) else mjcf


def files_of(mjcf: Path) -> list[Path]:
    """Return an MJCF file and every regular file that MuJoCo might open for it, sorted.

    Raises:
        OSError: If a file cannot be read.
    """
    return sorted(set(_ways_to_files(mjcf).values()))


def _ways_to_files(mjcf: Path) -> dict[Path, Path]:
    """Return the same by each of the paths under which MuJoCo finds them, which may be links."""
    found = {mjcf.absolute(): mjcf.resolve()}
    known = 0
    while known != len(found):
        known = len(found)
        ways = _named_files(list(dict.fromkeys(found.values())))
        found.update({path: path.resolve() for path in ways if path.is_file()})
    return found


def content_key(mjcf: Path) -> ContentKey:
    """Return what changes whenever one of the files of an MJCF file does; unchanged files are not read again.

    MuJoCo then reads them again too: it knows a mesh by its path and the second in which it was changed.

    Raises:
        OSError: If a file cannot be read.
    """
    key = _known_keys.get(mjcf)
    if key is None or key != stamps(path for path, _ in key):
        key = _known_keys[mjcf] = stamps(sorted(_ways_to_files(mjcf)))
        mujoco.mj_clearCache(mujoco.mj_getCache())
    return key


def stamps(files: Iterable[Path]) -> ContentKey:
    """Return each file with what every write to it changes: inode, size and times; no numbers where it is gone."""
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append((path, ()))
        else:
            found.append((path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)))
    return tuple(found)


def _named_files(files: list[Path]) -> Iterator[Path]:
    """Yield the paths of files under the names in files, from every directory that a name might start from."""
    names: set[str] = set()
    directories = {""}
    room = _MAX_BYTES
    for file in files:
        text, num_bytes = _text(file, room)
        room -= num_bytes
        for word in _NAME.finditer(text):
            value = _VALUE.match(text, word.end())
            if value is not None:
                (names if word[0].startswith("file") else directories).update(_spellings(value[2]))
    starts = {base / directory for base in {file.parent for file in files} for directory in directories}
    if len(starts) * len(names) > _MAX_PLACES:
        raise OSError(
            errno.E2BIG, f"names {len(names)} files in {len(starts)} directories, which is too many", str(files[0])
        )
    for start in starts:
        for name in names:
            path = start / name
            try:
                if path.exists() and not path.is_dir():
                    path.resolve()
                    yield path
            except (OSError, ValueError, RuntimeError):
                # Too long, with a NUL in it, or links in a circle: nobody can open it.
                continue


def _text(file: Path, room: int) -> tuple[str, int]:
    """Return a file as text, empty where it can name nothing, and how many bytes it has."""
    wrong = not_a_plain_file(file)
    if wrong is not None:
        raise OSError(errno.EINVAL, wrong, str(file))
    with file.open("rb") as stream:
        data = stream.read(room + 1)
    if len(data) > room:
        raise OSError(errno.EFBIG, f"with all files before it has more than {_MAX_BYTES >> 20} MiB", str(file))
    # Most files are meshes and textures, which name nothing; searching bytes is a hundred times as fast.
    return data.decode("utf-8", "surrogateescape") if b"file" in data or b"dir" in data else "", len(data)


def _spellings(name: str) -> Iterator[str]:
    for text in (name, html.unescape(name)):
        slashed = text.replace("\\", "/")
        # MuJoCo drops the directories of a name where the compiler's strippath says so.
        yield from (text, slashed, slashed.rpartition("/")[2])


# Scenes put together from parts: one MJCF file each, compiled into one model.

_LOG = logging.getLogger(__name__)

ASSETS = Path(__file__).resolve().parents[2] / "assets"

_FLAT_PICTURE = int(mujoco.mjtTexture.mjTEXTURE_2D)
_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)
_SIZES = (
    *("memory", "nemax", "njmax", "nconmax", "nstack", "nkey", "nuserdata"),
    *(f"nuser_{kind}" for kind in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")),
)
_OF_VISUAL = ("global_", "quality", "headlight", "map", "scale", "rgba")


@dataclass(frozen=True, kw_only=True)
class PartFrame:
    """Something fixed to a body of a part, which its file does not hold.

    Attributes:
        name: Name of the body that is added, with a site of the same name at its origin; or of the camera.
        body: The body that carries it, as the file calls it.
        position: Where it is in that body [m].
        quaternion: How it is turned.
        camera_fovy_deg: Vertical field of view of a camera, None for a frame.
    """

    name: str
    body: str
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    camera_fovy_deg: float | None = None


@dataclass(frozen=True, kw_only=True)
class CameraPose:
    """Where a camera of the scene stands instead of where the scene's file puts it.

    Attributes:
        name: The camera.
        position: Where it is [m].
        target: The point that it looks at, not straight above or below it [m].
        fovy_deg: Its vertical field of view.
        follows: The body, at rest at the origin and not turned, that it moves along with, looking the same way.
    """

    name: str
    position: tuple[float, float, float]
    target: tuple[float, float, float]
    fovy_deg: float
    follows: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScenePart:
    """One MJCF file in a scene. Everything in it is called ``<prefix>/<its name in the file>``.

    Attributes:
        prefix: The part's role, for example ``robot`` or ``object``.
        asset: Path of the file, relative to the package's assets or absolute.
        position: Where the part's origin is put [m].
        quaternion: How it is turned.
        frames: What is fixed to its bodies besides what the file holds.
        gravity_compensation: Whether none of its bodies feels its weight.
    """

    prefix: str
    asset: str
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    frames: tuple[PartFrame, ...] = ()
    gravity_compensation: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class SceneTexture:
    """A texture that no file holds; a material of a single world may have it in place of its own.

    Attributes:
        name: Its name in the model.
        pixels: Shape: (height, width, 3), uint8.
    """

    name: str
    pixels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ContactSensor:
    """Whether anything of one body touches anything of another, as a named sensor.

    Attributes:
        name: Name of the sensor.
        body: First body, with everything that hangs on it.
        other: Second body, likewise; or a geom, if ``other_is_geom``.
        other_is_geom: Whether ``other`` names a single geom.
    """

    name: str
    body: str
    other: str
    other_is_geom: bool = False


@dataclass(frozen=True, kw_only=True)
class PartNames:
    """The names in an MJCF file that is a part of scenes.

    Attributes:
        bodies: Its bodies.
        mocap_bodies: Those of them that are moved by hand.
        joints: Its joints.
        free_joints: Each free joint, and the body on it.
        actuators: Its actuators.
    """

    bodies: tuple[str, ...]
    mocap_bodies: tuple[str, ...]
    joints: tuple[str, ...]
    free_joints: Mapping[str, str]
    actuators: tuple[str, ...]


def part_names(asset: str) -> PartNames:
    """Return the names in an MJCF file; it is read again only where it has changed.

    Args:
        asset: Path of the file, relative to the package's assets or absolute.

    Raises:
        ConfigError: If it cannot be read, with the file.
    """
    path = ASSETS / asset
    wrong = not_a_plain_file(path)
    if wrong is None:
        try:
            return _part_names(path, content_key(path))
        except (OSError, ValueError) as error:
            wrong = f"cannot be read: {first_line(error)}"
    raise ConfigError(Problem(wrong, file=str(path)))


@lru_cache(maxsize=256)
def _part_names(path: Path, key: ContentKey) -> PartNames:
    del key
    spec = mujoco.MjSpec.from_file(str(path))
    free = [joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    return PartNames(
        bodies=tuple(body.name for body in spec.bodies[1:]),
        mocap_bodies=tuple(body.name for body in spec.bodies[1:] if body.mocap),
        joints=tuple(joint.name for joint in spec.joints),
        free_joints={joint.name: joint.parent.name for joint in free},
        actuators=tuple(actuator.name for actuator in spec.actuators),
    )


def compose_scene(
    scene: str,
    parts: Sequence[ScenePart],
    contact_sensors: Sequence[ContactSensor] = (),
    cameras: Sequence[CameraPose] = (),
    textures: Iterable[SceneTexture] = (),
) -> mujoco.MjModel:
    """Compile a scene with its parts attached.

    Args:
        scene: Path of the scene's MJCF file, relative to the package's assets or absolute; its options hold.
        parts: What is put into it.
        contact_sensors: Contacts that tasks want to know of.
        cameras: Cameras of the scene that stand elsewhere.
        textures: Textures that it has besides those of its files.
    """
    spec = mujoco.MjSpec.from_file(str(ASSETS / scene))
    for part in parts:
        frame = spec.worldbody.add_frame(pos=part.position, quat=part.quaternion)
        part_spec = _part_spec(part)
        ineffective = _take_settings(part_spec, spec)
        if ineffective:
            _tell_ineffective(part.asset, ineffective)
        spec.attach(part_spec, prefix=f"{part.prefix}/", frame=frame)
    for camera in cameras:
        _place_camera(spec, camera)
    for sensor in contact_sensors:
        spec.add_sensor(
            name=sensor.name,
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_XBODY,
            objname=sensor.body,
            reftype=mujoco.mjtObj.mjOBJ_GEOM if sensor.other_is_geom else mujoco.mjtObj.mjOBJ_XBODY,
            refname=sensor.other,
            intprm=[_FOUND, 0, 1],
        )
    return _compiled_with(spec, tuple(textures))


def texture_of(scene: str, material: str) -> np.ndarray:
    """Return the picture that a scene's file puts on a material. Shape: (height, width, 3), uint8.

    Args:
        scene: Path of the scene's MJCF file, relative to the package's assets or absolute.
        material: Name of a material that has a texture.
    """
    model = mujoco.MjModel.from_xml_path(str(ASSETS / scene))
    texture = int(model.mat_texid[model.material(material).id, int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
    return _pixels_of(model, texture).copy()


def _compiled_with(spec: mujoco.MjSpec, textures: Sequence[SceneTexture]) -> mujoco.MjModel:
    flat = int(mujoco.mjtBuiltin.mjBUILTIN_FLAT)
    for texture in textures:
        height, width, _ = texture.pixels.shape
        spec.add_texture(name=texture.name, type=_FLAT_PICTURE, builtin=flat, height=height, width=width, nchannel=3)
    model = spec.compile()
    for texture in textures:
        # MjSpec would take pixels one number at a time.
        _pixels_of(model, model.texture(texture.name).id)[:] = texture.pixels
    return model


def _pixels_of(model: mujoco.MjModel, texture: int) -> np.ndarray:
    """Return a view of a texture of three colours. Shape: (height, width, 3), uint8."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    first = int(model.tex_adr[texture])
    return model.tex_data[first : first + 3 * height * width].reshape(height, width, 3)


def _take_settings(part: mujoco.MjSpec, scene: mujoco.MjSpec) -> tuple[str, ...]:
    """Give a part the settings of its scene, which hold, and return the names of its own that differ.

    MuJoCo would tell these at each attaching and compiling, on stderr, as Python's warnings, and in a file that it
    makes in the working directory.
    """
    plain = mujoco.MjSpec()
    visual = [tuple(getattr(spec.visual, name) for spec in (part, scene, plain)) for name in _OF_VISUAL]
    options = (part.option, scene.option, plain.option)
    blocks = [(block, [name for name in dir(block[0]) if name[0] != "_"]) for block in (options, *visual)]
    ineffective = []
    for (own, held, default), names in [*blocks, ((part, scene, plain), _SIZES)]:
        for name in names:
            value, holds = getattr(own, name), getattr(held, name)
            if np.any(value != holds):
                if np.any(value != getattr(default, name)):
                    ineffective.append(name)
                setattr(own, name, holds)
    return tuple(ineffective)


@cache
def _tell_ineffective(asset: str, names: tuple[str, ...]) -> None:
    """Say once which settings of a file have no effect."""
    _LOG.info("%s: the scene's settings hold; those of this file have no effect: %s", asset, ", ".join(names))


def _part_spec(part: ScenePart) -> mujoco.MjSpec:
    # The key of an edited file also clears the meshes that MuJoCo keeps of it.
    content_key(ASSETS / part.asset)
    spec = mujoco.MjSpec.from_file(str(ASSETS / part.asset))
    # A keyframe holds the positions of one model and would not fit those of the scene.
    for key in list(spec.keys):
        spec.delete(key)
    if part.gravity_compensation:
        for body in spec.bodies[1:]:
            body.gravcomp = 1
    for frame in part.frames:
        body = spec.body(frame.body)
        if frame.camera_fovy_deg is not None:
            body.add_camera(name=frame.name, pos=frame.position, quat=frame.quaternion, fovy=frame.camera_fovy_deg)
        else:
            tool = body.add_body(name=frame.name, pos=frame.position, quat=frame.quaternion)
            tool.add_site(name=frame.name, group=4)
    return spec


def _place_camera(spec: mujoco.MjSpec, pose: CameraPose) -> None:
    camera = spec.camera(pose.name)
    if camera is None:
        return
    backward = np.subtract(pose.position, pose.target)
    right = np.cross((0.0, 0.0, 1.0), backward)
    axes = np.stack([right, np.cross(backward, right), backward], axis=1)
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, (axes / np.linalg.norm(axes, axis=0)).ravel())
    camera.pos, camera.quat, camera.fovy = pose.position, quaternion, pose.fovy_deg
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    if pose.follows is not None:
        spec.delete(camera)
        body = spec.body(pose.follows)
        body.add_camera(
            name=pose.name,
            mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK,
            pos=np.subtract(pose.position, body.pos),
            quat=quaternion,
            fovy=pose.fovy_deg,
        )


# Define a robot arm: the names of its parts and its limits, for environments and policies.

_NUM_FINGERS = 2


@dataclass(frozen=True, kw_only=True)
class Robot:
    """An arm, with a two-finger gripper or without, as it stands in the scene.

    Attributes:
        name: Registered name, for example ``panda``.
        arm_joints: Joints of the arm, base to wrist.
        arm_actuators: Actuators that hold them at a position, in the same order.
        joint_low: Lowest joint positions [rad].
        joint_high: Highest joint positions [rad].
        joint_velocity_limit: Highest joint speeds [rad/s].
        joint_torque_limit: Highest joint torques [Nm].
        home: Joint positions at the start of an episode, before noise [rad].
        finger_joints: Joints of the fingers that move: sliding [m] or turning [rad], see ``finger_unit``.
        finger_open: Their positions when the gripper is open.
        gripper_actuator: Actuator that sets the distance between the fingers, None for a robot without a gripper.
        gripper_closed: Its control when the fingers meet.
        gripper_open: Its control when the gripper is open; widths in between are interpolated.
        gripper_width: Distance between the fingertips when open [m]; 0 without a gripper.
        hand_body: Body that carries the tool centre point; its z axis points out of the hand, and the fingers close
            along its y axis.
        palm_body: Body that carries the fingers; what touches it or them touches the hand.
        finger_bodies: Bodies of the left and the right finger, the left one on the side of +y; empty without a gripper.
        tcp_site: The tool centre point, between the tips of the open fingers; its axes are those of the hand.
        base_body: The body that stands in the scene.
        finger_unit: Unit of ``finger_joints``.
        hand_down: How the hand is held when it points down and may choose its yaw.
        rotation_weight: What a turn of 1 rad counts in inverse kinematics, against 1 m of translation. An arm of fewer
            than six joints cannot do both and needs a small weight, so that its position is right.
        ik_damping: Damping of the inverse kinematics.
        right_finger_fixed: Whether the left finger alone moves, so that the middle between the fingertips comes nearer
            to the right finger as the gripper closes.
    """

    name: str
    arm_joints: tuple[str, ...]
    arm_actuators: tuple[str, ...]
    joint_low: tuple[float, ...]
    joint_high: tuple[float, ...]
    joint_velocity_limit: tuple[float, ...]
    joint_torque_limit: tuple[float, ...]
    home: tuple[float, ...]
    finger_joints: tuple[str, ...]
    finger_open: tuple[float, ...]
    gripper_actuator: str | None
    gripper_closed: float
    gripper_open: float
    gripper_width: float
    hand_body: str
    palm_body: str
    finger_bodies: tuple[str, ...]
    tcp_site: str
    base_body: str
    finger_unit: str = "m"
    hand_down: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 0.0)
    rotation_weight: float = 1.0
    ik_damping: float = 0.03
    right_finger_fixed: bool = False

    @property
    def fingers(self) -> tuple[str, str]:
        """Bodies of the left and the right finger, for tasks that cannot do without.

        Raises:
            ConfigError: If the robot has no gripper.
        """
        if len(self.finger_bodies) != _NUM_FINGERS:
            raise ConfigError(Problem(f"'{self.name}' has no gripper, and the task needs one", key="embodiment"))
        left, right = self.finger_bodies
        return left, right

    @property
    def control_per_metre(self) -> float:
        """How far the gripper's control moves per metre between the fingers; 0 without a gripper."""
        return (self.gripper_open - self.gripper_closed) / self.gripper_width if self.gripper_width else 0.0


# Define a robot on a floor: the names of its parts, and the effect of its actions.


@dataclass(frozen=True, kw_only=True)
class FloorRobot:
    """A cart, a quadruped, a humanoid, as it stands in the scene.

    An action has one number per actuator. The actuator's control is ``default_control + action_scale * action``: with
    position actuators a joint target about the default posture, Isaac Lab's ``JointPositionAction``; with motors a
    share of the greatest force.

    Attributes:
        name: Registered name, for example ``go1``.
        asset: Its MJCF file, relative to the package's assets or absolute.
        root_body: The body that everything else hangs on.
        free_joint: The root's free joint, None for a robot that is fixed to the floor.
        joints: Its other joints, in the order of observations.
        default_joint_position: Their positions in the default posture [rad or m].
        actuators: Its actuators, in the order of actions.
        default_control: Control of each that a zero action asks for.
        action_scale: What an action of 1 adds to each [rad, N or Nm].
        action_bound: Largest absolute value of an action; what is beyond counts as it.
        viewport: From where a person watches it.
        holds_targets: Whether a control is a position that is held, and not a force.

    Raises:
        ConfigError: If its file cannot be read or lacks a part that is named, or if numbers and parts do not pair up.
    """

    name: str
    asset: str
    root_body: str
    free_joint: str | None
    joints: tuple[str, ...]
    default_joint_position: tuple[float, ...]
    actuators: tuple[str, ...]
    default_control: tuple[float, ...]
    action_scale: tuple[float, ...]
    action_bound: float
    viewport: CameraPose
    holds_targets: bool = True

    def __post_init__(self) -> None:
        names, file = part_names(self.asset), str(ASSETS / self.asset)
        free = () if self.free_joint is None else (self.free_joint,)
        named = (
            ("body", (self.root_body,), names.bodies),
            ("free joint", free, names.free_joints),
            ("joint", self.joints, names.joints),
            ("actuator", self.actuators, names.actuators),
        )
        problems = []
        for kind, wanted, own in named:
            known = [f"robot/{name}" for name in own]
            problems += [
                Problem(f"'{self.name}': no {kind} called '{name}'{did_you_mean(name, known)}", file=file)
                for name in wanted
                if name not in known
            ]
        for key, count, of in (
            ("default_joint_position", len(self.joints), "joints"),
            ("default_control", len(self.actuators), "actuators"),
            ("action_scale", len(self.actuators), "actuators"),
        ):
            if len(getattr(self, key)) != count:
                message = f"'{self.name}': {key} has {len(getattr(self, key))} entries for {count} {of}"
                problems.append(Problem(message, file=file))
        if problems:
            raise ConfigError(problems)


# Poses of a robot, without simulating it: where its sites are, and how fast it goes from one to the next.


class FloorRobotPoses:
    """Forward kinematics of a robot with a free root.

    Legend: n poses, k joints, q positions and v degrees of freedom of the model.

    Args:
        robot: The robot; it must have a free joint.

    Attributes:
        root_dofs: The root's degrees of freedom. Shape: (6,).
        joint_dofs: The joints' degrees of freedom, in the robot's order. Shape: (k,).
    """

    def __init__(self, robot: FloorRobot) -> None:
        self._model = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=robot.asset),))
        self._data = mujoco.MjData(self._model)
        root = self._model.joint(robot.free_joint)
        self._joints = [self._model.joint(name) for name in robot.joints]
        self._root_qpos = int(root.qposadr[0]) + np.arange(7)
        self._joint_qpos = np.array([int(joint.qposadr[0]) for joint in self._joints])
        self.root_dofs = int(root.dofadr[0]) + np.arange(6)
        self.joint_dofs = np.array([int(joint.dofadr[0]) for joint in self._joints])

    def joint_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest joint positions [rad]. Shapes: (k,), (k,)."""
        ranges = np.array([joint.range for joint in self._joints])
        return ranges[:, 0], ranges[:, 1]

    def positions(self, root: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """Return the model's positions in a pose. Shapes: (7,), (k,) -> (q,)."""
        positions = self._model.qpos0.copy()
        positions[self._root_qpos], positions[self._joint_qpos] = root, joints
        return positions

    def velocities(self, positions: np.ndarray, frame_dt: float) -> np.ndarray:
        """Return the velocities with which poses follow each other, from their neighbours. Shapes: (n, q) -> (n, v).

        Args:
            positions: Poses at equal times.
            frame_dt: Time between them [s].
        """
        last = len(positions) - 1
        velocities = np.zeros((len(positions), self._model.nv))
        for index, velocity in enumerate(velocities):
            before, after = max(index - 1, 0), min(index + 1, last)
            mujoco.mj_differentiatePos(
                self._model, velocity, (after - before) * frame_dt, positions[before], positions[after]
            )
        return velocities

    def site_positions(self, positions: np.ndarray, sites: Sequence[str]) -> np.ndarray:
        """Return where sites are in poses [m]. Shapes: (n, q) -> (n, len(sites), 3)."""
        indices = [self._model.site(name).id for name in sites]
        places = []
        for pose in positions:
            self._data.qpos[:] = pose
            mujoco.mj_kinematics(self._model, self._data)
            places.append(self._data.site_xpos[indices].copy())
        return np.array(places)
