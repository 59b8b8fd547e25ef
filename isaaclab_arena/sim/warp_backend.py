"""GPU physics: MuJoCo-Warp, with all worlds resident on one device."""

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import attrgetter
from typing import Any

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.distributed.devices import on_cpu, on_device
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim import backend
from isaaclab_arena.sim.backend import Backend, Capture, ModelChange, Replayed, StartState
from isaaclab_arena.sim.math import rotate
from isaaclab_arena.sim.warp_kernels import Launcher

_FOLLOWING = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "tendon_length0"),
    *("actuator_acc0", "geom_rbound", "geom_aabb", "geom_size", "eq_data"),
    *("cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0", "light_dir0"),
)
"""Fields that `mujoco_warp.set_const` computes from others, so they differ between worlds if those do."""

_SHARED = frozenset({"geom_priority"})  # fields that MuJoCo-Warp shares among all worlds

_PER_WORLD = frozenset(
    f"{prefix}{each.name}"
    for prefix, kind in (("", mujoco_warp.Model), ("opt.", mujoco_warp.Option))
    for each in dataclasses.fields(kind)
    if isinstance(each.type, warp.array)
    and each.type.shape[0] == "*"
    # Others are derived from MuJoCo's, under names of their own.
    and hasattr(mujoco.MjOption if prefix else mujoco.MjModel, each.name)
)
"""Fields that MuJoCo-Warp can keep for each world: their arrays have a first dimension of any size."""


def _set_field(model: Any, name: str, value: Any) -> None:
    """Set a field of a model by its name, such as ``opt.gravity``."""
    *path, last = name.split(".")
    setattr(reduce(getattr, path, model), last, value)


# Size MuJoCo-Warp's buffers for contacts and constraints: measure first, and grow them when they overflow.
#
# MuJoCo-Warp has arrays of fixed sizes, and drops the rest. So a backend starts with the sizes that a
# simulation on the CPU needed, checks every control step for an overflow, and repeats that step with more room.

_PROBE_STEPS = 400
_HEADROOM = 2.0
_GROWTH = 1.5

_BITS = mujoco_warp.OverflowType
_TOO_SMALL = int(_BITS.NEFC | _BITS.NJMAX_NNZ | _BITS.BROADPHASE | _BITS.NARROWPHASE | _BITS.CCD)
"""Bits of ``Data.overflow`` that more room mends."""

_LEFT_OUT = int(_BITS.HFIELD | _BITS.CONTACT_MATCH | _BITS.EPA_HORIZON)
"""Bits of contacts that were left out and need no more room. The iteration limit of a solver is not among them: MuJoCo
has it too."""


@dataclass(frozen=True, kw_only=True)
class BufferSizes:
    """Buffer sizes of a batch of worlds."""

    contacts: int  # of a world, on average; all worlds share one array
    constraints: int  # of any one world


def probed_sizes(model: mujoco.MjModel) -> BufferSizes:
    """Measure a model's buffer sizes on the CPU under random controls, and add headroom."""
    data = mujoco.MjData(model)
    generator = np.random.default_rng(0)
    # Random controls provoke contacts; unlimited actuators get -1 to 1.
    limited = model.actuator_ctrllimited.astype(bool)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
    high = np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)
    contacts = constraints = 0
    for step in range(_PROBE_STEPS):
        if step % 20 == 0:
            data.ctrl[:] = generator.uniform(low, high)
        mujoco.mj_step(model, data)
        contacts, constraints = max(contacts, data.ncon), max(constraints, data.nefc)
    return BufferSizes(
        contacts=max(32, round(_HEADROOM * contacts)),
        constraints=max(64, round(_HEADROOM * constraints)),
    )


