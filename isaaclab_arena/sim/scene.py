"""Scenes put together from parts: one MJCF file each, compiled into one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco

ASSETS = Path(__file__).resolve().parent.parent / "assets"

_FOUND = 1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND)


@dataclass(frozen=True, kw_only=True)
class ScenePart:
    """One MJCF file in a scene. Everything in it is called ``<prefix>/<its name in the file>``.

    Attributes:
        prefix: The part's role, for example ``robot`` or ``object``.
        asset: Path of the file, relative to the package's assets or absolute.
        position: Where the part's origin is put [m].
        quaternion: How it is turned.
    """

    prefix: str
    asset: str
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quaternion: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


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


def compose_scene(
    scene: str, parts: Sequence[ScenePart], contact_sensors: Sequence[ContactSensor] = ()
) -> mujoco.MjModel:
    """Compile a scene with its parts attached.

    Args:
        scene: Path of the scene's MJCF file, relative to the package's assets or absolute; its options hold.
        parts: What is put into it.
        contact_sensors: Contacts that tasks want to know of.
    """
    spec = mujoco.MjSpec.from_file(str(ASSETS / scene))
    for part in parts:
        frame = spec.worldbody.add_frame(pos=part.position, quat=part.quaternion)
        spec.attach(mujoco.MjSpec.from_file(str(ASSETS / part.asset)), prefix=f"{part.prefix}/", frame=frame)
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
    return spec.compile()
