"""CPU physics with MuJoCo and its window, and the choice between it and MuJoCo-Warp for a batch of worlds."""

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import mujoco
import numpy as np
import torch
from mujoco import batch as mujoco_batch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import (
    Backend,
    ModelChange,
    StartState,
    changed_fields,
    model_names,
    write_changes,
    write_starts,
)
from isaaclab_arena.sim.scene import no_output_of_mujoco

_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)
_VELOCITY_STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)


class MujocoBackend(Backend):
    """Worlds of a model on CPU threads, bit-equal to a loop over `mujoco.MjData`."""

    reproducible = True

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, num_threads: int = 1) -> None:
        # Each breakdown would be a line in the live display; `diverged` reports it already.
        no_output_of_mujoco()

        self.model = model
        self.batch = mujoco_batch.Batch(model, num_envs, num_threads)
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.physics_dt = float(model.opt.timestep)
        self.names = model_names(model)
        self.qpos, self.qvel, self.ctrl = self.live_field("qpos"), self.live_field("qvel"), self.live_field("ctrl")
        self.xpos, self.xquat = self.live_field("xpos"), self.live_field("xquat")
        self.site_xpos, self.sensordata = self.live_field("site_xpos"), self.live_field("sensordata")
        self._shown: mujoco.MjData | None = None
        self._shown_model: mujoco.MjModel | None = None
        self._varied: dict[str, np.ndarray] = {}
        self._diverged = np.zeros(num_envs, bool)
        self.diverged = torch.from_numpy(self._diverged)
        self._derived = {name: getattr(self, name) for name in ("xpos", "xquat", "site_xpos", "sensordata")}
        self._warm_start = self.batch.bind("qacc_warmstart")
        self._start_fields = {name: self.batch.bind(name) for name in ("qpos", "qvel", "ctrl", "mocap_pos")}
        self._qpos, self._qvel = self._start_fields["qpos"], self._start_fields["qvel"]
        # MuJoCo numbers the warnings of bad positions, velocities, accelerations and controls in this order.
        first, last = int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL)
        self._num_warnings = self.batch.warning[:, first : last + 1, 1]
        self._warnings_at_reset = self._num_warnings.copy()
        self._bytes_at_reset = self._warnings_at_reset.tobytes()

    def reset(self, env_ids: torch.Tensor, starts: Sequence[StartState]) -> None:
        """Reset the given worlds to their start states; see `Backend.reset`."""
        ids = env_ids.numpy()
        self.batch.reset(ids, stage=_NO_STAGE)
        write_starts(starts, self.names, self._start_fields, ids)
        self._diverged[ids] = False
        self._warnings_at_reset[ids] = self._num_warnings[ids]
        self._bytes_at_reset = self._warnings_at_reset.tobytes()
        self._forward(ids)

    def step(self, moved: torch.Tensor, num_substeps: int, *, may_fail: bool = False) -> torch.Tensor:
        """Advance worlds; one that MuJoCo gives up on is marked in ``diverged``; see `Backend.step`."""
        del may_fail
        ids = np.flatnonzero(moved.numpy())
        if ids.size == 0:
            return moved
        try:
            self.batch.step(None if ids.size == self.num_envs else ids, num_substeps, _VELOCITY_STAGE)
        except mujoco_batch.SimulationError as error:
            self._diverged[error.ids] = True
        # A resting world has the same numbers as at the last check, so one check of all worlds is enough. A sum is
        # finite if every number is; finite numbers overflow only far beyond MuJoCo's limits.
        total = self._qpos.sum() + self._qvel.sum()
        if not math.isfinite(total) or self._num_warnings.tobytes() != self._bytes_at_reset:
            finite = np.isfinite(self._qpos.sum(axis=1) + self._qvel.sum(axis=1))
            self._diverged |= ~finite | (self._num_warnings != self._warnings_at_reset).any(axis=1)
        return moved

    def vary(self, env_ids: torch.Tensor, changes: Sequence[Sequence[ModelChange]]) -> None:
        """Set model values of single worlds; see `Backend.vary`."""
        ids = env_ids.numpy()
        for name in sorted(changed_fields(changes) - self._varied.keys()):
            try:
                self._varied[name] = self.batch.expand(name)
            except ValueError as error:
                reason = f"a world cannot have its own '{name}': {error}; choose one of mujoco.batch.MODEL_FIELDS"
                raise EnvironmentBuildError(reason) from error
        for name, values in self._varied.items():
            values[ids] = attrgetter(name)(self.model)
        write_changes(changes, self._varied, ids)
        if self._varied:
            self.batch.set_const(ids)

    def model_field(self, name: str) -> np.ndarray:
        """Return a copy of a model field in every world. Shape: (num_envs, ...)."""
        own = self.batch.expanded(name)
        shared = np.asarray(attrgetter(name)(self.model))
        return np.array(np.broadcast_to(shared, (self.num_envs, *shared.shape)) if own is None else own)

    def jacobian(self, body: str, site: str) -> torch.Tensor:
        """Return a site's Jacobian. Shape: (num_envs, 6, nv)."""
        points = self.site_xpos[:, self.names.sites[site]].numpy()
        translation, rotation = self.batch.jac(self.names.bodies[body], points)
        return torch.from_numpy(np.concatenate((translation, rotation), axis=1))

    def live_field(self, name: str) -> torch.Tensor:
        """Return a view of a field of `mujoco.MjData` in every world, as of the last call. Shape: (num_envs, ...)."""
        with warnings.catch_warnings():
            # Derived fields are read-only arrays. Torch has no read-only tensors; no code writes to these.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(self.batch.bind(name))

    def integration_states(self, env_ids: Sequence[int]) -> np.ndarray:
        """Return copies of the worlds' mjSTATE_INTEGRATION. Shape: (len(env_ids), state_size), float64."""
        return self.batch.state[list(env_ids)]

    def set_integration_state(self, env_id: int, state: np.ndarray) -> None:
        """Set a world to an mjSTATE_INTEGRATION. Shape: (state_size,)."""
        self.batch.state[env_id] = state
        self._forward(np.array([env_id]))

    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Return a copy of all worlds' states and all that can be read of them; see `Backend.snapshot`."""
        derived = {name: tensor.clone() for name, tensor in self._derived.items()}
        return {"state": torch.from_numpy(self.batch.state.copy()), "diverged": self.diverged.clone(), **derived}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Restore all worlds; see `Backend.restore_snapshot`."""
        self.batch.state[:] = snapshot["state"].numpy()
        self.diverged.copy_(snapshot["diverged"])
        self._forward(np.flatnonzero(~self._diverged))
        self._warnings_at_reset[:] = self._num_warnings
        self._bytes_at_reset = self._warnings_at_reset.tobytes()
        # A forward pass updates the contact sensors, which have to show the state after the last step.
        for name, tensor in self._derived.items():
            tensor.copy_(snapshot[name])

    def engine(self) -> str:
        """Return MuJoCo's version."""
        return f"mujoco {mujoco.__version__}"

    def visible_world(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """Return a world's model and state with current poses of all visible things; valid until the next call."""
        if self._shown is None:
            self._shown = mujoco.MjData(self.model)
        data = self.batch.get_data(env_id, self._shown)
        if self._varied:
            self._shown_model = self.batch.get_model(env_id, self._shown_model)
        model = self._shown_model or self.model
        # The poses of geoms, cameras and lights.
        for update in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_camlight):
            update(model, data)
        return model, data

    def _forward(self, ids: np.ndarray) -> None:
        # A forward pass overwrites the warm start, and a restored world needs the stored one.
        kept = self._warm_start[ids].copy()
        try:
            self.batch.forward(ids)
        except mujoco_batch.SimulationError as error:
            self._diverged[error.ids] = True
        self._warm_start[ids] = kept


