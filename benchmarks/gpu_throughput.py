"""Measure MuJoCo-Warp through this package against MuJoCo-Warp alone, and against MuJoCo on the CPU.

Usage: python benchmarks/gpu_throughput.py [--device cuda:0] [--tasks lift_object velocity_go1] [--worlds 256 4096]

For each task and number of worlds, in turn, in one process and from the same states: physics steps of a bare loop over
MuJoCo-Warp's step in a CUDA graph; the same steps through the backend; control steps of the environment, with
observations, rewards, and episodes that begin anew; and the same physics on the CPU. Then, on a GPU, what
``mjwarp-testspeed`` says of the same model with the same room for contacts.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mujoco_warp
import torch
import tyro
import warp
from gpu_page import physics_lines
from gpu_rows import ROW_KEYS, PhysicsRow
from gpu_testspeed import testspeed
from gpu_worlds import (
    CPU,
    EnvironmentLoop,
    built,
    emptied,
    finished,
    free_memory,
    known_keys,
    measure_all,
    seconds,
    taken_per_world,
    warm_up,
)

from isaaclab_arena.sim.mujoco.backend import MujocoBackend
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.sim.warp.backend import WarpBackend
from isaaclab_arena.sim.warp.buffers import make_data
from isaaclab_arena.sim.warp.kernels import one_compiler_at_a_time

STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "mocap_pos", "mocap_quat")
_CPU_TURN_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        device: Where the worlds live.
        tasks: Environments.
        worlds: Numbers of worlds.
        control_steps: Control steps of a turn.
        rounds: Turns of each.
        testspeed: Whether mjwarp-testspeed is asked too, which runs on GPUs only.
        limit_s: Time for all of it, None for as long as it takes [s].
        known: Results file; what is in it is not measured again.
        output: Where the figures go, as JSON; nowhere by default.
    """

    device: str = "cuda:0"
    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)
    control_steps: int = 20
    rounds: int = 3
    testspeed: bool = True
    limit_s: float | None = None
    known: Path | None = None
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Something that is measured turn by turn.

    Attributes:
        prepare: Brings it to the states from which all loops start.
        run: A turn.
        steps: Physics steps that all worlds together make in a turn.
        device: Where it runs.
    """

    prepare: Callable[[], object]
    run: Callable[[], object]
    steps: int
    device: torch.device


def bare_loop(backend: WarpBackend, launches: int, num_substeps: int, back: Callable[[], object]) -> Loop:
    """Return a loop over steps of MuJoCo-Warp alone, in worlds of the same model with the same room.

    Args:
        backend: Whose model, room and states they take over.
        launches: How often ``num_substeps`` steps are made.
        num_substeps: Steps in a row, on a GPU in one CUDA graph.
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

    def run() -> None:
        with warp.ScopedDevice(device):
            for _ in range(launches):
                launch()

    return Loop(prepare=prepare, run=run, steps=backend.num_envs * launches * num_substeps, device=backend.device)


def captured(run: Callable[[], None], device: warp.Device) -> Callable[[], None]:
    """Return what does the same as one CUDA graph."""
    with warp.ScopedCapture(device) as capture:
        run()
    graph = capture.graph
    assert graph is not None
    return lambda: warp.capture_launch(graph)


def cpu_loop(backend: WarpBackend, num_substeps: int, most_steps: int) -> Loop:
    """Return the same physics on the CPU, from the states that the backend has now, for a turn of about 0.3 s."""
    on_cpu = MujocoBackend(backend.model, num_envs=backend.num_envs, num_threads=default_num_threads(1))
    for row in range(backend.num_envs):
        on_cpu.set_integration_state(row, backend.integration_state(row))
    kept = on_cpu.snapshot()
    rows = torch.arange(backend.num_envs)
    once_s = seconds(lambda: on_cpu.step(rows, num_substeps), CPU)
    count = min(most_steps, math.ceil(_CPU_TURN_S / once_s))

    def run() -> None:
        for _ in range(count):
            on_cpu.step(rows, num_substeps)

    return Loop(
        prepare=lambda: on_cpu.restore_snapshot(kept),
        run=run,
        steps=backend.num_envs * count * num_substeps,
        device=CPU,
    )


def speeds(loops: Mapping[str, Loop], rounds: int) -> dict[str, float]:
    """Return physics steps per second of each loop, the median of turns that alternate; the first is not counted."""
    taken_s: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds + 1):
        for name, loop in loops.items():
            loop.prepare()
            turn_s = seconds(loop.run, loop.device)
            if turn > 0:
                taken_s[name].append(turn_s)
    return {name: loop.steps / statistics.median(taken_s[name]) for name, loop in loops.items()}


def measured(task: str, num_envs: int, options: Options) -> PhysicsRow:
    """Measure a task with a number of worlds."""
    device = torch.device(options.device)
    free_before = emptied(device)
    worlds = []
    build_s = seconds(lambda: worlds.append(built(task, num_envs, device)), device)
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
    rows = torch.arange(num_envs, device=device)

    def back() -> None:
        environment.restore_snapshot(kept)

    def through_backend() -> None:
        for _ in range(control_steps):
            backend.step(rows, num_substeps)

    steps = num_envs * num_substeps * control_steps
    loops = {
        "bare": bare_loop(backend, control_steps, num_substeps, back),
        "backend": Loop(prepare=back, run=through_backend, steps=steps, device=device),
        "environment": Loop(prepare=back, run=stepping.run, steps=steps, device=device),
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


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    known = known_keys(options.known, "physics", ROW_KEYS["physics"])
    wanted = [(task, worlds) for task in options.tasks for worlds in options.worlds if (task, worlds) not in known]
    for task in dict.fromkeys(task for task, _ in wanted):
        warm_up(task, torch.device(options.device))
    rows, code = measure_all(
        wanted, lambda key: measured(*key, options), output=options.output, limit_s=options.limit_s
    )
    print("\n".join(physics_lines(rows)))
    return code


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
