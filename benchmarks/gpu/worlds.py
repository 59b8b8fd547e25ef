"""Build worlds, step them as a run does, and measure how long that takes on their device and what memory they take."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import warp

from benchmarks.harness.environments import CPU, build
from benchmarks.harness.timing import in_turn
from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.sim.warp.kernels import trim_graph_memory


def build_worlds(task: str, num_envs: int, device: torch.device, **options: Any) -> ArenaEnvironment:
    """Build an environment, on MuJoCo-Warp unless another ``backend`` is among the options."""
    options = {"backend": "warp", **options}
    return build(task, num_envs, device=device, num_threads=default_num_threads(), **options)


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


def warm_up(task: str, device: torch.device, **options: Any) -> None:
    """Compile and load what a task needs, so that neither its time nor its memory is taken for that of worlds."""
    build_worlds(task, 2, device, **options)
    if device.type == "cuda" and warp.is_mempool_supported(str(device)):
        # Worlds that are gone are to be gone from the device, or the next ones would seem to take nothing.
        warp.set_mempool_release_threshold(str(device), 0)


def emptied(device: torch.device) -> int | None:
    """Give back what is no longer used, and return the free memory of a GPU [B], None for the CPU."""
    gc.collect()
    if device.type == "cuda":
        finished(device)
        torch.cuda.empty_cache()
        trim_graph_memory(warp.device_from_torch(device))
    return free_memory(device)


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a GPU [B], None for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def taken_per_world(before: int | None, after: int | None, num_envs: int) -> float | None:
    """Return the memory that a world takes [B], None where that is not known."""
    return None if before is None or after is None else (before - after) / num_envs


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Something that is measured turn by turn."""

    run: Callable[[], object]  # A turn.
    count: int  # What a turn makes in all worlds together: physics steps or pictures.
    device: torch.device = CPU  # Where it runs.
    prepare: Callable[[], object] = lambda: None  # Called before each turn, and not timed.

    def turn(self) -> float:
        """Make a turn, and return how long it took [s]."""
        self.prepare()
        return seconds(self.run, self.device)


def speeds(loops: Mapping[str, Loop], rounds: int) -> dict[str, float]:
    """Return what each loop makes per second, the median of turns that alternate; the first round is not counted."""
    taken_s = in_turn({name: loop.turn for name, loop in loops.items()}, rounds, warm_up=1)
    return {name: loop.count / statistics.median(taken_s[name]) for name, loop in loops.items()}


class EnvironmentLoop:
    """Control steps with random actions, in which episodes that end begin anew.

    Episodes are of all ages, as in a run that has gone on for long, so that some reach the time limit in every step.

    Args:
        environment: What is stepped.
        steps: Control steps of a run.
    """

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
            # As the loop of a run: one read tells whether the step was made and what ended with it.
            step = environment.try_step(action)
            was_made, over = made_and_over(step)
            if not was_made:
                _, over = made_and_over(environment.step_again())
            old = torch.from_numpy((self._ages + index) % environment.max_episode_length == 0)
            env_ids = (over | old).nonzero()[:, 0]
            if env_ids.numel():
                environment.reset(env_ids, [self._conditions[slot] for slot in env_ids.tolist()])


def made_and_over(step: Step) -> tuple[bool, torch.Tensor]:
    """Return whether a step was made, and on the CPU which env slots ended with it. Shape: (num_envs,), bool."""
    over = step.terminated | step.truncated | step.diverged
    made, over = on_cpu([over.new_ones(1) if step.made is None else step.made.any().reshape(1), over])
    return bool(made), over
