"""The contract of a physics backend: worlds of one model, by name, and torch's work after a step as a graph."""

import hashlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import mujoco
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.math import multiply, rotate
from isaaclab_arena.sim.scene import Robot


@dataclass(frozen=True, kw_only=True)
class ModelNames:
    """The index of each named part of a compiled model."""

    joint_qpos: Mapping[str, slice]  # joint -> its entries of qpos
    joint_dof: Mapping[str, slice]  # joint -> its entries of qvel
    actuators: Mapping[str, int]  # actuator -> its entry of ctrl
    bodies: Mapping[str, int]  # body -> its index in xpos and xquat
    sites: Mapping[str, int]  # site -> its index in site_xpos
    sensors: Mapping[str, slice]  # sensor -> its entries of sensordata
    mocap_bodies: Mapping[str, int]  # mocap body -> its index in mocap_pos
    free_joints: Mapping[str, str]  # body -> its own free joint


def model_names(model: mujoco.MjModel) -> ModelNames:
    """Return the indices of a compiled model's named parts."""
    free, ball = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
    joint_qpos, joint_dof, free_joints = {}, {}, {}
    for index in range(model.njnt):
        name, kind = model.joint(index).name, int(model.jnt_type[index])
        # A free joint has a pose and a velocity, a ball joint a quaternion and a rate, all others one number each.
        num_positions, num_dofs = {free: (7, 6), ball: (4, 3)}.get(kind, (1, 1))
        position, dof = int(model.jnt_qposadr[index]), int(model.jnt_dofadr[index])
        joint_qpos[name], joint_dof[name] = slice(position, position + num_positions), slice(dof, dof + num_dofs)
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
            model.sensor(index).name: slice(int(start), int(start) + int(size))
            for index, (start, size) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True))
        },
        mocap_bodies={name: int(model.body_mocapid[i]) for name, i in bodies.items() if model.body_mocapid[i] >= 0},
        free_joints=free_joints,
    )


