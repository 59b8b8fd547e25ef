"""Scenes, robots and poses as MuJoCo models, and the files that they are made of."""

import errno
import html
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import mujoco
import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean, first_line
from isaaclab_arena.paths import not_a_plain_file

# Find the files that an MJCF file makes MuJoCo open, which must all lie below one directory.

ContentKey: TypeAlias = tuple[tuple[Path, tuple[int, ...]], ...]  # files with their stamps, see `stamps`

_known_keys: dict[Path, ContentKey] = {}
"""The files of each MJCF file at its last read, links as well as their targets; emptied once it has `MOST_KNOWN`."""
MOST_KNOWN = 256

# Matched anywhere in the text and not in parsed elements: MuJoCo's parser accepts XML that others refuse. Matches that
# MuJoCo does not read do no harm.
_NAME = re.compile(r"file\w*|meshdir|texturedir|assetdir")
_VALUE = re.compile(r"""\s*=\s*(["'])(.*?)\1""", re.DOTALL)
_MAX_BYTES = 1 << 29  # of all files of a robot together
_MAX_PLACES = 200_000  # names times the directories that each may start from


def file_outside(mjcf: Path, root: Path) -> Path | None:
    """Return a file outside ``root`` that MuJoCo might open for an MJCF file, None if there is none."""
    # Includes, attached models, meshes, textures and height fields are followed, and links are resolved. OSError: a
    # file cannot be read or is not a plain file, or there are too many.
    root, mjcf = root.resolve(), mjcf.resolve()
    seen: dict[Path, None] = {mjcf: None}
    known = 0
    # A directory named in the last file also applies to names in the first one, so all files are read again.
    while known != len(seen):
        known = len(seen)
        for found in [path.resolve() for path in _named_files(list(seen))]:
            seen[found] = None
            if not found.is_relative_to(root):
                return found
    return None if mjcf.is_relative_to(root) else mjcf


def files_of(mjcf: Path) -> dict[Path, Path]:
    """Map each path under which MuJoCo might open a regular file for an MJCF file to the resolved file."""
    # The MJCF file itself is among them. A path may be a link. Can raise OSError.
    found = {mjcf.absolute(): mjcf.resolve()}
    known = 0
    while known != len(found):
        known = len(found)
        ways = _named_files(list(dict.fromkeys(found.values())))
        found.update({path: path.resolve() for path in ways if path.is_file()})
    return found


def part_files(what: str, asset: str) -> dict[str, Path]:
    """Return an MJCF file and its references by role and relative path; empty for a file of this package."""
    mjcf = (ASSETS / asset).resolve()
    if mjcf.is_relative_to(ASSETS):
        return {}
    try:
        files = sorted(set(files_of(mjcf).values()))
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
    directory = mjcf.parent
    names = [file.relative_to(directory).as_posix() if file.is_relative_to(directory) else str(file) for file in files]
    return {f"{what} {name}": file for name, file in zip(names, files, strict=True)}


def content_key(mjcf: Path) -> ContentKey:
    """Return a key that changes with any file of an MJCF file; unchanged files are not read again."""
    key = _known_keys.get(mjcf)
    if key is None or key != stamps(path for path, _ in key):
        if len(_known_keys) >= MOST_KNOWN:
            _known_keys.clear()
        key = _known_keys[mjcf] = stamps(sorted(files_of(mjcf)))
        # MuJoCo caches meshes by path and modification time in whole seconds, so a quick edit would be missed.
        mujoco.mj_clearCache(mujoco.mj_getCache())
    return key


