"""Measure MuJoCo-Warp through this package against MuJoCo-Warp alone, and against MuJoCo on the CPU.

For each task and number of worlds, in turn, in one process and from the same states: physics steps of a bare loop over
MuJoCo-Warp's step in a CUDA graph, through the backend, in control steps of the environment with observations, rewards
and resets, and on the CPU. Then, on a GPU, ``mjwarp-testspeed`` of the same model with the same room for contacts.
"""

import gc
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from benchmarks.gpu.page import physics_lines
from benchmarks.gpu.results import GpuOptions, PhysicsRow, measure_all, unknown_keys
from benchmarks.harness.environments import CPU, build
from benchmarks.harness.measure import in_turn, run
from benchmarks.harness.workers import module
from isaaclab_arena.distributed.devices import default_num_threads, on_cpu
from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_kernels import one_compiler_at_a_time


def build_worlds(task: str, num_envs: int, device: torch.device, **options: Any) -> ArenaEnvironment:
    """Build an environment, on MuJoCo-Warp unless another ``backend`` is among the options."""
    options = {"backend": "warp", **options}
    return build(task, num_envs, device=device, num_threads=default_num_threads(), **options)


def finished(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the duration of a call [s]."""
    finished(device)
    began = time.perf_counter()
    run()
    finished(device)
    return time.perf_counter() - began


def warm_up(task: str, device: torch.device, **options: Any) -> None:
    """Compile and load the kernels of a task, so that neither their time nor their memory counts for worlds."""
    build_worlds(task, 2, device, **options)
    if device.type == "cuda" and warp.is_mempool_supported(str(device)):
        # Worlds that are gone are to be gone from the device, or the next ones would seem to take nothing.
        warp.set_mempool_release_threshold(str(device), 0)


def emptied(device: torch.device) -> int | None:
    """Give back unused memory, and return the free memory of a GPU [B], None for the CPU."""
    gc.collect()
    if device.type == "cuda":
        finished(device)
        torch.cuda.empty_cache()
        # The memory of deleted graphs, as `Launcher.forget_graphs` releases it.
        of_warp = warp.device_from_torch(device)
        of_warp.runtime.core.wp_cuda_device_graph_mem_trim(of_warp.ordinal)
    return free_memory(device)


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a GPU [B], None for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def taken_per_world(before: int | None, after: int | None, num_envs: int) -> float | None:
    """Return the memory of a world [B], None if it is unknown."""
    return None if before is None or after is None else (before - after) / num_envs


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop that is measured turn by turn."""

    run: Callable[[], object]  # A turn.
    count: int  # Physics steps or pictures of a turn, in all worlds together.
    device: torch.device = CPU  # Device of the loop.
    prepare: Callable[[], object] = lambda: None  # Called before each turn, and not timed.

    def turn(self) -> float:
        """Make a turn, and return its duration [s]."""
        self.prepare()
        return seconds(self.run, self.device)


def speeds(loops: Mapping[str, Loop], rounds: int) -> dict[str, float]:
    """Return the count per second of each loop, the median of turns that alternate; the first round is not counted."""
    taken_s = in_turn({name: loop.turn for name, loop in loops.items()}, rounds, warm_up=1)
    return {name: loop.count / statistics.median(taken_s[name]) for name, loop in loops.items()}


class EnvironmentLoop:
    """Control steps with random actions. Episodes have all ages, so some reach the time limit in every step."""

    def __init__(self, environment: ArenaEnvironment, steps: int) -> None:
        spec, num_envs, device = environment.action_spec, environment.num_envs, environment.device
        assert spec.low is not None
        assert spec.high is not None
        generator = np.random.default_rng(0)
        low, high = torch.tensor(spec.low, device=device), torch.tensor(spec.high, device=device)
        self._environment = environment
        self._conditions = [environment.draw_conditions(generator) for _ in range(num_envs)]
        self._ages = generator.integers(0, environment.max_episode_length, num_envs)
        self._actions = low + (high - low) * torch.rand((steps, num_envs, len(low)), device=device)
        environment.reset(torch.arange(num_envs, device=device), self._conditions)

    def run(self) -> None:
        """Make the steps."""
        environment = self._environment
        for index, action in enumerate(self._actions, start=1):
            # As in the loop of a run, one read has both the step's state and the ended env slots.
            step = environment.try_step(action)
            was_made, over = made_and_over(step)
            if not was_made:
                _, over = made_and_over(environment.step_again())
            old = torch.from_numpy((self._ages + index) % environment.max_episode_length == 0)
            env_ids = (over | old).nonzero()[:, 0]
            if env_ids.numel():
                environment.reset(env_ids, [self._conditions[slot] for slot in env_ids.tolist()])


def made_and_over(step: Step) -> tuple[bool, torch.Tensor]:
    """Return if a step was made, and on the CPU the env slots that ended with it. Shape: (num_envs,), bool."""
    over = step.terminated | step.truncated | step.diverged
    made, over = on_cpu([over.new_ones(1) if step.made is None else step.made.any().reshape(1), over])
    return bool(made), over


STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "mocap_pos", "mocap_quat")
_CPU_TURN_S = 0.3
_TESTSPEED_LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Options(GpuOptions):
    """Options of the measurement."""

    tasks: tuple[str, ...] = ("lift_object", "velocity_go1", "walk_humanoid")  # Environments.
    worlds: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)  # Numbers of worlds.
    control_steps: int = 20  # Control steps of a turn.
    testspeed: bool = True  # Run mjwarp-testspeed too, on GPUs only.


def bare_loop(backend: WarpBackend, launches: int, num_substeps: int, back: Callable[[], object]) -> Loop:
    """Return a loop over steps of MuJoCo-Warp alone, in worlds of the same model with the same room."""
    device = warp.device_from_torch(backend.device)
    model, _ = backend.warp_worlds
    with one_compiler_at_a_time(), warp.ScopedDevice(device):
        sizes = backend.sizes
        data = mujoco_warp.make_data(
            backend.model, nworld=backend.num_envs, nconmax=sizes.contacts, njmax=sizes.constraints
        )

        def steps() -> None:
            for _ in range(num_substeps):
                mujoco_warp.step(model, data)

        steps()
        launch = steps
        if device.is_cuda:
            with warp.ScopedCapture(device) as capture:
                steps()
            graph = capture.graph
            assert graph is not None
            launch = partial(warp.capture_launch, graph)

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


def cpu_loop(backend: WarpBackend, num_substeps: int, most_steps: int) -> Loop:
    """Return the same physics on the CPU, from the states that the backend has now, for a turn of about 0.3 s."""
    on_cpu = MujocoBackend(backend.model, num_envs=backend.num_envs, num_threads=default_num_threads(1))
    for slot in range(backend.num_envs):
        on_cpu.set_integration_state(slot, backend.integration_states([slot])[0])
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
    """Return the physics steps per second of mjwarp-testspeed for a model, None without a figure."""
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