class Room:
    """Live counters of the room that worlds needed, and its limits."""

    def __init__(self, data: mujoco_warp.Data) -> None:
        # Contacts, and candidate pairs of geoms, of all worlds: (1,), (1,).
        self.contacts = (warp.to_torch(data.nacon), warp.to_torch(data.ncollision))
        self.constraints = warp.to_torch(data.nefc)  # (num_envs,)
        self.overflow = warp.to_torch(data.overflow)  # (num_envs,)
        self.most_contacts = data.naconmax  # capacity for contacts, and for candidate pairs
        self.most_constraints = data.njmax  # capacity of each world

    def was_enough(self) -> torch.Tensor:
        """Return a tensor that is True if everything fitted since ``overflow`` was cleared. Shape: (), bool."""
        # Only integration sets the bits of contacts and constraints: a forward pass shows in the counts alone. An
        # overflow early in several steps shows in the bits alone.
        missed = self.overflow & (_TOO_SMALL | _LEFT_OUT)
        too_many = (torch.cat(self.contacts) > self.most_contacts).any()
        too_many = too_many | (self.constraints > self.most_constraints).any()
        return ~(too_many | (missed != 0).any())


def with_more_room(model: mujoco.MjModel, data: mujoco_warp.Data, sizes: BufferSizes) -> mujoco_warp.Data:
    """Return the same worlds with larger buffers; an array whose size does not change is the same object."""
    larger = mujoco_warp.make_data(model, nworld=data.nworld, nconmax=sizes.contacts, njmax=sizes.constraints)
    for field in dataclasses.fields(larger):
        old, new = getattr(data, field.name), getattr(larger, field.name)
        # Shared arrays keep the views of positions and sensors valid.
        if isinstance(old, warp.array) and old.shape == new.shape and old.dtype == new.dtype:
            setattr(larger, field.name, old)
    return larger


# Keep the states before a step, to restore worlds that did not make it or broke down in it.

SENSORS = "sensordata"
WARM_START = "qacc_warmstart"

_LARGEST = 1e10  # MuJoCo's mjMAXVAL: a world with a larger number has broken down


class StepRollback:
    """Keeps the states of all worlds for the length of a step."""

    def __init__(
        self, state: Mapping[str, torch.Tensor], sensordata: torch.Tensor, room: Room, capture: Capture | None
    ) -> None:
        # ``state`` (each (num_envs, ...)) and ``sensordata`` (num_envs, nsensordata) are live. All memory stays in
        # place between steps, so a GPU can run most of this as graphs.
        self._live = {**state, SENSORS: sensordata}
        self._before = {name: torch.empty_like(tensor) for name, tensor in self._live.items()}
        self.room = room  # another one once the buffers have grown, which `forget` has to follow
        # The model's default state, each (1, ...).
        self.at_rest = {name: tensor[:1].clone() for name, tensor in state.items()}
        # Worlds that have broken down since their reset.
        self.diverged = torch.zeros(len(sensordata), dtype=torch.bool, device=sensordata.device)
        self._chosen = torch.zeros_like(self.diverged)

        def put_back_sensors() -> None:
            self._restore({SENSORS: self._before[SENSORS]}, ~self._chosen)
            self._live[WARM_START].copy_(self._before[WARM_START])

        # Keeps the current state of all worlds, before a step or a partial update.
        self.keep = Replayed(
            lambda: [before.copy_(self._live[name]) for name, before in self._before.items()],
            capture,
            name="keeping worlds",
        )
        # A tensor that is True if everything fitted in the present room.
        self.had_room = Replayed(lambda: self.room.was_enough(), capture, name="whether worlds had room")  # noqa: PLW0108
        self._settle = Replayed(partial(self._put_back, may_fail=False), capture, name="putting worlds back")
        self._settle_if_room = Replayed(
            partial(self._put_back, may_fail=True), capture, name="putting worlds back that had no room"
        )
        self._release = Replayed(put_back_sensors, capture, name="putting sensors back")

    def put_back(self, names: Iterable[str] | None = None) -> None:
        """Restore the named parts of all worlds' states, by default all parts and the sensors."""
        for name in self._before if names is None else names:
            self._live[name].copy_(self._before[name])

    def settle(self, moved: torch.Tensor, *, may_fail: bool = False) -> torch.Tensor:
        """Restore worlds outside ``moved`` (num_envs,), bool, put those that broke down to rest, and return ``moved``.

        With ``may_fail`` all worlds are restored if the step overflowed, and the returned mask is then empty.
        """
        self._chosen.copy_(moved)
        if may_fail:
            return self._settle_if_room().clone()
        self._settle()
        return moved

    def release(self, env_ids: torch.Tensor) -> None:
        """Restore the sensors of worlds not in ``env_ids`` (n,), int64, and the warm starts of all."""
        self._chosen.zero_()
        self._chosen[env_ids] = True
        self._release()

    def forget(self) -> None:
        """Release the captured graphs."""
        for each in (self.keep, self.had_room, self._settle, self._settle_if_room, self._release):
            each.forget()

    def _put_back(self, *, may_fail: bool) -> torch.Tensor:
        made = self._chosen & self.room.was_enough() if may_fail else self._chosen
        self._restore(self._before, ~made)
        numbers = torch.cat([self._live[name] for name in ("qpos", "qvel", WARM_START, "act")], dim=1)
        broken = made & ~(numbers.abs() < _LARGEST).all(dim=1)
        self.diverged |= broken
        self._restore({name: value.expand_as(self._live[name]) for name, value in self.at_rest.items()}, broken)
        return made

    def _restore(self, kept: Mapping[str, torch.Tensor], worlds: torch.Tensor) -> None:
        for name, values in kept.items():
            if values.numel():
                mask = worlds.reshape(-1, *(1 for _ in values.shape[1:]))
                self._live[name].copy_(torch.where(mask, values, self._live[name]))