class Window(ExitStack):
    """Shows a batch's first world in MuJoCo's viewer, at most in real time; RuntimeError if no window can be opened."""

    def __init__(self, backend: MujocoBackend) -> None:
        super().__init__()
        import mujoco.viewer  # noqa: PLC0415  fails on machines without a window system

        self._backend, self._model, self._data = backend, backend.model, mujoco.MjData(backend.model)
        self._next_s = time.perf_counter()
        self.viewer = mujoco.viewer.launch_passive(self._model, self._data, show_left_ui=False, show_right_ui=False)
        self.callback(self.viewer.close)

    def show(self, wait_s: float) -> None:
        """Show the world's current state, ``wait_s`` [s] after the previous picture at the earliest."""
        time.sleep(max(0.0, self._next_s - time.perf_counter()))
        self._next_s = max(self._next_s, time.perf_counter()) + wait_s
        with self.viewer.lock():
            self._backend.batch.get_data(0, self._data)
            mujoco.mj_forward(self._model, self._data)
        self.viewer.sync()


_LOG = logging.getLogger(__name__)

BackendChoice: TypeAlias = Literal["auto", "mujoco", "warp"]

_LAUNCH_S = 1e-3
"""The least time of a physics step on a GPU for any number of worlds, due to its chain of small kernels [s]."""
_PROBE_STEPS = 20


