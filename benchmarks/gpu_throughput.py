"""Measure MuJoCo-Warp through this package against MuJoCo-Warp alone, and against MuJoCo on the CPU.

Usage: python benchmarks/gpu_throughput.py [--device cuda:0] [--tasks lift_object velocity_go1] [--worlds 256 4096]

For each task and number of worlds, in turn and in one process: physics steps of a bare loop over MuJoCo-Warp's step in
a CUDA graph, which is what ``mjwarp-testspeed`` times; the same steps through the backend; control steps of the
environment, with observations, rewards, and episodes that begin anew; the same physics on the CPU; and pictures.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import mujoco_warp
import numpy as np
import torch
import tyro
import warp

from isaaclab_arena.environments.arena_environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.table_environment import TableEnvironment
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.mujoco_backend import MujocoBackend
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_buffers import make_data
from isaaclab_arena.sim.warp_kernels import one_compiler_at_a_time

PICTURE_SIZES = (128, 224)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        device: Where the worlds live.
        tasks: Environments.
        worlds: Numbers of worlds.
        control_steps: Control steps of a turn.
        rounds: Turns of each.
        pictures: Whether pictures are timed too, on tasks that have cameras.
        output: Where the figures go, as JSON; nowhere by default.
    """

    device: str = "cuda:0"
    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")
    worlds: tuple[int, ...] = (64, 512, 4096)
    control_steps: int = 20
    rounds: int = 3
    pictures: bool = True
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of a task with a number of worlds; physics steps per second unless said otherwise.

    Attributes:
        task: The environment.
        worlds: Number of worlds.
        bare: MuJoCo-Warp alone.
        backend: Through the backend.
        environment: Through the environment.
        cpu: MuJoCo on the CPU.
        bytes_per_world: Memory of the device that a world takes, None where that is not known [B].
        build_s: Time from nothing to worlds that have made a step, kernels compiled where they were not [s].
        pictures_per_s: Size of a picture to pictures per second.
    """

    task: str
    worlds: int
    bare: float
    backend: float
    environment: float
    cpu: float
    bytes_per_world: float | None
    build_s: float
    pictures_per_s: dict[str, float]


def built(task: str, num_envs: int, device: torch.device, **options: object) -> ArenaEnvironment:
    """Build an environment on MuJoCo-Warp."""
    builder = ENVIRONMENTS.get(task)
    config = builder.config_class(backend="warp", **options)
    threads = default_num_threads(1)
    environment = builder.build(config, num_envs=num_envs, device=device, num_threads=threads)
    assert isinstance(environment, ArenaEnvironment)
    return environment


def finished(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return how long something takes [s]."""
    finished(device)
    began = time.perf_counter()
    run()
    finished(device)
    return time.perf_counter() - began


def bare_loop(backend: WarpBackend, launches: int, num_substeps: int) -> Callable[[], None]:
    """Return a bare loop over as many steps of worlds of the same model with the same room."""
    device = warp.device_from_torch(backend.device)
    model, _ = backend.warp_worlds
    with one_compiler_at_a_time(), warp.ScopedDevice(device):
        data = make_data(backend.model, backend.num_envs, backend.sizes)

        def steps() -> None:
            for _ in range(num_substeps):
                mujoco_warp.step(model, data)

        steps()
        launch = captured(steps, device) if device.is_cuda else steps

    def run() -> None:
        with warp.ScopedDevice(device):
            for _ in range(launches):
                launch()

    return run


def captured(run: Callable[[], None], device: warp.Device) -> Callable[[], None]:
    """Return what does the same as one CUDA graph."""
    with warp.ScopedCapture(device) as capture:
        run()
    graph = capture.graph
    assert graph is not None
    return lambda: warp.capture_launch(graph)


def environment_loop(environment: ArenaEnvironment, steps: int) -> Callable[[], None]:
    """Return a loop of control steps with random actions, in which episodes that end begin anew."""
    generator = np.random.default_rng(0)
    low, high = (torch.tensor(bound, device=environment.device) for bound in bounds(environment))
    conditions = [environment.draw_conditions(generator) for _ in range(environment.num_envs)]
    environment.reset(torch.arange(environment.num_envs, device=environment.device), conditions)
    drawn = torch.rand((steps, environment.num_envs, len(low)), device=environment.device)
    actions = low + (high - low) * drawn

    def run() -> None:
        for action in actions:
            begin_anew(environment, environment.step(action), conditions)

    return run


