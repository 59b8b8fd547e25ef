"""Measure how many pictures a second cameras give: by rendering alone, in whole control steps, and on the CPU.

Usage: python benchmarks/gpu_pictures.py [--device cuda:0] [--tasks pick_and_place] [--worlds 64 1024] [--sizes 128 224]
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import tyro
from gpu_page import pictures_lines
from gpu_rows import ROW_KEYS, PicturesRow
from gpu_worlds import (
    CPU,
    EnvironmentLoop,
    built,
    emptied,
    free_memory,
    known_keys,
    measure_all,
    seconds,
    taken_per_world,
    warm_up,
)

from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        device: Where the worlds live.
        tasks: Environments with cameras.
        worlds: Numbers of worlds.
        sizes: Edges of pictures [px].
        control_steps: Control steps of a turn.
        rounds: Turns of each.
        cpu_worlds: Worlds whose pictures are rendered on the CPU, at most: it renders them one by one.
        limit_s: Time for all of it, None for as long as it takes [s].
        known: Results file; what is in it is not measured again.
        output: Where the figures go, as JSON; nowhere by default.
    """

    device: str = "cuda:0"
    tasks: tuple[str, ...] = ("pick_and_place",)
    worlds: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    sizes: tuple[int, ...] = (128, 224)
    control_steps: int = 20
    rounds: int = 3
    cpu_worlds: int = 16
    limit_s: float | None = None
    known: Path | None = None
    output: Path | None = None


def measured(task: str, num_envs: int, size_px: int, options: Options) -> PicturesRow:
    """Measure a task with a number of worlds and a size of pictures."""
    device = torch.device(options.device)
    free_before = emptied(device)
    environment = built(task, num_envs, device, enable_cameras=True, camera_size=size_px)
    stepping = EnvironmentLoop(environment, options.control_steps)
    seconds(stepping.run, device)
    bytes_per_world = taken_per_world(free_before, free_memory(device), num_envs)
    cpu_worlds = min(num_envs, options.cpu_worlds)
    on_cpu = built(task, cpu_worlds, CPU, backend="mujoco", enable_cameras=True, camera_size=size_px)
    turns: dict[str, tuple[Callable[[], object], torch.device, int]] = {
        "rendered": (rendering(environment), device, num_envs),
        "stepped": (stepping.run, device, num_envs * options.control_steps),
        "cpu": (rendering(on_cpu), CPU, cpu_worlds),
    }
    taken_s: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(options.rounds + 1):
        for name, (run, where, _) in turns.items():
            turn_s = seconds(run, where)
            if turn > 0:
                taken_s[name].append(turn_s)
    num_cameras = len(environment._cameras.spec())
    found = {name: num_cameras * each[2] / statistics.median(taken_s[name]) for name, each in turns.items()}
    return PicturesRow(task=task, worlds=num_envs, size_px=size_px, **found, bytes_per_world=bytes_per_world)


def rendering(environment: ArenaEnvironment) -> Callable[[], object]:
    """Return what an environment does for the pictures of a control step, without the step."""
    return partial(environment._cameras.observe, range(environment.num_envs))


def main(options: Options) -> int:
    """Measure, print the table, and return the exit code."""
    known = known_keys(options.known, "pictures", ROW_KEYS["pictures"])
    keys = [(task, worlds, size) for task in options.tasks for size in options.sizes for worlds in options.worlds]
    wanted = [key for key in keys if key not in known]
    for task in dict.fromkeys(task for task, _, _ in wanted):
        warm_up(task, torch.device(options.device), enable_cameras=True)
    rows, code = measure_all(
        wanted, lambda key: measured(*key, options), output=options.output, limit_s=options.limit_s
    )
    print("\n".join(pictures_lines(rows)))
    return code


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
