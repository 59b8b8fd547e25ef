"""Measure how many pictures a second cameras give: by rendering alone, in whole control steps, and on the CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.page import pictures_lines
from benchmarks.gpu.results import GpuOptions, PicturesRow, measure_all, unknown_keys
from benchmarks.gpu.throughput import (
    EnvironmentLoop,
    Loop,
    build_worlds,
    emptied,
    free_memory,
    seconds,
    speeds,
    taken_per_world,
    warm_up,
)
from benchmarks.harness.environments import CPU
from benchmarks.harness.measure import run
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.environments.arena.cameras import CameraOptions, EnvironmentCameras
from isaaclab_arena.environments.arena.environment import ArenaEnvironment


@dataclass(frozen=True, kw_only=True)
class Options(GpuOptions):
    """Options of the measurement."""

    tasks: tuple[str, ...] = ("pick_and_place",)  # Environments with cameras.
    worlds: tuple[int, ...] = (16, 64, 256, 1024, 2048)  # Numbers of worlds.
    sizes: tuple[int, ...] = (128, 224)  # Edges of pictures [px].
    control_steps: int = 20  # Control steps of a turn.
    cpu_worlds: int = 16  # Worlds whose pictures are rendered on the CPU, at most: it renders them one by one.


def measured(options: Options, task: str, num_envs: int, size_px: int) -> PicturesRow:
    """Measure a task with a number of worlds and a size of pictures."""
    device = torch.device(options.device)
    free_before = emptied(device)
    environment = build_worlds(task, num_envs, device, enable_cameras=True, camera_size=size_px)
    stepping = EnvironmentLoop(environment, options.control_steps)
    seconds(stepping.run, device)
    bytes_per_world = taken_per_world(free_before, free_memory(device), num_envs)
    cpu_worlds = min(num_envs, options.cpu_worlds)
    on_cpu = build_worlds(task, cpu_worlds, CPU, backend="mujoco")
    pictures = CameraOptions(enable_cameras=True, camera_size=size_px)
    num_cameras = len(EnvironmentCameras(on_cpu.backend, pictures, CPU).spec())
    steps = num_envs * options.control_steps
    loops = {
        "rendered": Loop(run=rendering(environment, pictures), count=num_cameras * num_envs, device=device),
        "stepped": Loop(run=stepping.run, count=num_cameras * steps, device=device),
        "cpu": Loop(run=rendering(on_cpu, pictures), count=num_cameras * cpu_worlds),
    }
    found = speeds(loops, options.rounds)
    return PicturesRow(task=task, worlds=num_envs, size_px=size_px, **found, bytes_per_world=bytes_per_world)


def rendering(environment: ArenaEnvironment, pictures: CameraOptions) -> Callable[[], object]:
    """Return a call that renders the pictures of a control step, without the step."""
    threads = default_num_threads()
    cameras = EnvironmentCameras(environment.backend, pictures, environment.device, num_threads=threads)

    def render() -> None:
        cameras.drawn.outdated[:] = True
        cameras.observe()

    return render


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    keys = [(task, worlds, size) for task in options.tasks for size in options.sizes for worlds in options.worlds]
    wanted = unknown_keys("pictures", keys, options.known)
    for task in dict.fromkeys(task for task, _, _ in wanted):
        warm_up(task, torch.device(options.device), enable_cameras=True)
    rows, code = measure_all(wanted, partial(measured, options), options)
    print("\n".join(pictures_lines(rows)))
    return code


if __name__ == "__main__":
    run(main, Options)