def stamps(files: Iterable[Path]) -> ContentKey:
    """Return each file with inode, size and times, which every write changes; no numbers for a missing file."""
    found: dict[Path, tuple[int, ...]] = dict.fromkeys(files, ())
    for path in found:
        with suppress(OSError):
            status = path.stat()
            found[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return tuple(found.items())


def _named_files(files: list[Path]) -> Iterator[Path]:
    """Yield the existing paths for all names in files, from every directory where a name might start."""
    names: set[str] = set()
    directories = {""}
    room = _MAX_BYTES
    for file in files:
        wrong = not_a_plain_file(file)
        if wrong is not None:
            raise OSError(errno.EINVAL, wrong, str(file))
        with file.open("rb") as stream:
            data = stream.read(room + 1)
        if len(data) > room:
            raise OSError(errno.EFBIG, f"with all files before it has more than {_MAX_BYTES >> 20} MiB", str(file))
        room -= len(data)
        # Most files are meshes and textures, which name nothing; searching bytes is a hundred times as fast.
        if b"file" not in data and b"dir" not in data:
            continue
        text = data.decode("utf-8", "surrogateescape")
        for word in _NAME.finditer(text):
            value = _VALUE.match(text, word.end())
            if value is not None:
                written = {value[2], html.unescape(value[2])}
                slashed = {each.replace("\\", "/") for each in written}
                # MuJoCo drops the directories of a name if the compiler's strippath is set.
                spellings = {*written, *slashed, *(each.rpartition("/")[2] for each in slashed)}
                (names if word[0].startswith("file") else directories).update(spellings)
    starts = {base / directory for base in {file.parent for file in files} for directory in directories}
    if len(starts) * len(names) > _MAX_PLACES:
        reason = f"names {len(names)} files in {len(starts)} directories, which is too many"
        raise OSError(errno.E2BIG, reason, str(files[0]))
    for path in (start / name for start in starts for name in names):
        try:
            if path.exists() and not path.is_dir():
                path.resolve()
                yield path
        except (OSError, ValueError, RuntimeError):
            # The path is too long, holds a NUL, or its links form a cycle: it cannot be opened.
            continue


# Compose scenes of parts: one MJCF file each, compiled into one model.

_LOG = logging.getLogger(__name__)

ASSETS = Path(__file__).resolve().parents[1] / "assets"

_FLAT_PICTURE = int(mujoco.mjtTexture.mjTEXTURE_2D)
_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)


@dataclass(frozen=True, kw_only=True)
class PartFrame:
    """A frame or camera fixed to a body of a part, in addition to its file."""

    name: str  # of the added body and of the site at its origin; or of the camera
    body: str  # the parent body, by its name in the file
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)  # in the parent's frame [m]
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    camera_fovy_deg: float | None = None  # vertical field of view of a camera; None for a frame


@dataclass(frozen=True)
class CameraPose:
    """The pose of a scene camera, in place of that in the scene's file."""

    name: str
    position: tuple[float, float, float]  # [m]
    target: tuple[float, float, float]  # point that it looks at [m], not straight above or below it
    fovy_deg: float  # vertical
    # Body whose motion it tracks with a fixed orientation; the body rests at the origin, not turned.
    follows: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScenePart:
    """One MJCF file in a scene; everything in it is called ``<prefix>/<its name in the file>``."""

    prefix: str  # the part's role: robot, object
    asset: str  # path, relative to the package's assets or absolute
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of the part's origin [m]
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    frames: tuple[PartFrame, ...] = ()  # added to its bodies
    gravity_compensation: bool = False  # True: gravity acts on none of its bodies


@dataclass(frozen=True, kw_only=True)
class ContactSensor:
    """A named sensor of contact between two bodies with all their descendants."""

    name: str
    body: str
    other: str  # second body, or a geom if other_is_geom
    other_is_geom: bool = False


@dataclass(frozen=True, kw_only=True)
class PartNames:
    """The names in an MJCF file that is a part of scenes."""

    bodies: tuple[str, ...]
    mocap_bodies: tuple[str, ...]  # a subset of bodies
    joints: tuple[str, ...]
    free_joints: Mapping[str, str]  # free joint -> its body
    actuators: tuple[str, ...]


def part_names(asset: str) -> PartNames:
    """Return the names in an MJCF file (kept until it changes); ConfigError if it cannot be read."""
    path = ASSETS / asset
    if wrong := not_a_plain_file(path):
        raise ConfigError(Problem(wrong, file=str(path)))
    try:
        return _names_in(path, content_key(path))
    except (OSError, ValueError) as error:
        raise ConfigError(Problem(f"cannot be read: {first_line(error)}", file=str(path))) from error


