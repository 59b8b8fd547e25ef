"""GPU physics: MuJoCo-Warp, with all worlds resident on one device; on the CPU it serves to be compared with MuJoCo."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.math.rotation import rotate
from isaaclab_arena.sim.model_changes import ModelChange
from isaaclab_arena.sim.model_names import model_names, model_sha256
from isaaclab_arena.sim.warp.buffers import (
    BufferSizes,
    Room,
    RoomUsed,
    make_data,
    probed_sizes,
    refuse_what_cannot_fit,
    sizes_for,
    with_more_room,
)
from isaaclab_arena.sim.warp.launching import Launcher
from isaaclab_arena.sim.warp.model import VariedModel
from isaaclab_arena.sim.warp.starts import StartSender
from isaaclab_arena.sim.warp.undoing import WARM_START, Undoing

_LOG = logging.getLogger(__name__)

_STATE = ("time", "qpos", "qvel", "act", WARM_START, "ctrl", "mocap_pos", "mocap_quat")
"""What a world's future depends on."""
_DERIVED = ("xpos", "xquat", "site_xpos", "sensordata")
_MOST_GROWTHS = 12
_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class WarpBackend(Backend):
    """Worlds of a model on one device, in single precision.

    They agree with `MujocoBackend` to what single precision and another order of operations leave; see the tests of
    parity. A world that breaks down is put back to the model's default state, so that it cannot trouble others.

    Args:
        model: The compiled model.
        num_envs: Number of worlds.
        device: ``cuda:<index>``, or ``cpu``.
        deterministic: Whether MuJoCo-Warp's own determinism is on, which fixes the order of sums but not, in
            MuJoCo-Warp 4, that of contacts and constraints on a GPU.
        sizes: Room for contacts and constraints to begin with; measured by default.
        launcher: Launches what is to be done; by default one of its own on the device.

    Raises:
        EnvironmentBuildError: If MuJoCo-Warp cannot simulate the model.
    """

    renders = True

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
        self.model = model
        self.num_envs = num_envs
        self.device = device
        # On a GPU the order of contacts is a race in MuJoCo-Warp 4, whatever it is asked for.
        self.reproducible = device.type == "cpu"
        self.physics_dt = float(model.opt.timestep)
        self.names = model_names(model)
        self._has_early_sensors = bool((model.sensor_needstage < int(mujoco.mjtStage.mjSTAGE_ACC)).any())
        self.sizes = sizes or probed_sizes(model)
        self.launcher = launcher or Launcher(device)
        with self.launcher.compiling():
            self._model = _put_model(model, deterministic=deterministic)
            self._data = make_data(model, num_envs, self.sizes)
        self._varied = VariedModel(model, self._model, num_envs)
        self.qpos, self.qvel, self.ctrl = (self._view(name) for name in ("qpos", "qvel", "ctrl"))
        self.xpos, self.xquat = self._view("xpos"), self._view("xquat")
        self.site_xpos, self.sensordata = self._view("site_xpos"), self._view("sensordata")
        self._room = Room.of(self._data)
        self._state = {name: self._view(name) for name in _STATE}
        self.capture = self.launcher.capture
        self._undoing = Undoing(self._state, self.sensordata, self._room, self.capture)
        self._starts = StartSender(self.names, self._undoing.at_rest)
        self._jacobians: dict[tuple[str, str], _Jacobian] = {}
        self.diverged = self._undoing.diverged
        # The first call compiles what it needs.
        self._substeps(1)
        self._undoing.rest()
        self._forward()
        self._scratch = mujoco.MjData(model)
        self._shown_model: mujoco.MjModel | None = None

    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Put the named worlds into their start states; see `Backend.reset`."""
        env_ids = env_ids.to(self.device)
        for name, values in self._starts.send(starts).items():
            self._state[name][env_ids] = values
        self.diverged[env_ids] = False
        self._renew(env_ids)

    def step(self, moved: torch.Tensor, num_substeps: int) -> None:
        """Advance some worlds; one that breaks down is marked in ``diverged``; see `Backend.step`."""
        self._undoing.keep()
        self._run_with_room(partial(self._substeps, num_substeps))
        self._undoing.settle(moved)
        self._derive()

    def try_step(self, moved: torch.Tensor, num_substeps: int) -> torch.Tensor:
        """Advance some worlds, or none where contacts do not fit; see `Backend.try_step`."""
        self._undoing.keep()
        self._room.overflow.zero_()
        self._substeps(num_substeps)
        made = self._undoing.settle_if_room(moved)
        self._derive()
        return made

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Give the named worlds values of the model of their own; see `Backend.vary`."""
        new = self._varied.shared_among({change.field for own in changes for change in own})
        if new:
            self.launcher.forget_graphs()
            with self.launcher.work():
                self._varied.widen(new)
        self._varied.vary(env_ids.to(self.device), changes)
        if self._varied.fields:
            self.launcher.replay("constants", self._derive_constants)
            self._place_static_geoms()

    def model_field(self, name: str) -> np.ndarray:
        """Return a field of the model in every world, copied. Shape: (num_envs, ...)."""
        return self._varied.field(name)

    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return a site's Jacobian. Shape: (num_envs, 6, nv)."""
        if (body, site) not in self._jacobians:
            self._jacobians[body, site] = _Jacobian.of(
                self.num_envs, self.model.nv, self.names.bodies[body], self.device
            )
        asked = self._jacobians[body, site]
        asked.points.copy_(self.site_xpos[:, self.names.sites[site]])
        self.launcher.replay(f"jacobian of {site} on {body}", lambda: asked.launch(self._model, self._data))
        return torch.cat((asked.found[0], asked.found[1]), dim=1)

    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return the mjSTATE_INTEGRATION of some worlds, copied. Shape: (len(env_ids), state_size), float64."""
        states = np.empty((len(env_ids), mujoco.mj_stateSize(self.model, _INTEGRATION)))
        for state, data in zip(states, self._on_host(env_ids), strict=True):
            mujoco.mj_getState(self.model, data, state, _INTEGRATION)
        return states

    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Continue a world from an mjSTATE_INTEGRATION. Shape: (state_size,)."""
        mujoco.mj_setState(self.model, self._scratch, state, _INTEGRATION)
        for name, tensor in self._state.items():
            value = np.asarray(getattr(self._scratch, name), dtype=np.float32)
            tensor[env_id] = torch.from_numpy(value.reshape(tensor.shape[1:])).to(self.device)
        self._renew(torch.tensor([env_id], device=self.device))

    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return all worlds' states and all that can be read of them; see `Backend.snapshot`."""
        kept = {name: tensor.clone() for name, tensor in self._state.items()}
        derived = {name: getattr(self, name).clone() for name in _DERIVED}
        return {**kept, **derived, "diverged": self.diverged.clone()}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Put all worlds where they were; see `Backend.restore_snapshot`."""
        for name, tensor in self._state.items():
            tensor.copy_(snapshot[name])
        self.diverged.copy_(snapshot["diverged"])
        self._derive()
        for name in _DERIVED:
            getattr(self, name).copy_(snapshot[name])

    def model_digest(self) -> str:
        """Return the SHA-256 of the compiled model."""
        return model_sha256(self.model)

    def engine(self) -> str:
        """Return MuJoCo-Warp's version and device."""
        return f"mujoco_warp {mujoco_warp.__version__} on {self.device}"

    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and its state with current poses of everything visible; good until the next call."""
        model = self.model
        if self._varied.fields:
            self._shown_model = model = self._shown_model or copy.copy(self.model)
            for name in self._varied.fields:
                getattr(model, name)[:] = self.model_field(name)[env_id]
        data = next(self._on_host([env_id]))
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        return model, data

    def close(self) -> None:
        """Give back the memory of graphs; see `Backend.close`."""
        self.launcher.forget_graphs()
        self._undoing.forget()

    @property
    def warp_worlds(self) -> tuple[mujoco_warp.Model, mujoco_warp.Data]:
        """The worlds as MuJoCo-Warp has them, good until the next call of `step` or `vary`."""
        return self._model, self._data

    def _run_with_room(self, run: Callable[[], None], undone: Sequence[str] | None = None) -> None:
        """Do something with all worlds, and again with more room where something did not fit.

        Args:
            run: What is done.
            undone: What of the states that were kept is put back before it is done again; by default all.
        """
        for _ in range(_MOST_GROWTHS):
            self._room.overflow.zero_()
            run()
            if self._undoing.had_room():
                return
            used = self._room.used()
            refuse_what_cannot_fit(used)
            self._grow(used)
            self._undoing.put_back(undone)
        raise EnvironmentBuildError(
            f"contacts and constraints of this scene do not fit, not even {self.sizes.contacts} contacts and "
            f"{self.sizes.constraints} constraints to a world; use the backend 'mujoco', or fewer environments"
        )

    def _grow(self, used: RoomUsed) -> None:
        before, self.sizes = self.sizes, sizes_for(used, self.sizes, num_envs=self.num_envs)
        _LOG.info(
            "room for contacts grows from %d to %d, for constraints from %d to %d to a world",
            before.contacts,
            self.sizes.contacts,
            before.constraints,
            self.sizes.constraints,
        )
        self.launcher.forget_graphs()
        with self.launcher.compiling():
            self._data = with_more_room(self.model, self._data, self.sizes)
        self._room = Room.of(self._data)
        self._undoing.move_into(self._room)

    def _substeps(self, number: int) -> None:
        """Make physics steps in all worlds."""

        def launch() -> None:
            for _ in range(number):
                mujoco_warp.step(self._model, self._data)

        self.launcher.replay(f"{number} steps", launch)

    def _forward(self) -> None:
        """Compute all that follows from the state of all worlds."""
        self.launcher.replay("forward", lambda: mujoco_warp.forward(self._model, self._data))

    def _derive_constants(self) -> None:
        """Compute what the model derives from fields that vary."""
        mujoco_warp.set_const(self._model, self._data)
        mujoco_warp.kinematics(self._model, self._data)

    def _derive(self) -> None:
        """Bring poses up to date with the state; contact sensors keep what they said after the last physics step."""

        def launch() -> None:
            mujoco_warp.fwd_kinematics(self._model, self._data)
            if self._has_early_sensors:
                mujoco_warp.sensor_pos(self._model, self._data)
                mujoco_warp.com_vel(self._model, self._data)
                mujoco_warp.sensor_vel(self._model, self._data)

        self.launcher.replay("derive", launch)

    def _renew(self, env_ids: torch.Tensor) -> None:
        """Compute all that follows from the state of some worlds, and leave the others' sensors and warm starts."""
        self._undoing.keep()
        self._run_with_room(self._forward, (WARM_START,))
        self._undoing.release(env_ids)

    def _place_static_geoms(self) -> None:
        """Put geoms of bodies that never move where a variation wants them: MuJoCo-Warp does so once, at the start."""
        static = torch.from_numpy(np.flatnonzero(self.model.body_weldid[self.model.geom_bodyid] == 0)).to(self.device)
        bodies = torch.from_numpy(self.model.geom_bodyid).to(self.device)[static].long()
        positions = warp.to_torch(self._model.geom_pos)[:, static].expand(self.num_envs, -1, -1)
        self._view("geom_xpos")[:, static] = self.xpos[:, bodies] + rotate(self.xquat[:, bodies], positions)

    def _view(self, name: str) -> torch.Tensor:
        return warp.to_torch(getattr(self._data, name))

    def _on_host(self, env_ids: Sequence[int]) -> Iterator[mujoco.MjData]:
        """Yield the state of some worlds, read in one copy; each is good until the next."""
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


