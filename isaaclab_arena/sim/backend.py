"""The contract of a physics backend: a batch of worlds of one model, read, changed and started by name."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.math import multiply_numbers, rotate
from isaaclab_arena.sim.replayed import Capture
from isaaclab_arena.sim.scene.scene import Robot

# Find the named parts of a compiled model, and compute its hash.


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """Where the model keeps what its names stand for.

    Attributes:
        joint_qpos: Joint to its entries of ``qpos``.
        joint_dof: Joint to its entries of ``qvel``.
        actuators: Actuator to its entry of ``ctrl``.
        bodies: Body to its index in ``xpos`` and ``xquat``.
        sites: Site to its index in ``site_xpos``.
        sensors: Sensor to its entries of ``sensordata``.
        mocap_bodies: Mocap body to its index in ``mocap_pos``.
        free_joints: Body to the free joint that it has of its own.
    """

    joint_qpos: Mapping[str, slice]
    joint_dof: Mapping[str, slice]
    actuators: Mapping[str, int]
    bodies: Mapping[str, int]
    sites: Mapping[str, int]
    sensors: Mapping[str, slice]
    mocap_bodies: Mapping[str, int]
    free_joints: Mapping[str, str]


def model_names(model: mujoco.MjModel) -> ModelNames:
    """Return where a compiled model keeps its named parts."""
    free, ball = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
    joint_qpos, joint_dof, free_joints = {}, {}, {}
    for index in range(model.njnt):
        name, kind = model.joint(index).name, int(model.jnt_type[index])
        num_positions, num_dofs = {free: (7, 6), ball: (4, 3)}.get(kind, (1, 1))
        joint_qpos[name] = _part(model.jnt_qposadr[index], num_positions)
        joint_dof[name] = _part(model.jnt_dofadr[index], num_dofs)
        if kind == free:
            free_joints[model.body(int(model.jnt_bodyid[index])).name] = name
    bodies = {model.body(index).name: index for index in range(model.nbody)}
    return ModelNames(
        joint_qpos=joint_qpos,
        joint_dof=joint_dof,
        actuators={model.actuator(index).name: index for index in range(model.nu)},
        bodies=bodies,
        sites={model.site(index).name: index for index in range(model.nsite)},
        sensors={
            model.sensor(index).name: _part(model.sensor_adr[index], model.sensor_dim[index])
            for index in range(model.nsensor)
        },
        mocap_bodies={name: int(model.body_mocapid[i]) for name, i in bodies.items() if model.body_mocapid[i] >= 0},
        free_joints=free_joints,
    )


def model_sha256(model: mujoco.MjModel) -> str:
    """Return the SHA-256 of a compiled model: equal for equal physics, whatever simulates it."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


def _part(start: int, size: int) -> slice:
    return slice(int(start), int(start) + int(size))


# The state of a batch of worlds, read by the names of joints, bodies, sites, actuators and sensors.


