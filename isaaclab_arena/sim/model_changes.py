"""Change values of the model in single worlds, such as an object's mass or a light's direction.

A change names a field as `mujoco.MjModel` does, an entry of it and the new value, so any backend that keeps its model
in arrays with a leading world dimension can apply it. The functions here are pure: from the compiled model, which
nothing changes, to what is different in one world.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from isaaclab_arena.sim.math.rotation import multiply_numbers

_CONTACT_PRIORITY = 2
"""Above that of the fingers' pads, which otherwise decide alone how slippery a grasp is."""


@dataclass(frozen=True, kw_only=True)
class ModelChange:
    """One entry of one field.

    Attributes:
        field: Name of the field, as in `mujoco.MjModel`: ``body_mass``, ``geom_rgba``.
        entry: Which body, geom, light or camera.
        value: What stands there instead, in the shape of the entry.
    """

    field: str
    entry: int
    value: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ChangedEntry:
    """What worlds want to have in one entry of one field.

    Attributes:
        field: Name of the field.
        entry: Which body, geom, light or camera.
        worlds: Which ones, counted as they were given. Shape: (n,), int64.
        values: Shape: (n, numbers of the entry), float64.
    """

    field: str
    entry: int
    worlds: np.ndarray
    values: np.ndarray


def changed_entries(changes: Sequence[Sequence[ModelChange]]) -> Iterator[ChangedEntry]:
    """Return the changes of many worlds, those of the same entry together.

    Args:
        changes: One list per world. Of two changes of the same entry in one world the later counts, and stands last.
    """
    together: dict[tuple[str, int], tuple[list[int], list[tuple[float, ...]]]] = {}
    for world, own in enumerate(changes):
        for change in own:
            worlds, values = together.setdefault((change.field, change.entry), ([], []))
            worlds.append(world)
            values.append(change.value)
    for (name, entry), (worlds, values) in together.items():
        yield ChangedEntry(field=name, entry=entry, worlds=np.array(worlds), values=np.array(values, np.float64))


def body_tree(model: mujoco.MjModel, body: str) -> tuple[int, ...]:
    """Return a body and all that hang on it, by index."""
    tree = [model.body(body).id]
    for index in range(tree[0] + 1, model.nbody):
        if int(model.body_parentid[index]) in tree:
            tree.append(index)
    return tuple(tree)


def body_geoms(model: mujoco.MjModel, body: str) -> tuple[int, ...]:
    """Return the geoms of a body and of all that hang on it, by index."""
    tree = set(body_tree(model, body))
    return tuple(index for index in range(model.ngeom) if int(model.geom_bodyid[index]) in tree)


def touching_geoms(model: mujoco.MjModel, body: str) -> tuple[int, ...]:
    """Return those geoms of a body that can touch something, by index."""
    return tuple(
        index for index in body_geoms(model, body) if model.geom_contype[index] or model.geom_conaffinity[index]
    )


def body_mass(model: mujoco.MjModel, body: str) -> float:
    """Return what a body weighs together with all that hang on it [kg]."""
    return float(sum(model.body_mass[index] for index in body_tree(model, body)))


def is_scalable(model: mujoco.MjModel, body: str) -> bool:
    """Return whether a body consists of simple shapes, whose size is a number of the model; meshes are not."""
    mesh = int(mujoco.mjtGeom.mjGEOM_MESH)
    return all(int(model.geom_type[index]) != mesh for index in body_geoms(model, body))


def resized(model: mujoco.MjModel, body: str, *, mass: float | None, scale: float) -> list[ModelChange]:
    """Return a body made heavier or lighter and larger or smaller; mass stays spread as it is, and scaling keeps it.

    Args:
        model: The compiled model.
        body: A body; all that hang on it are changed alike.
        mass: What they weigh together [kg], None to leave it.
        scale: Factor on every length.
    """
    heavier = 1.0 if mass is None else mass / body_mass(model, body)
    tree = body_tree(model, body)
    changes = []
    for index in tree:
        if mass is not None:
            changes.append(_change("body_mass", index, model.body_mass[index] * heavier))
        if mass is not None or scale != 1.0:
            changes.append(_change("body_inertia", index, model.body_inertia[index] * (heavier * scale * scale)))
    if scale == 1.0:
        return changes
    changes += [_change("body_ipos", index, model.body_ipos[index] * scale) for index in tree]
    changes += [_change("body_pos", index, model.body_pos[index] * scale) for index in tree[1:]]
    for index in body_geoms(model, body):
        changes += [
            _change(field, index, getattr(model, field)[index] * scale)
            for field in ("geom_size", "geom_pos", "geom_aabb")
        ]
    sites = [index for index in range(model.nsite) if int(model.site_bodyid[index]) in tree]
    return changes + [_change("site_pos", index, model.site_pos[index] * scale) for index in sites]