class NamedState:
    """The state of worlds of one model, as tensors and by name."""

    names: ModelNames
    device: torch.device
    qpos: torch.Tensor  # (num_envs, nq)
    qvel: torch.Tensor  # (num_envs, nv)
    ctrl: torch.Tensor  # (num_envs, nu)
    xpos: torch.Tensor  # body positions [m], (num_envs, nbody, 3)
    xquat: torch.Tensor  # body orientations, (num_envs, nbody, 4)
    site_xpos: torch.Tensor  # site positions [m], (num_envs, nsite, 3)
    sensordata: torch.Tensor  # (num_envs, nsensordata)

    def joint_indices(self, joints: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the joints' entries of ``qpos`` and of ``qvel``. Shapes: (sum of sizes,), int64."""
        positions, dofs = (
            [index for name in joints for index in range(parts[name].start, parts[name].stop)]
            for parts in (self.names.joint_qpos, self.names.joint_dof)
        )
        return torch.tensor(positions, device=self.device), torch.tensor(dofs, device=self.device)

    def actuator_indices(self, actuators: Sequence[str]) -> torch.Tensor:
        """Return the actuators' entries of ``ctrl``. Shape: (len(actuators),), int64."""
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
        """Return True for the worlds in which a `ContactSensor`, by its name, finds a contact: (num_envs,), bool."""
        return self.sensordata[:, self.names.sensors[contact_sensor].start] > 0

    def free_velocity(self, joint: str) -> torch.Tensor:
        """Return a free body's velocity in the world: linear [m/s], angular [rad/s]. Shape: (num_envs, 6)."""
        velocity = self.joint_velocity(joint)
        angular = rotate(self.joint_position(joint)[:, 3:7], velocity[:, 3:6])
        return torch.cat((velocity[:, :3], angular), dim=-1)


VISIBLE_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
"""Fields of a state that a picture shows."""

VISIBLE_FIELDS = (
    *("geom_size", "geom_rgba", "mat_rgba", "mat_texid"),
    *("light_active", "light_ambient", "light_diffuse", "light_specular"),
)
"""Fields of a model that change a picture by other means than a pose; a world may have values of its own."""


@dataclass(frozen=True, kw_only=True)
class VisibleWorld:
    """The visible state of a world at one moment."""

    poses: Mapping[str, np.ndarray]  # `VISIBLE_POSES` -> values in MuJoCo's shapes
    fields: Mapping[str, np.ndarray]  # `VISIBLE_FIELDS` -> values

    @classmethod
    def of(cls, model: mujoco.MjModel, data: mujoco.MjData) -> "VisibleWorld":
        """Copy a world's visible state; ``data`` needs current poses of geoms, cameras and lights."""
        return cls(
            poses={name: getattr(data, name).copy() for name in VISIBLE_POSES},
            fields={name: getattr(model, name).copy() for name in VISIBLE_FIELDS},
        )


def side_by_side(indices: torch.Tensor) -> torch.Tensor | slice:
    """Return indices (n,), int64, as a slice if they are contiguous: a third of the time to read and write."""
    # A slice reads a view of the memory; an index tensor reads a copy.
    entries = indices.tolist()
    first = entries[0] if entries else 0
    return slice(first, first + len(entries)) if entries == list(range(first, first + len(entries))) else indices


# Change values of the model in single worlds, such as an object's mass or a light's direction.
#
# A change names a field as `mujoco.MjModel` does (``body_mass``, ``opt.gravity``), an entry of it and the new value, so
# any backend that keeps its model in arrays with a leading world dimension can apply it. The functions here are pure:
# they read the compiled model, leave it unchanged, and return the differences of one world.

_CONTACT_PRIORITY = 2  # above that of the fingers' pads, which would otherwise decide the friction of a grasp alone


@dataclass(frozen=True, kw_only=True)
class ModelChange:
    """A new value for one entry of one field of the model."""

    field: str  # as in `mujoco.MjModel`: body_mass, geom_rgba, opt.gravity
    entry: int  # index of the body, geom, light or camera, or of the component of an option; 0 for a single number
    value: tuple[float, ...]  # new value, flat, in the entry's order


def changed_fields(changes: Sequence[Sequence[ModelChange]]) -> set[str]:
    """Return the fields that worlds change; EnvironmentBuildError for one that all worlds need to share."""
    fields = {change.field for own in changes for change in own}
    if "opt.timestep" in fields:
        # A control step has the same number of physics steps in every world.
        reason = "a world cannot have its own 'opt.timestep': all worlds advance by the same time"
        raise EnvironmentBuildError(f"{reason}; set it in the scene's file")
    return fields


def write_changes(
    changes: Sequence[Sequence[ModelChange]], fields: Mapping[str, np.ndarray], indices: np.ndarray
) -> None:
    """Write each world's changes into ``fields`` (num_worlds, ...) at the worlds' ``indices`` (len(changes),)."""
    # The changes of one entry are written together. Of two in one world the later one stands last and wins.
    together: dict[tuple[str, int], tuple[list[int], list[tuple[float, ...]]]] = {}
    for world, own in zip(indices.tolist(), changes, strict=True):
        for change in own:
            worlds, values = together.setdefault((change.field, change.entry), ([], []))
            worlds.append(world)
            values.append(change.value)
    for (name, entry), (worlds, values) in together.items():
        field = fields[name]
        field = field[:, None] if field.ndim == 1 else field
        field[np.array(worlds), entry] = np.array(values, np.float64).reshape(-1, *field.shape[2:])


def body_tree(model: mujoco.MjModel, body: str) -> tuple[int, ...]:
    """Return the indices of a body and all its descendants."""
    tree = [model.body(body).id]
    for index in range(tree[0] + 1, model.nbody):
        if int(model.body_parentid[index]) in tree:
            tree.append(index)
    return tuple(tree)


def body_geoms(model: mujoco.MjModel, body: str) -> tuple[int, ...]:
    """Return the indices of the geoms of a body and its descendants."""
    tree = set(body_tree(model, body))
    return tuple(index for index in range(model.ngeom) if int(model.geom_bodyid[index]) in tree)


def body_mass(model: mujoco.MjModel, body: str) -> float:
    """Return the mass of a body and its descendants together [kg]."""
    return float(sum(model.body_mass[index] for index in body_tree(model, body)))


def resized(model: mujoco.MjModel, body: str, *, mass: float | None, scale: float) -> list[ModelChange]:
    """Return the changes that set a body tree's mass [kg] (None: unchanged) and scale its lengths."""
    # The distribution of the mass among the bodies stays; scaling alone keeps the mass.
    heavier = 1.0 if mass is None else mass / body_mass(model, body)
    tree = body_tree(model, body)
    changes = []
    for index in tree:
        if mass is not None:
            changes.append(changed("body_mass", index, model.body_mass[index] * heavier))
        if mass is not None or scale != 1.0:
            changes.append(changed("body_inertia", index, model.body_inertia[index] * (heavier * scale * scale)))
    if scale == 1.0:
        return changes
    # The root body keeps its own position; all below it moves with the scale.
    changes += [changed("body_ipos", index, model.body_ipos[index] * scale) for index in tree]
    changes += [changed("body_pos", index, model.body_pos[index] * scale) for index in tree[1:]]
    scaled = ("geom_size", "geom_pos", "geom_aabb")
    geoms = body_geoms(model, body)
    changes += [changed(field, index, getattr(model, field)[index] * scale) for index in geoms for field in scaled]
    sites = [index for index in range(model.nsite) if int(model.site_bodyid[index]) in tree]
    return changes + [changed("site_pos", index, model.site_pos[index] * scale) for index in sites]


def slippery(model: mujoco.MjModel, body: str, friction: float) -> list[ModelChange]:
    """Return the changes that set a body's sliding friction, against every other surface."""
    changes = []
    for index in body_geoms(model, body):
        if model.geom_contype[index] or model.geom_conaffinity[index]:
            changes.append(changed("geom_friction", index, (friction, *model.geom_friction[index][1:])))
            changes.append(changed("geom_priority", index, (_CONTACT_PRIORITY,)))
    return changes


def painted(model: mujoco.MjModel, body: str, rgb: Sequence[float]) -> list[ModelChange]:
    """Return the changes that colour a body: every geom that looks like its first one. ``rgb``: (3,), 0 to 1."""
    geoms = body_geoms(model, body)
    materials, colours, first = model.geom_matid, model.geom_rgba, geoms[0]
    # The opacity stays: that of its material, if it has one.
    shown = colours[first] if materials[first] < 0 else model.mat_rgba[materials[first]]
    return [
        changed("geom_rgba", index, (*rgb, shown[3]))
        for index in geoms
        if materials[index] == materials[first] and (colours[index] == colours[first]).all()
    ]


def moved_camera(
    model: mujoco.MjModel, camera: str, *, shift: Sequence[float], turn: Sequence[float]
) -> list[ModelChange]:
    """Return the changes that shift a camera (3,) [m] in its body's frame and turn it by a vector (3,) [rad]."""
    index = model.camera(camera).id
    # The rotation vector is about the camera's own axes: right, up, backwards.
    vector = np.asarray(turn, float)
    angle = float(np.sqrt((vector * vector).sum()))
    axis = vector / angle if angle > 0 else vector
    turned = np.array([np.cos(angle / 2), *(np.sin(angle / 2) * axis)])
    return [
        changed("cam_pos", index, model.cam_pos[index] + np.asarray(shift, float)),
        changed("cam_quat", index, multiply(torch.from_numpy(model.cam_quat[index]), torch.from_numpy(turned)).numpy()),
    ]


def changed(field: str, entry: int, value: float | Sequence[float] | np.ndarray) -> ModelChange:
    """Return a new value of an entry as a change."""
    return ModelChange(field=field, entry=entry, value=tuple(float(part) for part in np.atleast_1d(value)))


# Torch's work that is the same each time, told to a GPU at once and not kernel by kernel: a verdict on a step is a
# hundred kernels of a microsecond each, and to tell a GPU one of them takes ten.

_LOG = logging.getLogger(__name__)
_FIRST_TIMES = 2  # calls that do the work kernel by kernel before it is captured; the last one is watched
_ATEN = torch.ops.aten
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
_CONSTANTS = (_ATEN.lift_fresh.default,)
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)