class NamedState:
    """The state of worlds of one model, as tensors and by name.

    Attributes:
        names: Where named things are.
        device: Where the tensors live.
        qpos: Shape: (num_envs, nq).
        qvel: Shape: (num_envs, nv).
        ctrl: Shape: (num_envs, nu).
        xpos: Body positions [m]. Shape: (num_envs, nbody, 3).
        xquat: Body orientations. Shape: (num_envs, nbody, 4).
        site_xpos: Site positions [m]. Shape: (num_envs, nsite, 3).
        sensordata: Shape: (num_envs, nsensordata).
    """

    names: ModelNames
    device: torch.device
    qpos: torch.Tensor
    qvel: torch.Tensor
    ctrl: torch.Tensor
    xpos: torch.Tensor
    xquat: torch.Tensor
    site_xpos: torch.Tensor
    sensordata: torch.Tensor

    def joint_indices(self, joints: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entries of ``qpos`` and of ``qvel`` that belong to joints. Shapes: (sum of sizes,), int64."""
        positions = [index for name in joints for index in _entries(self.names.joint_qpos[name])]
        dofs = [index for name in joints for index in _entries(self.names.joint_dof[name])]
        return torch.tensor(positions, device=self.device), torch.tensor(dofs, device=self.device)

    def actuator_indices(self, actuators: Sequence[str]) -> torch.Tensor:
        """Return the entries of ``ctrl`` that belong to actuators. Shape: (len(actuators),), int64."""
        return torch.tensor([self.names.actuators[name] for name in actuators], device=self.device)

    def joint_position(self, joint: str) -> torch.Tensor:
        """Return a joint's position. Shape: (num_envs, 1), or (num_envs, 7) for a free joint."""
        return self.qpos[:, self.names.joint_qpos[joint]]

    def joint_velocity(self, joint: str) -> torch.Tensor:
        """Return a joint's velocity. Shape: (num_envs, 1), or (num_envs, 6) for a free joint."""
        return self.qvel[:, self.names.joint_dof[joint]]

    def body_position(self, body: str) -> torch.Tensor:
        """Return a body's position in the world [m]. Shape: (num_envs, 3)."""
        return self.xpos[:, self.names.bodies[body]]

    def body_orientation(self, body: str) -> torch.Tensor:
        """Return a body's orientation in the world. Shape: (num_envs, 4)."""
        return self.xquat[:, self.names.bodies[body]]

    def site_position(self, site: str) -> torch.Tensor:
        """Return a site's position in the world [m]. Shape: (num_envs, 3)."""
        return self.site_xpos[:, self.names.sites[site]]

    def sensor(self, sensor: str) -> torch.Tensor:
        """Return a sensor's reading. Shape: (num_envs, dim)."""
        return self.sensordata[:, self.names.sensors[sensor]]

    def touching(self, contact_sensor: str) -> torch.Tensor:
        """Return whether a contact sensor found a contact. Shape: (num_envs,), bool."""
        return self.sensordata[:, self.names.sensors[contact_sensor].start] > 0

    def free_velocity(self, joint: str) -> torch.Tensor:
        """Return the velocity of a free joint's body in the world: linear [m/s], angular [rad/s].

        Shape: (num_envs, 6).
        """
        velocity = self.joint_velocity(joint)
        angular = rotate(self.joint_position(joint)[:, 3:7], velocity[:, 3:6])
        return torch.cat((velocity[:, :3], angular), dim=-1)


def side_by_side(indices: torch.Tensor) -> torch.Tensor | slice:
    """Return entries as a slice if they follow one another, which is read and written in a third of the time.

    What a slice reads shares memory with what it is read from; what a tensor of entries reads does not.

    Args:
        indices: The entries. Shape: (n,), int64.
    """
    entries = indices.tolist()
    first = entries[0] if entries else 0
    return slice(first, first + len(entries)) if entries == list(range(first, first + len(entries))) else indices


def _entries(part: slice) -> range:
    return range(part.start, part.stop)


# Change values of the model in single worlds, such as an object's mass or a light's direction.
#
# A change names a field as `mujoco.MjModel` does, an entry of it and the new value, so any backend that keeps its
# model in arrays with a leading world dimension can apply it. The functions here are pure: from the compiled model,
# which nothing changes, to what is different in one world.

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


# The contract of a physics backend: a batch of worlds of one model, read and written by name.
#
# Shapes: ``num_envs`` worlds; ``nq`` positions, ``nv`` degrees of freedom, ``nu`` controls of the model. Quaternions
# are w x y z. Task code reads named joints, bodies, sites and sensors and never an index, so the same code serves
# every backend. All derived quantities describe the state after the last `reset` or `step`; contact sensors alone are
# those of the last physics step, one ``physics_dt`` earlier.


@dataclass(frozen=True, kw_only=True)
class StartState:
    """What one world starts from; whatever is not named keeps the model's default.

    Attributes:
        joint_positions: Joint to its position: one number [m or rad], or a pose of seven for a free joint.
        joint_velocities: Joint to its velocity: one number [m/s or rad/s], or the six of a free joint.
        controls: Actuator to its control.
        mocap_positions: Mocap body to its position [m].
    """

    joint_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    joint_velocities: Mapping[str, Sequence[float]] = field(default_factory=dict)
    controls: Mapping[str, float] = field(default_factory=dict)
    mocap_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Backend(NamedState, ABC):
    """A batch of worlds that share a model.

    The tensors are live views of the simulation: read them after `step`, copy what must last, and write only
    ``ctrl``. Their values do not depend on ``num_envs`` or on the number of threads.

    Attributes:
        model: The compiled model that the worlds share.
        num_envs: Number of worlds.
        reproducible: Whether the same calls give the same bits again.
        renders: Whether `isaaclab_arena.sim.warp.cameras` renders the worlds where they are.
        capture: What captures the work of torch that follows a step, where that is worth it; see `Replayed`.
        physics_dt: Time that one substep advances [s].
        diverged: Worlds whose physics broke down since their reset: a MuJoCo error, a warning about bad positions,
            velocities, accelerations or controls, or a number that is not finite. Shape: (num_envs,), bool.
    """

    model: mujoco.MjModel
    num_envs: int
    reproducible: bool
    renders: bool = False
    capture: Capture | None = None
    physics_dt: float
    diverged: torch.Tensor

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Put the named worlds into their start states and leave all others untouched.

        Args:
            env_ids: Worlds, ascending. Shape: (n,), int64.
            starts: One state per world, in the same order.
        """

    @abstractmethod
    def step(self, moved: torch.Tensor, num_substeps: int) -> None:
        """Advance some worlds; the others keep state and derived quantities.

        Args:
            moved: Which ones; a mask, because to turn it into indices on a GPU is to wait for the GPU.
                Shape: (num_envs,), bool, on the backend's device.
            num_substeps: Physics steps of ``physics_dt`` each.
        """

    def try_step(self, moved: torch.Tensor, num_substeps: int) -> torch.Tensor:
        """Advance some worlds as `step` does, without waiting to learn whether that was possible; by default it is.

        Where it was not, all worlds are as they were, and `step` with the same arguments advances them.

        Args:
            moved: See `step`.
            num_substeps: See `step`.

        Returns:
            Which worlds were advanced: those of ``moved``, or none. Shape: (num_envs,), bool, on the backend's device.
        """
        self.step(moved, num_substeps)
        return moved

    @abstractmethod
    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return how a site, moving with its body, follows the degrees of freedom.

        Args:
            body: The body that the site belongs to.
            site: The site.

        Returns:
            Axis 1 is vx, vy, vz, wx, wy, wz in the world frame. Shape: (num_envs, 6, nv).
        """

    @abstractmethod
    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return everything that some worlds' future depends on, copied. Shape: (len(env_ids), state_size), float64."""

    def integration_state(self, env_id: int) -> np.ndarray:
        """Return everything the future of a world depends on, copied. Shape: (state_size,), float64."""
        return self.integration_states([env_id])[0]

    @abstractmethod
    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Continue a world from what `integration_state` returned.

        Args:
            env_id: The world.
            state: Shape: (state_size,).
        """

    @abstractmethod
    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return everything the future of all worlds depends on and everything that can be read of them, copied.

        Shape of each: (num_envs, ...).
        """

    @abstractmethod
    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Put all worlds where they were when `snapshot` was taken, of this backend or of one of the same model."""

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Give the named worlds values of the model of their own, in place of those of an earlier call.

        Whatever is not named is the shared model's again, and what the model derives from changed values (inertia
        about axes, bounding volumes, constraint scaling) follows. Call it before `reset`. A world's values must not
        depend on those of other worlds, to the last bit.

        Args:
            env_ids: Worlds, ascending. Shape: (n,), int64.
            changes: One list per world, in the same order.

        Raises:
            EnvironmentBuildError: If the backend cannot.
        """
        del env_ids, changes
        raise EnvironmentBuildError(f"the backend '{self.engine()}' cannot vary its model between worlds")

    def model_field(self, name: str) -> np.ndarray:
        """Return a field of the model in every world, for renderers and tests. Shape: (num_envs, ...).

        Args:
            name: As in `mujoco.MjModel`: ``geom_rgba``, ``light_dir``, ``cam_pos``.

        Raises:
            EnvironmentBuildError: If the backend cannot.
        """
        raise EnvironmentBuildError(f"the backend '{self.engine()}' does not show its model's '{name}'")

    @abstractmethod
    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and its state with current poses of everything visible; good until the next call."""

    def close(self) -> None:
        """Release what would outlast the worlds on their device."""

    @abstractmethod
    def model_digest(self) -> str:
        """Return a hash of the compiled model: equal for equal physics."""

    @abstractmethod
    def engine(self) -> str:
        """Return name and version of the physics engine."""


# Give scripted policies and pictures the simulation's state, which observations do not show.


@runtime_checkable
class Simulated(Protocol):
    """An environment with a simulation and a robot inside.

    Attributes:
        backend: The simulation.
        robot: The robot in it.
    """

    backend: Backend
    robot: Robot

    @property
    def task_name(self) -> str:
        """Registered name of the task, for example ``lift_object``."""
        ...

    @property
    def action_mode_name(self) -> str:
        """What actions mean: ``joint_position`` or ``ee_delta``."""
        ...

    @property
    def landmarks(self) -> Mapping[str, str]:
        """Role (``object``, ``bin``, ``target``, ``handle``) to the name of the body or site that plays it."""
        ...

    @property
    def sizes(self) -> Mapping[str, float]:
        """Lengths of the task's things [m], and ``object_round`` (0 or 1)."""
        ...


# Turn the start states of many worlds into arrays; worlds that name the same parts are written together.


@dataclass(frozen=True, kw_only=True)
class StartBlock:
    """What worlds that name the same things of a field want to have there.

    Attributes:
        worlds: Which ones, counted as they were given. Shape: (n,), int64.
        entries: Which entries of the field. Shape: (k,), int64.
        values: What they hold. Shape: (n, k times the numbers of an entry), float64.
    """

    worlds: np.ndarray
    entries: np.ndarray
    values: np.ndarray


def write_starts(
    starts: Sequence[StartState], names: ModelNames, fields: Mapping[str, np.ndarray], indices: np.ndarray
) -> None:
    """Write what start states name into the fields of their worlds, and nothing else.

    Args:
        starts: One state per world.
        names: Where the model keeps what they name.
        fields: ``qpos``, ``qvel``, ``ctrl`` and ``mocap_pos``. Shape of each: (num_worlds, ...).
        indices: Each world's index into the fields. Shape: (len(starts),), int64.

    Raises:
        KeyError: If the model has no such name.
        ValueError: If something is given another number of values than it has, or there are not as many indices as
            starts.
    """
    if len(starts) != len(indices):
        raise ValueError(f"{len(starts)} start states for {len(indices)} worlds")
    wanted = (
        ("qpos", [start.joint_positions for start in starts], names.joint_qpos),
        ("qvel", [start.joint_velocities for start in starts], names.joint_dof),
        ("ctrl", [start.controls for start in starts], names.actuators),
        ("mocap_pos", [start.mocap_positions for start in starts], names.mocap_bodies),
    )
    for name, named, places in wanted:
        field = fields[name]
        for block in start_blocks(named, places, entry_size=prod(field.shape[2:])):
            values = block.values.reshape(len(block.worlds), len(block.entries), *field.shape[2:])
            field[indices[block.worlds, None], block.entries] = values


def start_blocks(
    named: Sequence[Mapping[str, Sequence[float] | float]],
    places: Mapping[str, slice | int],
    *,
    entry_size: int = 1,
) -> Iterator[StartBlock]:
    """Return the values of worlds for one field, in as many blocks as there are different sets of names.

    Args:
        named: For each world, by name: as many numbers as the entries of that name hold; all of them plain numbers
            where that is one.
        places: Name to its entries of the field.
        entry_size: How many numbers an entry holds.

    Raises:
        KeyError: If a name has no place.
        ValueError: If a name is given another number of values than its entries hold.
    """
    worlds_by_names: dict[tuple[str, ...], list[int]] = {}
    for world, own in enumerate(named):
        worlds_by_names.setdefault(tuple(own), []).append(world)
    for names, worlds in worlds_by_names.items():
        if not names:
            continue
        entries = [_entry_array(places[name]) for name in names]
        values = [value for world in worlds for value in named[world].values()]
        sizes = [entry_size * len(part) for part in entries]
        yield StartBlock(
            worlds=np.array(worlds),
            entries=np.concatenate(entries),
            values=_numbers(values, names, sizes).reshape(len(worlds), sum(sizes)),
        )


def _entry_array(place: slice | int) -> np.ndarray:
    return np.array([place]) if isinstance(place, int) else np.arange(place.start, place.stop)


def _numbers(values: Sequence[Any], names: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
    """Return the values of worlds one after the other, each world's in the order of the names."""
    if np.ndim(values[0]) == 0:
        return np.fromiter(values, np.float64, len(values))
    given = np.fromiter(map(len, values), np.int64, len(values)).reshape(-1, len(names))
    if (given != sizes).any():
        wrong = int(np.flatnonzero((given != sizes).any(axis=0))[0])
        raise ValueError(f"'{names[wrong]}' is given another number of values than the {sizes[wrong]} that it has")
    return np.fromiter(chain.from_iterable(values), np.float64, given.sum())