@lru_cache(maxsize=MOST_KNOWN)
def _names_in(path: Path, key: ContentKey) -> PartNames:
    """Return the names in an MJCF file; ``key`` invalidates the cache."""
    del key
    spec = mujoco.MjSpec.from_file(str(path))
    free = [joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    # A name that is not UTF-8 is found only when it is read.
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
    textures: Iterable[tuple[str, np.ndarray]] = (),
) -> mujoco.MjModel:
    """Compile a scene with its parts attached, its cameras placed, and sensors and textures added."""
    # Paths are relative to the package's assets, or absolute. Textures are names with pixels (height, width, 3), uint8;
    # a material of a single world may use them.
    no_output_of_mujoco()
    spec = mujoco.MjSpec.from_file(str(ASSETS / scene))
    for part in parts:
        frame = spec.worldbody.add_frame(pos=part.position, quat=part.quaternion)
        spec.attach(_part_spec(part), prefix=f"{part.prefix}/", frame=frame)

    for pose in cameras:
        camera = spec.camera(pose.name)
        if camera is None:
            continue
        # The camera looks along its -z axis, with its x axis horizontal.
        backward = np.subtract(pose.position, pose.target)
        right = np.cross((0.0, 0.0, 1.0), backward)
        axes = np.stack([right, np.cross(backward, right), backward], axis=1)
        quaternion = np.zeros(4)
        mujoco.mju_mat2Quat(quaternion, (axes / np.linalg.norm(axes, axis=0)).ravel())
        camera.pos, camera.quat, camera.fovy = pose.position, quaternion, pose.fovy_deg
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
        # A tracking camera has to be a child of its body, so it is replaced by one there.
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
    pictures = tuple(textures)
    flat = int(mujoco.mjtBuiltin.mjBUILTIN_FLAT)
    for name, pixels in pictures:
        height, width, _ = pixels.shape
        spec.add_texture(name=name, type=_FLAT_PICTURE, builtin=flat, height=height, width=width, nchannel=3)
    # The scene's own options apply to all parts. MuJoCo warns of those of a part that have no effect.
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = spec.compile()
    for warning in found:
        _log_once("; ".join(str(warning.message).splitlines()))
    for name, pixels in pictures:
        # MjSpec accepts pixels only one number at a time, so they are written into the compiled model.
        first = int(model.tex_adr[model.texture(name).id])
        model.tex_data[first : first + pixels.size].reshape(pixels.shape)[:] = pixels
    return model


def _part_spec(part: ScenePart) -> mujoco.MjSpec:
    """Return a part with its frames."""
    # The key of an edited file also clears MuJoCo's cache of its meshes.
    content_key(ASSETS / part.asset)
    spec = mujoco.MjSpec.from_file(str(ASSETS / part.asset))
    # A keyframe holds the positions of one model and would not fit the scene's.
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
    # The name in MuJoCo's warnings.
    spec.modelname = part.asset
    return spec