def warp_worlds(model: mujoco.MjModel, *, num_envs: int, device: torch.device) -> Backend:
    """Return MuJoCo-Warp worlds on a device; EnvironmentBuildError if it cannot simulate the model."""
    from isaaclab_arena.sim.warp_backend import WarpBackend  # noqa: PLC0415  Warp loads for seconds, rarely needed

    deterministic = torch.are_deterministic_algorithms_enabled()
    return WarpBackend(model, num_envs=num_envs, device=device, deterministic=deterministic)


def physics_step_s(backend: Backend, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of a physics step of all worlds [s], and reset them to the model's default state."""
    all_worlds = torch.arange(backend.num_envs, device=backend.device)
    everyone = torch.ones_like(all_worlds, dtype=torch.bool)

    ends_s = []
    # The first call may compile kernels, and the second captures them as a graph, which all others replay.
    for _ in range(3):
        backend.step(everyone, _PROBE_STEPS)
        # Reading a number waits for the computation.
        backend.qpos.sum().item()
        ends_s.append(clock())
    backend.reset(all_worlds, [StartState()] * backend.num_envs)
    return (ends_s[2] - ends_s[1]) / _PROBE_STEPS


def make_backend(
    model: mujoco.MjModel,
    *,
    choice: BackendChoice,
    num_envs: int,
    device: torch.device,
    num_threads: int,
    on_gpu: Callable[..., Backend] = warp_worlds,
    step_s: Callable[[Backend], float] = physics_step_s,
) -> Backend:
    """Return worlds on the chosen backend, or the faster one for ``auto``; EnvironmentBuildError if Warp cannot."""
    # If several callers build the same worlds, one of them calls `faster_backend` for all.
    if choice == "warp":
        return on_gpu(model, num_envs=num_envs, device=device)
    on_cpu = MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
    if choice == "mujoco" or device.type != "cuda":
        return on_cpu

    # A GPU cannot be faster than its own launches, so worlds that MuJoCo steps as fast are not measured there.
    cpu_s = step_s(on_cpu)
    if cpu_s < _LAUNCH_S:
        _LOG.info("backend mujoco: a step of %d worlds takes %.2g ms on the CPU", num_envs, 1e3 * cpu_s)
        return on_cpu
    try:
        worlds = on_gpu(model, num_envs=num_envs, device=device)
    except EnvironmentBuildError as error:
        _LOG.info("backend mujoco: %s", error)
        return on_cpu
    gpu_s = step_s(worlds)
    name, times = "warp" if gpu_s < cpu_s else "mujoco", (1e3 * cpu_s, 1e3 * gpu_s)
    _LOG.info("backend %s: a step of %d worlds takes %.2g ms on the CPU, %.2g ms on %s", name, num_envs, *times, device)
    return worlds if name == "warp" else on_cpu


def faster_backend(model: mujoco.MjModel, *, device: torch.device, **options: Any) -> Literal["mujoco", "warp"]:
    """Return the name of the backend that `make_backend` chooses for ``auto``; nothing is built without a GPU."""
    if device.type != "cuda":
        return "mujoco"
    chosen = make_backend(model, choice="auto", device=device, **options)
    return "mujoco" if isinstance(chosen, MujocoBackend) else "warp"
