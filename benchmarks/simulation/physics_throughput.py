"""Measure the cost of the backend beside its physics.

Steps the same worlds from the same states under the same controls, once through the backend and once with
``mujoco.batch.Batch`` alone, in turn, and prints physics steps per second and the ratio of each pair. Quote CPU seconds
on a noisy machine.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch

from benchmarks.harness.environments import build
from benchmarks.harness.measure import Table, Timing, in_turn, median, ratios, run, timed
from isaaclab_arena.distributed.devices import default_num_threads

BACKEND = "backend"
VELOCITY_STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)
DERIVED_FIELDS = ("xpos", "xquat", "site_xpos", "sensordata")


@dataclass(frozen=True)
class Options:
    """Options of the measurement."""

    environment: str = "lift_object"  # Whose physics is stepped.
    num_envs: int = 64  # Number of worlds.
    num_threads: int = default_num_threads()  # Threads of physics.
    control_steps: int = 40  # Control steps of a turn.
    pairs: int = 9  # Turns of each.


def loops(options: Options) -> tuple[dict[str, Callable[[], Timing]], int]:
    """Return the timed turn of each loop by name, and the physics steps of a turn in all worlds."""
    environment = build(options.environment, options.num_envs, num_threads=options.num_threads)
    slots, everyone = torch.arange(options.num_envs), torch.ones(options.num_envs, dtype=torch.bool)
    environment.reset(slots, [environment.draw_conditions(np.random.default_rng(slot)) for slot in slots.tolist()])
    backend = environment.backend
    start = backend.batch.state.copy()
    bare = Batch(backend.model, options.num_envs, options.num_threads)
    # Both copy out the same derived fields after each call, or the bare loop would do less.
    for field in DERIVED_FIELDS:
        bare.bind(field)
    control = bare.bind("ctrl")
    num_substeps = round(environment.control_dt / backend.physics_dt)
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (options.control_steps, *control.shape))
    controls = np.asarray(backend.ctrl)[None] + noise
    control_tensors = torch.from_numpy(controls)

    def through_backend() -> None:
        for step in range(options.control_steps):
            backend.ctrl.copy_(control_tensors[step])
            backend.step(everyone, num_substeps)

    def alone(stage: int) -> None:
        for step in range(options.control_steps):
            control[:] = controls[step]
            bare.step(nstep=num_substeps, stage=stage)

    def from_start(worlds: Batch, steps: Callable[[], None]) -> Timing:
        worlds.state[:] = start
        timing = timed(steps)
        ends.append(worlds.state.copy())
        assert np.array_equal(ends[0], ends[-1]), "not all loops computed the same"
        return timing

    ends: list[np.ndarray] = []
    calls = {
        BACKEND: lambda: from_start(backend.batch, through_backend),
        "bare": lambda: from_start(bare, lambda: alone(0)),
        "bare, sensors current": lambda: from_start(bare, lambda: alone(VELOCITY_STAGE)),
    }
    return calls, options.num_envs * options.control_steps * num_substeps


def main(options: Options) -> None:
    """Measure in turn, and print the table."""
    calls, num_steps = loops(options)
    taken = in_turn(calls, options.pairs, warm_up=1)
    print(f"{options.environment}, {options.num_envs} worlds, {options.num_threads} threads\n")
    speeds = ("physics steps per CPU second", "per second")
    table = Table("loop", *speeds, "backend against it by CPU seconds", "by wall clock")
    for name, timings in taken.items():
        clocks = ("cpu_s", "wall_s")
        against = (f"{statistics.median(ratios(timings, taken[BACKEND], clock)):.3f}" for clock in clocks)
        table.add(name, *(f"{num_steps / median(timings, clock):,.0f}" for clock in clocks), *against)


if __name__ == "__main__":
    run(main, Options)