def no_output_of_mujoco() -> None:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT into the working directory, and from printing."""
    config = mujoco.MjLogConfig.get()
    config.logto_file, config.logto_console = False, False
    config.set()


@lru_cache(maxsize=MOST_KNOWN)
def _log_once(warning: str) -> None:
    _LOG.info("%s", warning)


@dataclass(frozen=True, kw_only=True)
class Robot:
    """An arm, with or without a two-finger gripper, as placed in the scene."""

    name: str
    arm_joints: tuple[str, ...]  # base to wrist
    arm_actuators: tuple[str, ...]  # position actuators, in the order of arm_joints
    joint_low: tuple[float, ...]  # [rad]
    joint_high: tuple[float, ...]  # [rad]
    joint_velocity_limit: tuple[float, ...]  # [rad/s]
    joint_torque_limit: tuple[float, ...]  # [Nm]
    home: tuple[float, ...]  # joint positions at the start of an episode, before noise [rad]
    finger_joints: tuple[str, ...]  # moving joints, sliding [m] or turning [rad], see finger_unit
    finger_open: tuple[float, ...]  # their positions with the gripper open
    gripper_actuator: str | None  # sets the distance between the fingers; None without a gripper
    gripper_closed: float  # its control when the fingers meet
    gripper_open: float  # its control when open; widths in between are interpolated
    gripper_width: float  # between the open fingertips [m]; 0 without a gripper
    # Carries the tool centre point. Its z axis points out of the hand; the fingers close along its y axis.
    hand_body: str
    palm_body: str  # Carries the fingers. A contact with it or them is a contact with the hand.
    finger_bodies: tuple[str, ...]  # left (+y side) and right; empty without a gripper
    tcp_site: str  # tool centre point between the open fingertips, with the hand's axes
    base_body: str  # the body at the robot's mount
    finger_unit: str = "m"  # unit of finger_joints
    # orientation of the hand that points down, for any yaw
    hand_down: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 0.0)
    # Weight of 1 rad against 1 m in inverse kinematics. An arm with fewer than six joints needs a small weight, so that
    # its position is exact.
    rotation_weight: float = 1.0
    ik_damping: float = 0.03
    right_finger_fixed: bool = False  # True: only the left finger moves, so the middle shifts right while closing

    @property
    def fingers(self) -> tuple[str, str]:
        """Bodies of the left and the right finger; ConfigError if the robot has no gripper."""
        if len(self.finger_bodies) != 2:
            raise ConfigError(Problem(f"'{self.name}' has no gripper, and the task needs one", key="embodiment"))
        left, right = self.finger_bodies
        return left, right

    @property
    def control_per_metre(self) -> float:
        """Change of the gripper's control per metre between the fingers; 0 without a gripper."""
        return (self.gripper_open - self.gripper_closed) / self.gripper_width if self.gripper_width else 0.0


@dataclass(frozen=True, kw_only=True)
class FloorRobot:
    """A robot on a floor; an action sets each control to ``default_control + action_scale * action``."""

    # An action on position actuators is a joint target about the default posture, as in Isaac Lab's
    # ``JointPositionAction``. On motors it is a share of the greatest force.
    name: str
    asset: str  # MJCF path, relative to the package's assets or absolute
    root_body: str  # ancestor of all its other bodies
    free_joint: str | None  # of the root; None for a robot fixed to the floor
    joints: tuple[str, ...]  # all others, in the order of observations
    default_joint_position: tuple[float, ...]  # [rad or m]
    actuators: tuple[str, ...]  # in the order of actions
    default_control: tuple[float, ...]  # controls of a zero action
    action_scale: tuple[float, ...]  # added per unit of action [rad, N or Nm]
    action_bound: float  # actions are clipped to +-action_bound
    viewport: CameraPose
    holds_targets: bool = True  # True for position targets, False for forces

    def by_joint(self, root: Sequence[float], joints: Iterable[float]) -> dict[str, Sequence[float]]:
        """Return positions or velocities of a free root and of `joints` by name, as a start state holds them."""
        return {str(self.free_joint): root, **{name: (value,) for name, value in zip(self.joints, joints, strict=True)}}

    def __post_init__(self) -> None:
        # Check the names against the file, then the lengths, and report all problems in one ConfigError.
        names, file = part_names(self.asset), str(ASSETS / self.asset)
        free = () if self.free_joint is None else (self.free_joint,)
        named = (
            ("body", (self.root_body,), names.bodies),
            ("free joint", free, names.free_joints),
            ("joint", self.joints, names.joints),
            ("actuator", self.actuators, names.actuators),
        )
        wrong = []
        for kind, wanted, own in named:
            known = [f"robot/{name}" for name in own]
            missing = [name for name in wanted if name not in known]
            wrong += [f"no {kind} called '{name}'{did_you_mean(name, known)}" for name in missing]
        of_parts = (
            ("default_joint_position", "joints"),
            ("default_control", "actuators"),
            ("action_scale", "actuators"),
        )
        for key, parts in of_parts:
            found, count = len(getattr(self, key)), len(getattr(self, parts))
            if found != count:
                wrong.append(f"{key} has {found} entries for {count} {parts}")
        if wrong:
            raise ConfigError([Problem(f"'{self.name}': {each}", file=file) for each in wrong])
