"""What the backend costs beside the physics it runs: ``python benchmarks/physics_throughput.py``.

Steps the same worlds from the same states under the same controls, once through the backend and once with
``mujoco.batch.Batch`` alone, in turn, and prints physics steps per second and the ratio of each pair. CPU seconds are
the figure to quote on a noisy machine.
"""

import statistics
import time
from dataclasses import dataclass

import mujoco
import numpy as np
import torch
import tyro
from mujoco.batch import Batch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.sim.threads import default_num_threads

VELOCITY_STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)


@dataclass(frozen=True)
class Options:
    """Physics through the backend against a bare loop over mujoco.batch.Batch."""

    environment: str = "lift_object"
    num_envs: int = 64
    num_threads: int = default_num_threads()
    control_steps: int = 40
    pairs: int = 9


@dataclass(frozen=True)
class Timing:
    """How long one round took."""

    wall_s: float
    cpu_s: float


def timed(run) -> Timing:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Timing(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


def main(options: Options) -> None:
    builder = ENVIRONMENTS.get(options.environment)
    environment = builder.build(
        builder.config_class(),
        num_envs=options.num_envs,
        device=torch.device("cpu"),
        num_threads=options.num_threads,
    )
    conditions = [environment.draw_conditions(np.random.default_rng(row)) for row in range(options.num_envs)]
    rows = torch.arange(options.num_envs)
    environment.reset(rows, conditions)
    backend = environment.backend
    start = backend.batch.state.copy()
    bare = Batch(backend.model, options.num_envs, options.num_threads)
    # Both copy out the same derived fields after each call, or the bare loop would do less.
    for field in ("xpos", "xquat", "site_xpos", "sensordata"):
        bare.bind(field)
    control = bare.bind("ctrl")
    num_substeps = round(environment.control_dt / backend.physics_dt)
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (options.control_steps, *control.shape))
    controls = np.asarray(backend.ctrl)[None] + noise
    control_tensors = torch.from_numpy(controls)

    def through_backend() -> None:
        for step in range(options.control_steps):
            backend.ctrl.copy_(control_tensors[step])
            backend.step(rows, num_substeps)

    def alone(stage: int) -> None:
        for step in range(options.control_steps):
            control[:] = controls[step]
            bare.step(nstep=num_substeps, stage=stage)

    variants = {"bare": lambda: alone(0), "bare, sensors current": lambda: alone(VELOCITY_STAGE)}
    timings: dict[str, list[Timing]] = {name: [] for name in ("backend", *variants)}
    for pair in range(options.pairs + 1):
        for name, run in {"backend": through_backend, **variants}.items():
            (backend.batch if name == "backend" else bare).state[:] = start
            timing = timed(run)
            if pair > 0:
                timings[name].append(timing)
        assert np.array_equal(backend.batch.state, bare.state), "the two did not compute the same"
    report(options, timings, num_substeps)


def report(options: Options, timings: dict[str, list[Timing]], num_substeps: int) -> None:
    steps = options.num_envs * options.control_steps * num_substeps
    print(f"{options.environment}, {options.num_envs} worlds, {options.num_threads} threads, {num_substeps} substeps")
    for name, runs in timings.items():
        cpu, wall = (statistics.median(getattr(run, unit) for run in runs) for unit in ("cpu_s", "wall_s"))
        print(f"{name:<24}{steps / cpu:>12,.0f} physics steps per CPU second{steps / wall:>12,.0f} per second")
    for name, runs in timings.items():
        if name != "backend":
            cpu, wall = (median_ratio(runs, timings["backend"], unit) for unit in ("cpu_s", "wall_s"))
            print(f"backend / {name:<24}{cpu:.3f} by CPU seconds, {wall:.3f} by wall clock")


def median_ratio(bare: list[Timing], backend: list[Timing], unit: str) -> float:
    """Return how fast the backend is against a bare loop, pair by pair: 1 is as fast."""
    return statistics.median(getattr(b, unit) / getattr(a, unit) for b, a in zip(bare, backend, strict=True))


if __name__ == "__main__":
    main(tyro.cli(Options))