def bounds(environment: ArenaEnvironment) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest action."""
    spec = environment.action_spec
    assert spec.low is not None
    assert spec.high is not None
    return spec.low, spec.high


def begin_anew(environment: ArenaEnvironment, step: object, conditions: list[Conditions]) -> None:
    """Begin the next episode in rows whose episode is over."""
    over = step.terminated | step.truncated | step.diverged  # type: ignore[attr-defined]
    env_ids = over.nonzero()[:, 0]
    if env_ids.numel():
        environment.reset(env_ids, [conditions[row] for row in env_ids.tolist()])


def measured(task: str, num_envs: int, options: Options) -> Row:
    """Measure a task with a number of worlds."""
    device = torch.device(options.device)
    free_before = free_memory(device)
    began = time.perf_counter()
    environment = built(task, num_envs, device)
    finished(device)
    build_s = time.perf_counter() - began
    free_after = free_memory(device)
    backend = environment.backend
    assert isinstance(backend, WarpBackend)
    num_substeps = round(environment.control_dt / backend.physics_dt)
    rows = torch.arange(num_envs, device=device)
    on_cpu = MujocoBackend(backend.model, num_envs=num_envs, num_threads=default_num_threads(1))
    cpu_rows = torch.arange(num_envs)

    def through_backend() -> None:
        for _ in range(options.control_steps):
            backend.step(rows, num_substeps)

    loops = {
        "bare": bare_loop(backend, options.control_steps, num_substeps),
        "backend": through_backend,
        "environment": environment_loop(environment, options.control_steps),
    }
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(options.rounds + 1):
        for name, run in loops.items():
            taken_s = seconds(run, device)
            if turn > 0:
                taken[name].append(taken_s)
    cpu_s = seconds(lambda: on_cpu.step(cpu_rows, num_substeps), torch.device("cpu"))
    steps = num_envs * num_substeps * options.control_steps
    has_cameras = options.pictures and isinstance(environment, TableEnvironment)
    known = free_before is not None and free_after is not None
    return Row(
        task=task,
        worlds=num_envs,
        **{name: steps / statistics.median(values) for name, values in taken.items()},
        cpu=num_envs * num_substeps / cpu_s,
        bytes_per_world=(free_before - free_after) / num_envs if known else None,  # type: ignore[operator]
        build_s=build_s,
        pictures_per_s=pictures_per_s(task, num_envs, device) if has_cameras else {},
    )


def pictures_per_s(task: str, num_envs: int, device: torch.device) -> dict[str, float]:
    """Return how many pictures a second are rendered, by their size."""
    found = {}
    for size in PICTURE_SIZES:
        environment = built(task, num_envs, device, enable_cameras=True, camera_size=size)
        cameras = environment._cameras  # what the environment does with each step, without the step
        taken_s = min(seconds(partial(cameras.observe, range(num_envs)), device) for _ in range(3))
        found[f"{size} x {size}"] = num_envs * len(cameras.spec()) / taken_s
    return found


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a GPU [B], None for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def table(rows: list[Row]) -> list[str]:
    """Return the figures as lines of Markdown."""
    lines = [
        "| task | worlds | MuJoCo-Warp alone | backend | of it | environment | of it | CPU | kB a world | build [s] |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        memory = "" if row.bytes_per_world is None else f"{row.bytes_per_world / 1e3:,.0f}"
        cells = (
            *(f"`{row.task}`", f"{row.worlds:,}", f"{row.bare:,.0f}"),
            *(f"{row.backend:,.0f}", f"{row.backend / row.bare:.2f}"),
            *(f"{row.environment:,.0f}", f"{row.environment / row.bare:.2f}"),
            *(f"{row.cpu:,.0f}", memory, f"{row.build_s:.1f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    pictures = [(row, size, rate) for row in rows for size, rate in row.pictures_per_s.items()]
    if pictures:
        lines += ["", "| task | worlds | picture | per second |", "| --- | --: | --- | --: |"]
        lines += [f"| `{row.task}` | {row.worlds:,} | {size} | {rate:,.0f} |" for row, size, rate in pictures]
    return lines


def main(options: Options) -> None:
    rows = [measured(task, worlds, options) for task in options.tasks for worlds in options.worlds]
    print("Physics steps per second.\n")
    print("\n".join(table(rows)))
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