_Result = TypeVar("_Result")

Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures the kernels of a function without a run, and returns a function that runs them on the same memory."""


def capture_on(device: torch.device) -> Capture | None:
    """Return a capture of a device's work as a graph, None for a device without graphs."""
    return partial(_graph_of, device) if device.type == "cuda" else None


def _graph_of(device: torch.device, work: Callable[[], None]) -> Callable[[], None]:
    try:
        return _captured_graph(device, work)
    except RuntimeError:
        # After a failed capture, torch yields no random numbers of the GPU until another capture succeeds.
        _captured_graph(device, lambda: torch.zeros(1, device=device))
        raise


def _captured_graph(device: torch.device, work: Callable[[], Any]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    with (
        torch.cuda.device(device),
        # A failed capture leaves its stream the current one, so that is restored here.
        torch.cuda.stream(torch.cuda.current_stream(device)),
        # Calls of other threads to the GPU are allowed meanwhile.
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        work()
    return graph.replay


class Replayed(Generic[_Result]):
    """Work that is captured at its third call, and replayed from then on."""

    def __init__(
        self, work: Callable[[], _Result], capture: Capture | None, *, keeper: object | None = None, name: str
    ) -> None:
        # The first calls create constants on the device. Work that waits for the device, or that cannot be captured for
        # another reason, always runs kernel by kernel.
        # ``work`` does the same each time, with tensors at fixed addresses; its result is valid until the next call. It
        # may set tensor attributes of ``keeper``, which keep their addresses and get the new values.
        self._work, self._capture, self._keeper, self._name = work, capture, keeper, name
        self._times_done = 0
        self._kept: Mapping[str, torch.Tensor] = {}
        self._replay: Callable[[], None] | None = None
        self._result: list[_Result] = []

    def __call__(self) -> _Result:
        """Do the work."""
        # During a capture no other thread may draw from the GPU's default random generator, as a policy beside a
        # simulation thread may do.
        if self._capture is None or threading.current_thread() is not threading.main_thread():
            return self._work()
        self._times_done += 1
        if self._times_done < _FIRST_TIMES:
            return self._work()
        if self._times_done == _FIRST_TIMES:
            # Rule out a capture if the work waits: after a failed capture torch may be in a bad state.
            with _Watch() as watch:
                result = self._work()
            if watch.waits:
                self._give_up(f"it waits for the device in {', '.join(sorted(watch.waits))}")
            return result
        try:
            # A failed capture is no error: the work runs kernel by kernel from now on.
            if self._replay is None:
                self._replay = self._captured(self._capture)
            replaced = [name for name, tensor in self._kept.items() if getattr(self._keeper, name) is not tensor]
        except RuntimeError as error:
            self._give_up(str(error))
            return self._work()
        if replaced:
            self._give_up(f"'{replaced[0]}' was set elsewhere, and not changed in place")
            return self._work()
        self._replay()
        return self._result[0]

    def forget(self) -> None:
        """Release the graph, and begin anew: the work's tensors may have been replaced."""
        self._replay = None
        self._kept = {}
        self._result.clear()
        self._times_done = 0

    def _give_up(self, why: str) -> None:
        _LOG.info("%s is not replayed as a graph, which takes longer: %s", self._name, why)
        self._capture = None

    def _captured(self, capture: Capture) -> Callable[[], None]:
        attributes = {} if self._keeper is None else vars(self._keeper)  # live
        kept = {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}
        self._kept = kept
        self._result.clear()

        def work_in_place() -> None:
            self._result.append(self._work())
            new = {name: value for name, value in attributes.items() if isinstance(value, torch.Tensor)}
            # A value in the memory of another kept tensor would be overwritten before it is read.
            places = {tensor.untyped_storage().data_ptr() for tensor in kept.values()}
            safe = {
                name: new[name].clone() if new[name].untyped_storage().data_ptr() in places else new[name]
                for name, tensor in kept.items()
                if new[name] is not tensor
            }
            for name, tensor in safe.items():
                if tensor.shape != kept[name].shape or tensor.dtype != kept[name].dtype:
                    raise RuntimeError(f"'{name}' is {tensor.dtype} of shape {tuple(tensor.shape)} now")
                kept[name].copy_(tensor)

        try:
            return capture(work_in_place)
        finally:
            for name, tensor in kept.items():
                setattr(self._keeper, name, tensor)


class _Watch(TorchDispatchMode):
    """Records the operations that wait for a GPU: they read its results or send it data."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: set[str] = set()  # names of these operations

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        values = [*args, *(kwargs or {}).values(), result]
        if func in _INDEXING:
            # A mask index needs the number of true entries, which only the device knows.
            indices = [tensor for tensor in tree_leaves(values[1]) if tensor is not None]
            waits = any(tensor.dtype in {torch.bool, torch.uint8} for tensor in indices)
        elif torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            waits = True
        else:
            # CPU scalars are passed to a kernel by value.
            tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.ndim]
            is_between_devices = len({tensor.device for tensor in tensors}) > 1
            waits = func in _CONSTANTS or (func in _COPIES and is_between_devices)
        if waits:
            self.waits.add(str(func))
        return result


# Define the contract of a physics backend: a batch of worlds of one model, read and written by name.
#
# Shapes: ``num_envs`` worlds; ``nq`` positions, ``nv`` degrees of freedom, ``nu`` controls of the model. Quaternions
# are w x y z. Task code reads named joints, bodies, sites and sensors and never an index, so the same code serves every
# backend. All derived quantities describe the state after the last `reset` or `step`. Contact sensors are the
# exception: they are those of the last physics step, one ``physics_dt`` earlier.


@dataclass(frozen=True, kw_only=True)
class StartState:
    """The start of one world; a value that is not named keeps the model's default."""

    # joint -> one number [m or rad], or a pose of seven for a free joint
    joint_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # joint -> one number [m/s or rad/s], or six for a free joint
    joint_velocities: Mapping[str, Sequence[float]] = field(default_factory=dict)
    controls: Mapping[str, float] = field(default_factory=dict)
    mocap_positions: Mapping[str, Sequence[float]] = field(default_factory=dict)  # mocap body -> position [m]


class Backend(NamedState, ABC):
    """A batch of worlds that share a model.

    The tensors are live views of the simulation: read them after `step`, copy what must last, and write only
    ``ctrl``. Their values do not depend on ``num_envs`` or on the number of threads.
    """

    model: mujoco.MjModel  # compiled, shared by all worlds
    num_envs: int  # number of worlds
    reproducible: bool  # the same calls give the same bits again
    renders: bool = False  # `isaaclab_arena.sim.warp_cameras` can render the worlds on their own device
    capture: Capture | None = None  # captures torch's work after a step, see `Replayed`; None if that does not pay
    physics_dt: float  # time that one substep advances [s]
    # Worlds whose physics broke down since their reset: a MuJoCo error, a warning about bad positions, velocities,
    # accelerations or controls, or a number that is not finite. (num_envs,), bool.
    diverged: torch.Tensor

    @abstractmethod
    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Reset the worlds ``env_ids`` (n,), int64, ascending, to their start states, one each in the same order."""

    @abstractmethod
    def step(self, moved: torch.Tensor, num_substeps: int, *, may_fail: bool = False) -> torch.Tensor:
        """Advance the worlds of a mask by ``num_substeps`` physics steps of ``physics_dt`` each, and return them.

        The other worlds keep their state and derived quantities. ``moved`` has shape (num_envs,), bool, on the
        backend's device: indices would synchronise with the GPU. With ``may_fail`` no synchronisation learns if the
        step was possible. If it was not, all worlds keep their state, and a call without ``may_fail`` advances them;
        the returned mask, of the same shape, is then empty.
        """

    @abstractmethod
    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return the Jacobian of a body's site. Axis 1 is vx, vy, vz, wx, wy, wz in the world: (num_envs, 6, nv)."""

    @abstractmethod
    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return a copy of all that the worlds' future depends on. Shape: (len(env_ids), state_size), float64."""

    def integration_state(self, env_id: int) -> np.ndarray:
        """Return a copy of all that a world's future depends on, for tasks of users. Shape: (state_size,), float64."""
        return self.integration_states([env_id])[0]

    @abstractmethod
    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Set a world to a state of `integration_states`. Shape: (state_size,)."""

    @abstractmethod
    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return a copy of all worlds' states, and of all that can be read of them. Shape of each: (num_envs, ...)."""

    @abstractmethod
    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Restore all worlds from a `snapshot` of this backend, or of another one of the same model."""

    @abstractmethod
    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Set model values of single worlds; values of an earlier call are dropped.

        A field that is not named has the shared model's value again. Values that the model derives (inertia about axes,
        bounding volumes, constraint scaling) follow. Call it before `reset`. A world's values must not depend on those
        of other worlds, to the last bit. ``env_ids`` (n,), int64, are ascending; ``changes`` has one list per world.
        EnvironmentBuildError if worlds cannot have values of their own of a field.
        """

    @abstractmethod
    def model_field(self, name: str) -> np.ndarray:
        """Return a copy of a field of `mujoco.MjModel` in every world. Shape: (num_envs, ...)."""

    @abstractmethod
    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and state with current poses of all visible things; valid until the next call."""

    def visible_copy(self, env_id: int) -> VisibleWorld | None:
        """Return a copy of a world's visible state, None if its physics broke down."""
        model, data = self.visible_world(env_id)
        return VisibleWorld.of(model, data) if np.isfinite(data.qpos).all() else None

    def close(self) -> None:
        """Release the device memory that would outlast the worlds."""

    def model_digest(self) -> str:
        """Return the SHA-256 of the compiled model: equal for equal physics, in any backend."""
        buffer = np.empty(mujoco.mj_sizeModel(self.model), np.uint8)
        mujoco.mj_saveModel(self.model, None, buffer)
        return hashlib.sha256(buffer.tobytes()).hexdigest()

    @abstractmethod
    def engine(self) -> str:
        """Return name and version of the physics engine."""


class Simulated(Protocol):
    """An environment that exposes its simulation and robot."""

    num_envs: int

    backend: Backend
    robot: Robot

    task_name: str  # registered name of the task, for example ``lift_object``
    action_mode_name: str  # ``joint_position`` or ``ee_delta``
    landmarks: Mapping[str, str]  # role (``object``, ``bin``, ``target``, ``handle``) to its body or site
    sizes: Mapping[str, float]  # lengths of the task's things [m], and ``object_round`` (0 or 1)


def write_starts(
    starts: Sequence[StartState], names: ModelNames, fields: Mapping[str, np.ndarray], indices: np.ndarray
) -> None:
    """Write start states into ``fields`` (num_worlds, ...) at the worlds' ``indices`` (len(starts),), int64."""
    if len(starts) != len(indices):
        raise ValueError(f"{len(starts)} start states for {len(indices)} worlds")
    wanted = (
        ("qpos", [start.joint_positions for start in starts], names.joint_qpos),
        ("qvel", [start.joint_velocities for start in starts], names.joint_dof),
        ("ctrl", [start.controls for start in starts], names.actuators),
        ("mocap_pos", [start.mocap_positions for start in starts], names.mocap_bodies),
    )
    # Only named entries are written, those of worlds with the same names together. All values are plain numbers, or all
    # are sequences with as many numbers as the entries of their name hold. An unknown name raises KeyError, a wrong
    # number of values ValueError.
    for name, named, places in wanted:
        field, worlds_by_names = fields[name], dict[tuple[str, ...], list[int]]()
        for world, own in enumerate(named):
            if own:
                worlds_by_names.setdefault(tuple(own), []).append(world)
        for keys, worlds in worlds_by_names.items():
            parts = [places[key] for key in keys]
            entries = [
                np.array([part]) if isinstance(part, int) else np.arange(part.start, part.stop) for part in parts
            ]
            sizes = [prod(field.shape[2:]) * len(part) for part in entries]
            # One flat array, each world's values in the order of the names.
            values: list[Any] = [value for world in worlds for value in named[world].values()]
            if np.ndim(values[0]) == 0:
                numbers = np.fromiter(values, np.float64, len(values))
            else:
                given = np.fromiter(map(len, values), np.int64, len(values)).reshape(-1, len(keys))
                if (given != sizes).any():
                    wrong = int(np.flatnonzero((given != sizes).any(axis=0))[0])
                    has = f"another number of values than the {sizes[wrong]} that it has"
                    raise ValueError(f"'{keys[wrong]}' is given {has}")
                numbers = np.fromiter(chain.from_iterable(values), np.float64, given.sum())
            there = np.concatenate(entries)
            field[indices[np.array(worlds), None], there] = numbers.reshape(len(worlds), len(there), *field.shape[2:])