def slippery(model: mujoco.MjModel, body: str, friction: float) -> list[ModelChange]:
    """Return a body with another coefficient of sliding friction, whatever it touches."""
    changes = []
    for index in touching_geoms(model, body):
        changes.append(_change("geom_friction", index, (friction, *model.geom_friction[index][1:])))
        changes.append(_change("geom_priority", index, (_CONTACT_PRIORITY,)))
    return changes


def painted(model: mujoco.MjModel, body: str, rgb: Sequence[float]) -> list[ModelChange]:
    """Return a body in another colour: every geom that looks like its first one. Shape of ``rgb``: (3,), 0 to 1."""
    geoms = body_geoms(model, body)
    first = geoms[0]
    alike = [
        index
        for index in geoms
        if model.geom_matid[index] == model.geom_matid[first]
        and (model.geom_rgba[index] == model.geom_rgba[first]).all()
    ]
    return [_change("geom_rgba", index, (*rgb, colour_of(model, body)[3])) for index in alike]


def colour_of(model: mujoco.MjModel, body: str) -> tuple[float, ...]:
    """Return the colour of a body's first geom: red, green, blue, opacity, 0 to 1."""
    first = body_geoms(model, body)[0]
    material = int(model.geom_matid[first])
    return tuple(map(float, model.geom_rgba[first] if material < 0 else model.mat_rgba[material]))


def retextured(model: mujoco.MjModel, material: str, texture: str) -> ModelChange:
    """Return a material with another texture of the model, both by name."""
    index = model.material(material).id
    textures = np.array(model.mat_texid[index])
    textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = model.texture(texture).id
    return _change("mat_texid", index, textures)


def lit(
    model: mujoco.MjModel,
    *,
    direction: Sequence[float] | None,
    intensity: float | None,
    tint: Sequence[float] | None,
) -> list[ModelChange]:
    """Return other light.

    Args:
        model: The compiled model.
        direction: Where the first light, the sun, shines to. Shape: (3,).
        intensity: Factor on every light.
        tint: Factors on red, green and blue of every light. Shape: (3,).
    """
    changes = []
    if direction is not None:
        vector = np.asarray(direction, float)
        changes.append(_change("light_dir", 0, vector / np.sqrt((vector * vector).sum())))
    if intensity is not None or tint is not None:
        factor = (1.0 if intensity is None else intensity) * np.asarray(tint or (1.0, 1.0, 1.0), float)
        changes += [
            _change(field, index, np.minimum(getattr(model, field)[index] * factor, 1.0))
            for index in range(model.nlight)
            for field in ("light_diffuse", "light_specular", "light_ambient")
        ]
    return changes


def moved_camera(
    model: mujoco.MjModel, camera: str, *, shift: Sequence[float], turn: Sequence[float]
) -> list[ModelChange]:
    """Return a camera that is not quite where it should be.

    Args:
        model: The compiled model.
        camera: Its name.
        shift: In the frame of the body that carries it [m]. Shape: (3,).
        turn: Rotation vector about its own axes: right, up, backwards [rad]. Shape: (3,).
    """
    index = model.camera(camera).id
    vector = np.asarray(turn, float)
    angle = float(np.sqrt((vector * vector).sum()))
    axis = vector / angle if angle > 0 else vector
    turned = (np.cos(angle / 2), *(np.sin(angle / 2) * axis))
    return [
        _change("cam_pos", index, model.cam_pos[index] + np.asarray(shift, float)),
        _change("cam_quat", index, multiply_numbers(tuple(model.cam_quat[index]), turned)),
    ]


def shifted_body(model: mujoco.MjModel, body: str, shift: Sequence[float]) -> list[ModelChange]:
    """Return a body that hangs elsewhere on its parent. Shape of ``shift``: (3,) [m]."""
    index = model.body(body).id
    return [_change("body_pos", index, model.body_pos[index] + np.asarray(shift, float))]


def _change(field: str, entry: int, value: float | Sequence[float] | np.ndarray) -> ModelChange:
    return ModelChange(field=field, entry=entry, value=tuple(float(part) for part in np.atleast_1d(value)))
