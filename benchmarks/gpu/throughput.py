"""Measure MuJoCo-Warp through this package against MuJoCo-Warp alone, and against MuJoCo on the CPU.

For each task and number of worlds, in turn, in one process and from the same states: physics steps of a bare loop over
MuJoCo-Warp's step in a CUDA graph; the same steps through the backend; control steps of the environment, with
observations, rewards, and episodes that begin anew; and the same physics on the CPU. Then, on a GPU, what
``mjwarp-testspeed`` says of the same model with the same room for contacts.
"""

import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mujoco
import mujoco_warp
import torch
import warp

from benchmarks.gpu.measuring import GpuOptions, measure_all, unknown_keys
from benchmarks.gpu.page import physics_lines
from benchmarks.gpu.rows import PhysicsRow
from benchmarks.gpu.worlds import (
    EnvironmentLoop,
    Loop,
    build_worlds,
    emptied,
    finished,
    free_memory,
    seconds,
    speeds,
    taken_per_world,
    warm_up,
)
from benchmarks.harness.environments import CPU
from benchmarks.harness.pages import run
from benchmarks.harness.workers import module
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.sim.warp.backend import WarpBackend, make_data
from isaaclab_arena.sim.warp.kernels import one_compiler_at_a_time

STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "mocap_pos", "mocap_quat")
_CPU_TURN_S = 0.3
_TESTSPEED_LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Options(GpuOptions):
    """What to measure."""

    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")  # Environments.
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)  # Numbers of worlds.
    control_steps: int = 20  # Control steps of a turn.
    testspeed: bool = True  # Whether mjwarp-testspeed is asked too, which runs on GPUs only.


def bare_loop(backend: WarpBackend, launches: int, num_substeps: int, back: Callable[[], object]) -> Loop:
    """Return a loop over steps of MuJoCo-Warp alone, in worlds of the same model with the same room.

    Args:
        backend: Whose model, room and states they take over.
        launches: How often ``num_substeps`` steps are made.
        num_substeps: Steps one after the other, on a GPU in one CUDA graph.
        back: Brings the backend to where all loops start.
    """
    device = warp.device_from_torch(backend.device)
    model, _ = backend.warp_worlds
    with one_compiler_at_a_time(), warp.ScopedDevice(device):
        data = make_data(backend.model, backend.num_envs, backend.sizes)

        def steps() -> None:
            for _ in range(num_substeps):
                mujoco_warp.step(model, data)

        steps()
        launch = captured(steps, device) if device.is_cuda else steps

    def prepare() -> None:
        back()
        finished(backend.device)
        _, theirs = backend.warp_worlds
        for name in STATE:
            if getattr(data, name).size:
                warp.copy(getattr(data, name), getattr(theirs, name))

    def turn() -> None:
        with warp.ScopedDevice(device):
            for _ in range(launches):
                launch()

    count = backend.num_envs * launches * num_substeps
    return Loop(run=turn, count=count, device=backend.device, prepare=prepare)


def captured(steps: Callable[[], None], device: warp.Device) -> Callable[[], None]:
    """Return what does the same as one CUDA graph."""
    with warp.ScopedCapture(device) as capture:
        steps()
    graph = capture.graph
    assert graph is not None
    return lambda: warp.capture_launch(graph)


def cpu_loop(backend: WarpBackend, num_substeps: int, most_steps: int) -> Loop:
    """Return the same physics on the CPU, from the states that the backend has now, for a turn of about 0.3 s."""
    on_cpu = MujocoBackend(backend.model, num_envs=backend.num_envs, num_threads=default_num_threads(1))
    for slot in range(backend.num_envs):
        on_cpu.set_integration_state(slot, backend.integration_state(slot))
    kept = on_cpu.snapshot()
    everyone = torch.ones(backend.num_envs, dtype=torch.bool)
    once_s = seconds(lambda: on_cpu.step(everyone, num_substeps), CPU)
    count = min(most_steps, math.ceil(_CPU_TURN_S / once_s))

    def turn() -> None:
        for _ in range(count):
            on_cpu.step(everyone, num_substeps)

    steps = backend.num_envs * count * num_substeps
    return Loop(run=turn, count=steps, prepare=lambda: on_cpu.restore_snapshot(kept))


def measured(options: Options, task: str, num_envs: int) -> PhysicsRow:
    """Measure a task with a number of worlds."""
    device = torch.device(options.device)
    free_before = emptied(device)
    worlds = []
    build_s = seconds(lambda: worlds.append(build_worlds(task, num_envs, device)), device)
    environment = worlds.pop()
    backend = environment.backend
    assert isinstance(backend, WarpBackend)
    control_steps, num_substeps = options.control_steps, round(environment.control_dt / backend.physics_dt)
    stepping = EnvironmentLoop(environment, control_steps)
    # Room for contacts grows here if it was too little, so that all loops have the same.
    seconds(stepping.run, device)
    bytes_per_world = taken_per_world(free_before, free_memory(device), num_envs)
    kept = environment.snapshot()
    assert kept is not None
    everyone = torch.ones(num_envs, dtype=torch.bool, device=device)

    def back() -> None:
        environment.restore_snapshot(kept)

    def through_backend() -> None:
        for _ in range(control_steps):
            backend.step(everyone, num_substeps)

    steps = num_envs * num_substeps * control_steps
    loops = {
        "bare": bare_loop(backend, control_steps, num_substeps, back),
        "backend": Loop(run=through_backend, count=steps, device=device, prepare=back),
        "environment": Loop(run=stepping.run, count=steps, device=device, prepare=back),
        "cpu": cpu_loop(backend, num_substeps, control_steps),
    }
    found = speeds(loops, options.rounds)
    asked = options.testspeed and device.type == "cuda"
    return PhysicsRow(
        task=task,
        worlds=num_envs,
        **found,
        testspeed=testspeed(backend, control_steps * num_substeps) if asked else None,
        bytes_per_world=bytes_per_world,
        build_s=build_s,
    )


def testspeed(backend: WarpBackend, num_steps: int) -> float | None:
    """Return the physics steps per second that mjwarp-testspeed says of a model, None where it says nothing."""
    with tempfile.TemporaryDirectory(prefix="testspeed_") as name:
        model = Path(name) / "model.mjb"
        mujoco.mj_saveModel(backend.model, str(model))
        command = module(
            *("mujoco_warp.testspeed", model, f"--nworld={backend.num_envs}", f"--nstep={num_steps}"),
            *(f"--nconmax={backend.sizes.contacts}", f"--njmax={backend.sizes.constraints}"),
            *(f"--device={warp.device_from_torch(backend.device).alias}", "--format=json"),
            # The other choice compiles kernels that print, within the time limit.
            "--overflow_behavior=error",
        )
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_TESTSPEED_LIMIT_S, check=True)
            return float(json.loads(ended.stdout.splitlines()[-1])["steps_per_second"])
        except (subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            print(f"mjwarp-testspeed gave no figure: {error} {getattr(error, 'stderr', None) or ''}", flush=True)
            return None


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    keys = [(task, worlds) for task in options.tasks for worlds in options.worlds]
    wanted = unknown_keys("physics", keys, options.known)
    for task in dict.fromkeys(task for task, _ in wanted):
        warm_up(task, torch.device(options.device))
    rows, code = measure_all(wanted, partial(measured, options), options)
    print("\n".join(physics_lines(rows)))
    return code


if __name__ == "__main__":
    run(main, Options)