@dataclass(frozen=True, kw_only=True)
class _Jacobian:
    """The Jacobians of points on a body in every world, at the same places in memory each time.

    Attributes:
        found: Of translation and of rotation. Shape: (2, num_envs, 3, nv), float32.
        points: Where the points are in the world. Shape: (num_envs, 3), float32.
        bodies: Index of the body. Shape: (num_envs,), int32.
    """

    found: torch.Tensor
    points: torch.Tensor
    bodies: torch.Tensor

    @classmethod
    def of(cls, num_envs: int, num_dofs: int, body: int, device: torch.device) -> "_Jacobian":
        """Return room for them."""
        return cls(
            found=torch.zeros((2, num_envs, 3, num_dofs), dtype=torch.float32, device=device),
            points=torch.zeros((num_envs, 3), dtype=torch.float32, device=device),
            bodies=torch.full((num_envs,), body, dtype=torch.int32, device=device),
        )

    def launch(self, model: mujoco_warp.Model, data: mujoco_warp.Data) -> None:
        """Compute them."""
        translation, rotation = warp.from_torch(self.found[0]), warp.from_torch(self.found[1])
        points = warp.from_torch(self.points, dtype=warp.vec3)
        mujoco_warp.jac(model, data, translation, rotation, points, warp.from_torch(self.bodies))


def _put_model(model: mujoco.MjModel, *, deterministic: bool) -> mujoco_warp.Model:
    try:
        put = mujoco_warp.put_model(model)
    except NotImplementedError as error:
        raise EnvironmentBuildError(f"MuJoCo-Warp cannot simulate this scene: {error}; use backend 'mujoco'") from error
    # What does not fit is looked after here, and not printed by a kernel.
    put.opt.warn_overflow = 0
    if deterministic:
        put.opt.deterministic = int(mujoco_warp.DeterminismType.ALL)
    return put
