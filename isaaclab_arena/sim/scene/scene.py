"""Scenes put together from parts: one MJCF file each, compiled into one model."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import mujoco
import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.sim.scene.mjcf_files import ContentKey, content_key

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
