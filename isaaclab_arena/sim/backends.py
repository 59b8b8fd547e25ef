"""Choose the physics backend of a batch of worlds: MuJoCo on CPU threads, or MuJoCo-Warp on the device."""

import logging
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

import mujoco
import torch

from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.sim.backend import Backend, StartState
from isaaclab_arena.sim.mujoco_backend import MujocoBackend

_LOG = logging.getLogger(__name__)

BackendChoice: TypeAlias = Literal["auto", "mujoco", "warp"]
SettledBackend: TypeAlias = Literal["mujoco", "warp"]

_LAUNCH_S = 1e-3
"""What a physics step of any number of worlds takes on a GPU at least, by its chain of small kernels [s]."""
_PROBE_STEPS = 20


def warp_worlds(model: mujoco.MjModel, *, num_envs: int, device: torch.device) -> Backend:
    """Return MuJoCo-Warp worlds on a device; EnvironmentBuildError if it cannot simulate the model."""
    from isaaclab_arena.sim.warp.backend import WarpBackend  # noqa: PLC0415  Warp loads for seconds, rarely needed

    return WarpBackend(
        model, num_envs=num_envs, device=device, deterministic=torch.are_deterministic_algorithms_enabled()
    )


def physics_step_s(backend: Backend, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of a physics step of all worlds [s], and reset them to the model's default state."""
    all_worlds = torch.arange(backend.num_envs, device=backend.device)
    everyone = torch.ones_like(all_worlds, dtype=torch.bool)

    def step() -> float:
        backend.step(everyone, _PROBE_STEPS)
        # Reading a number waits for the computation.
        backend.qpos.sum().item()
        return clock()

    # The first call may compile kernels, and the second captures them as a graph, which all others replay.
    step()
    began_s = step()
    taken_s = step() - began_s
    backend.reset(all_worlds, [StartState()] * backend.num_envs)
    return taken_s / _PROBE_STEPS


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
    if choice == "mujoco":
        return MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
    return _faster(model, num_envs=num_envs, device=device, num_threads=num_threads, on_gpu=on_gpu, step_s=step_s)[1]


def faster_backend(
    model: mujoco.MjModel,
    *,
    num_envs: int,
    device: torch.device,
    num_threads: int,
    on_gpu: Callable[..., Backend] = warp_worlds,
    step_s: Callable[[Backend], float] = physics_step_s,
) -> SettledBackend:
    """Return the name of the backend that steps these worlds faster on this machine."""
    if device.type != "cuda":
        return "mujoco"
    # MuJoCo steps all worlds a few times. If that is faster than a GPU's launches, Warp is not measured.
    return _faster(model, num_envs=num_envs, device=device, num_threads=num_threads, on_gpu=on_gpu, step_s=step_s)[0]


def _faster(
    model: mujoco.MjModel,
    *,
    num_envs: int,
    device: torch.device,
    num_threads: int,
    on_gpu: Callable[..., Backend],
    step_s: Callable[[Backend], float],
) -> tuple[SettledBackend, Backend]:
    on_cpu = MujocoBackend(model, num_envs=num_envs, num_threads=num_threads)
    if device.type != "cuda":
        return "mujoco", on_cpu
    cpu_s = step_s(on_cpu)
    # A GPU cannot be faster than its own launches.
    if cpu_s < _LAUNCH_S:
        _LOG.info("backend mujoco: a step of %d worlds takes %.2g ms on the CPU", num_envs, 1e3 * cpu_s)
        return "mujoco", on_cpu
    try:
        worlds = on_gpu(model, num_envs=num_envs, device=device)
    except EnvironmentBuildError as error:
        _LOG.info("backend mujoco: %s", error)
        return "mujoco", on_cpu
    gpu_s = step_s(worlds)
    name: SettledBackend = "warp" if gpu_s < cpu_s else "mujoco"
    _LOG.info(
        "backend %s: a step of %d worlds takes %.2g ms on the CPU, %.2g ms on %s",
        name,
        num_envs,
        1e3 * cpu_s,
        1e3 * gpu_s,
        device,
    )
    return name, worlds if name == "warp" else on_cpu