# GPU physics: MuJoCo-Warp, with all worlds resident on one device. On the CPU it serves for comparison with MuJoCo.

_LOG = logging.getLogger(__name__)

_STATE = ("time", "qpos", "qvel", "act", WARM_START, "ctrl", "mocap_pos", "mocap_quat")
"""The fields that decide a world's future."""
_DERIVED = ("xpos", "xquat", "site_xpos", "sensordata")
_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class WarpBackend(Backend):
    """Worlds of a model on one device, in single precision."""

    renders = True
    most_growths = 12  # of the buffers for one step

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        num_envs: int,
        device: torch.device,
        deterministic: bool = False,
        sizes: BufferSizes | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        # Agreement with `MujocoBackend` is limited by single precision and the order of operations; see the parity
        # tests. A world that breaks down goes back to the model's default state, so that it cannot affect others.
        # ``deterministic`` turns MuJoCo-Warp's own determinism on: it fixes the order of sums, but in MuJoCo-Warp 4 not
        # that of contacts and constraints on a GPU.
        self.model = model
        self.num_envs = num_envs
        self.device = device
        # On a GPU the order of contacts is a race in MuJoCo-Warp 4, with any option.
        self.reproducible = device.type == "cpu"
        self.physics_dt = float(model.opt.timestep)
        self.names = backend.model_names(model)
        self._has_early_sensors = bool((model.sensor_needstage < int(mujoco.mjtStage.mjSTAGE_ACC)).any())
        self.sizes = sizes or probed_sizes(model)
        self.launcher = launcher or Launcher(device)
        with self.launcher.compiling():
            try:
                self._model = mujoco_warp.put_model(model)
            except NotImplementedError as error:
                reason = f"MuJoCo-Warp cannot simulate this scene: {error}; use backend 'mujoco'"
                raise EnvironmentBuildError(reason) from error
            # This backend handles overflows, so the kernels do not print them.
            self._model.opt.warn_overflow = 0
            if deterministic:
                self._model.opt.deterministic = int(mujoco_warp.DeterminismType.ALL)
            self._data = mujoco_warp.make_data(
                model, nworld=num_envs, nconmax=self.sizes.contacts, njmax=self.sizes.constraints
            )
        self._changed: set[str] = set()  # fields of the model of which worlds have their own values
        self._varied: tuple[str, ...] = ()  # fields that were changed in some world, or that follow from such a field
        self._state = {name: warp.to_torch(getattr(self._data, name)) for name in _STATE}
        self.qpos, self.qvel, self.ctrl = (self._state[name] for name in ("qpos", "qvel", "ctrl"))
        derived = (warp.to_torch(getattr(self._data, name)) for name in _DERIVED)
        self.xpos, self.xquat, self.site_xpos, self.sensordata = derived
        self._room = Room(self._data)
        self.capture = self.launcher.capture
        self._rollback = StepRollback(self._state, self.sensordata, self._room, self.capture)
        self._at_rest = {name: value.cpu() for name, value in self._rollback.at_rest.items()}
        # By body and site: translation and rotation (2, num_envs, 3, nv), float32; points in the world frame [m]
        # (num_envs, 3), float32; Warp's arrays of both and of the body's index. At fixed addresses for graphs.
        self._jacobians: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor, tuple[warp.array, ...]]] = {}
        self.diverged = self._rollback.diverged
        # The first call compiles the kernels.
        self._substeps(1)
        for name, value in self._rollback.at_rest.items():
            self._state[name].copy_(value)
        self._forward()
        self._scratch = mujoco.MjData(model)
        self._shown_model: mujoco.MjModel | None = None

    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Reset the given worlds to their start states; see `Backend.reset`."""
        env_ids = env_ids.to(self.device)
        # What a start state does not name is as at rest. The worlds' fields go to the device together.
        fields = {name: rest.repeat(len(starts), *(1,) * (rest.ndim - 1)) for name, rest in self._at_rest.items()}
        host = {name: values.numpy() for name, values in fields.items()}
        backend.write_starts(starts, self.names, host, np.arange(len(starts)))
        for name, values in zip(fields, on_device(list(fields.values()), self.device), strict=True):
            self._state[name][env_ids] = values
        self.diverged[env_ids] = False
        # All that follows from the state is computed anew; the other worlds keep their sensors and warm starts.
        self._rollback.keep()
        self._run_with_room(self._forward, (WARM_START,))
        self._rollback.release(env_ids)

    def step(self, moved: torch.Tensor, num_substeps: int, *, may_fail: bool = False) -> torch.Tensor:
        """Advance worlds; one that breaks down is marked in ``diverged``; see `Backend.step`."""
        self._rollback.keep()
        if may_fail:
            self._room.overflow.zero_()
            self._substeps(num_substeps)
        else:
            self._run_with_room(partial(self._substeps, num_substeps))
        made = self._rollback.settle(moved, may_fail=may_fail)
        self._derive()
        return made

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Set model values of single worlds; see `Backend.vary`."""
        # Widened fields are new arrays, which captured graphs do not know.
        new = backend.changed_fields(changes) - self._changed
        if fixed := sorted(new - _SHARED - _PER_WORLD):
            reason = f"cannot give a world its own '{fixed[0]}'"
            raise EnvironmentBuildError(f"MuJoCo-Warp {reason}; use the backend 'mujoco'")
        if new:
            self.launcher.forget_graphs()
            with self.launcher.work():
                self._changed |= new
                self._varied = tuple(sorted(self._changed | _PER_WORLD.intersection(_FOLLOWING)))
                for name in _PER_WORLD.intersection(self._varied):
                    array = attrgetter(name)(self._model)
                    if array.shape[0] != self.num_envs:
                        per_world = np.repeat(array.numpy()[:1], self.num_envs, axis=0)
                        _set_field(self._model, name, warp.array(per_world, dtype=array.dtype, device=array.device))
                # Without a fluid in the compiled model, MuJoCo-Warp would not look for one.
                self._model.has_fluid |= bool(new & {"opt.wind", "opt.density", "opt.viscosity"})
        self._set_changed(env_ids.to(self.device), changes)
        if not self._varied:
            return

        def derive() -> None:
            mujoco_warp.set_const(self._model, self._data)
            mujoco_warp.kinematics(self._model, self._data)

        self.launcher.replay("constants", derive)
        # MuJoCo-Warp sets the geoms of bodies that never move only at creation, so they move to their poses here.
        static = torch.from_numpy(np.flatnonzero(self.model.body_weldid[self.model.geom_bodyid] == 0)).to(self.device)
        bodies = torch.from_numpy(self.model.geom_bodyid).to(self.device)[static].long()
        positions = warp.to_torch(self._model.geom_pos)[:, static].expand(self.num_envs, -1, -1)
        warp.to_torch(self._data.geom_xpos)[:, static] = self.xpos[:, bodies] + rotate(self.xquat[:, bodies], positions)

    def _set_changed(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Set the worlds' own values of changed fields, one list per world; derived fields are not updated."""
        # Values of an earlier call are dropped: each field starts from the compiled model's.
        wanted = {
            name: np.repeat(np.asarray(attrgetter(name)(self.model))[None], len(changes), axis=0)
            for name in self._changed
        }
        backend.write_changes(changes, wanted, np.arange(len(changes)))
        # A world without any variation has no say in a shared field.
        asking = np.array([bool(own) for own in changes])
        for name in wanted.keys() & _SHARED:
            values, per_world = warp.to_torch(getattr(self._model, name)), wanted.pop(name)[asking]
            if len(per_world) == 0:
                continue
            if (per_world != per_world[0]).any():
                reason = f"has one '{name}' for all worlds, and they are to differ"
                raise EnvironmentBuildError(f"MuJoCo-Warp {reason}; use the backend 'mujoco'")
            values.copy_(torch.from_numpy(per_world[0].reshape(values.shape)).to(values.device, values.dtype))
        put, own = [warp.to_torch(attrgetter(name)(self._model)) for name in wanted], []
        for per_world, values in zip(wanted.values(), put, strict=True):
            own.append(torch.from_numpy(per_world.reshape(len(changes), *values.shape[1:])).to(values.dtype))
        for values, there in zip(put, on_device(own, env_ids.device), strict=True):
            values[env_ids] = there

    def model_field(self, name: str) -> np.ndarray:
        """Return a copy of a model field in every world. Shape: (num_envs, ...)."""
        own = shared = np.asarray(attrgetter(name)(self.model))
        if name in self._varied:
            own = attrgetter(name)(self._model).numpy().reshape(-1, *shared.shape).astype(shared.dtype)
        return np.array(np.broadcast_to(own, (self.num_envs, *shared.shape)))

    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return a site's Jacobian. Shape: (num_envs, 6, nv)."""
        if (body, site) not in self._jacobians:
            zeros = partial(torch.zeros, dtype=torch.float32, device=self.device)
            bodies = torch.full((self.num_envs,), self.names.bodies[body], dtype=torch.int32, device=self.device)
            found, points = zeros((2, self.num_envs, 3, self.model.nv)), zeros((self.num_envs, 3))
            places = warp.from_torch(points, dtype=warp.vec3)
            arrays = warp.from_torch(found[0]), warp.from_torch(found[1]), places, warp.from_torch(bodies)
            self._jacobians[body, site] = found, points, arrays
        found, points, arrays = self._jacobians[body, site]
        points.copy_(self.site_xpos[:, self.names.sites[site]])
        kind = f"jacobian of {site} on {body}"
        self.launcher.replay(kind, lambda: mujoco_warp.jac(self._model, self._data, *arrays))
        return torch.cat((found[0], found[1]), dim=1)

    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return copies of the worlds' mjSTATE_INTEGRATION. Shape: (len(env_ids), state_size), float64."""
        states = np.empty((len(env_ids), mujoco.mj_stateSize(self.model, _INTEGRATION)))
        for state, data in zip(states, self._on_host(env_ids), strict=True):
            mujoco.mj_getState(self.model, data, state, _INTEGRATION)
        return states

    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Set a world to an mjSTATE_INTEGRATION. Shape: (state_size,)."""
        mujoco.mj_setState(self.model, self._scratch, state, _INTEGRATION)
        for name, tensor in self._state.items():
            value = np.asarray(getattr(self._scratch, name), dtype=np.float32)
            tensor[env_id] = torch.from_numpy(value.reshape(tensor.shape[1:])).to(self.device)
        # As after a reset.
        self._rollback.keep()
        self._run_with_room(self._forward, (WARM_START,))
        self._rollback.release(torch.tensor([env_id], device=self.device))

    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return a copy of all worlds' states and all that can be read of them; see `Backend.snapshot`."""
        kept = {name: tensor.clone() for name, tensor in self._state.items()}
        derived = {name: getattr(self, name).clone() for name in _DERIVED}
        return {**kept, **derived, "diverged": self.diverged.clone()}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Restore all worlds; see `Backend.restore_snapshot`."""
        for name, tensor in self._state.items():
            tensor.copy_(snapshot[name])
        self.diverged.copy_(snapshot["diverged"])
        self._derive()
        for name in _DERIVED:
            getattr(self, name).copy_(snapshot[name])

    def engine(self) -> str:
        """Return MuJoCo-Warp's version and device."""
        return f"mujoco_warp {mujoco_warp.__version__} on {self.device}"

    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and state with current poses of all visible things; valid until the next call."""
        model = self.model
        if self._varied:
            self._shown_model = model = self._shown_model or copy.copy(self.model)
            for name in self._varied:
                _set_field(model, name, self.model_field(name)[env_id])
        data = next(self._on_host([env_id]))
        # The poses of geoms, cameras and lights.
        for update in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight):
            update(model, data)
        return model, data

    def close(self) -> None:
        """Release the memory of graphs; see `Backend.close`."""
        self.launcher.forget_graphs()
        self._rollback.forget()

    @property
    def warp_worlds(self) -> tuple[mujoco_warp.Model, mujoco_warp.Data]:
        """The worlds as MuJoCo-Warp objects, valid until the next call of `step` or `vary`."""
        return self._model, self._data

    def _run_with_room(self, run: Callable[[], None], undone: Sequence[str] | None = None) -> None:
        """Run work on all worlds, and repeat it with larger buffers until everything fits."""
        for _ in range(self.most_growths):
            self._room.overflow.zero_()
            run()
            if self._rollback.had_room():  # waits for the GPU
                return
            # `Data.overflow` of all worlds together; torch has no bitwise OR of all numbers.
            room, masks = self._room, self._room.overflow
            bits = 1 << torch.arange(16, dtype=masks.dtype, device=masks.device)
            any_bits = (((masks[:, None] & bits) != 0).any(dim=0) * bits).sum()
            # The room that was needed, available or not: contacts of all worlds, and the most constraints of a world.
            # One read for all three: each read from a GPU takes as long as a small network.
            used = torch.stack((any_bits, torch.cat(room.contacts).max(), room.constraints.max())).tolist()
            missed, contacts, constraints = map(int, used)
            if missed & _LEFT_OUT:
                names = repr(_BITS(missed & _LEFT_OUT))
                reason = f"left out contacts ({names}), for which it cannot make room"
                raise EnvironmentBuildError(f"MuJoCo-Warp {reason}; use the backend 'mujoco'")
            before = self.sizes
            self.sizes = now = BufferSizes(
                contacts=round(_GROWTH * max(before.contacts, contacts / self.num_envs)),
                constraints=round(_GROWTH * max(before.constraints, constraints)),
            )
            grown = f"from {before.contacts} to {now.contacts}, for constraints from {before.constraints}"
            _LOG.info("room for contacts grows %s to %d to a world", grown, now.constraints)
            self.launcher.forget_graphs()
            with self.launcher.compiling():
                self._data = with_more_room(self.model, self._data, now)
            self._room = self._rollback.room = Room(self._data)
            self._rollback.forget()
            # The parts in ``undone`` (None: all) are restored before the repetition.
            self._rollback.put_back(undone)
        raise EnvironmentBuildError(
            f"contacts and constraints of this scene do not fit, not even {self.sizes.contacts} contacts and "
            f"{self.sizes.constraints} constraints to a world; use the backend 'mujoco', or fewer environments"
        )

    def _substeps(self, number: int) -> None:
        """Make ``number`` physics steps in all worlds."""

        def launch() -> None:
            for _ in range(number):
                mujoco_warp.step(self._model, self._data)

        self.launcher.replay(f"{number} steps", launch)

    def _forward(self) -> None:
        """Compute all that follows from the state of all worlds."""
        self.launcher.replay("forward", lambda: mujoco_warp.forward(self._model, self._data))

    def _derive(self) -> None:
        """Update poses to the state; contact sensors keep the values of the last physics step."""

        def launch() -> None:
            mujoco_warp.fwd_kinematics(self._model, self._data)
            if self._has_early_sensors:
                mujoco_warp.sensor_pos(self._model, self._data)
                mujoco_warp.com_vel(self._model, self._data)
                mujoco_warp.sensor_vel(self._model, self._data)

        self.launcher.replay("derive", launch)

    def _on_host(self, env_ids: Sequence[int]) -> Iterator[mujoco.MjData]:
        """Yield the state of each world, read in one copy; valid until the next is yielded."""
        worlds = torch.tensor(list(env_ids), dtype=torch.int64).to(self.device, non_blocking=True)
        states = on_cpu([tensor[worlds] for tensor in self._state.values()])
        data = self._scratch
        for number in range(len(env_ids)):
            for name, values in zip(self._state, states, strict=True):
                value = values[number].numpy()
                if name == "time":
                    data.time = float(value)
                else:
                    getattr(data, name)[:] = value
            yield data
