"""Worlds to measure, how long something takes on their device, and what of the device they take."""

import gc
import json
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import warp

from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.sim.threads import default_num_threads

OUT_OF_TIME = 3
"""Exit code of a program that had no time for all it was asked for."""

CPU = torch.device("cpu")
_Key = TypeVar("_Key", bound=Hashable)


def built(task: str, num_envs: int, device: torch.device, *, backend: str = "warp", **options: Any) -> ArenaEnvironment:
    """Build an environment."""
    builder = ENVIRONMENTS.get(task)
    config = builder.config_class(backend=backend, **options)
    environment = builder.build(config, num_envs=num_envs, device=device, num_threads=default_num_threads(1))
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


def warm_up(task: str, device: torch.device, *, enable_cameras: bool = False) -> None:
    """Compile and load what a task needs, so that neither its time nor its memory is taken for that of worlds."""
    options: dict[str, Any] = {"enable_cameras": True} if enable_cameras else {}
    built(task, 2, device, **options)
    if device.type == "cuda" and warp.is_mempool_supported(str(device)):
        # Worlds that are gone are to be gone from the device, or the next ones would seem to take nothing.
        warp.set_mempool_release_threshold(str(device), 0)


def emptied(device: torch.device) -> int | None:
    """Give back what is no longer used, and return the free memory of a GPU [B], None for the CPU."""
    gc.collect()
    if device.type == "cuda":
        finished(device)
        torch.cuda.empty_cache()
    return free_memory(device)


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a GPU [B], None for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def taken_per_world(before: int | None, after: int | None, num_envs: int) -> float | None:
    """Return the memory that a world takes [B], None where that is not known."""
    return None if before is None or after is None else (before - after) / num_envs


class EnvironmentLoop:
    """Control steps with random actions, in which episodes that end begin anew.

    Rows begin at all ages, as in a run that has gone on for long, so that some end in every step.

    Args:
        environment: What is stepped.
        steps: Control steps of a run.
    """

    def __init__(self, environment: ArenaEnvironment, steps: int) -> None:
        generator = np.random.default_rng(0)
        low, high = (torch.tensor(bound, device=environment.device) for bound in _bounds(environment))
        num_envs = environment.num_envs
        self._environment = environment
        self._conditions = [environment.draw_conditions(generator) for _ in range(num_envs)]
        environment.reset(torch.arange(num_envs, device=environment.device), self._conditions)
        ages = generator.integers(0, environment.max_episode_length, num_envs)
        environment._length.copy_(torch.from_numpy(ages))  # Episodes that all ended together would not be like a run.
        self._actions = low + (high - low) * torch.rand((steps, num_envs, len(low)), device=environment.device)

    def run(self) -> None:
        """Make the steps."""
        for action in self._actions:
            begin_anew(self._environment, self._environment.step(action), self._conditions)


def begin_anew(environment: ArenaEnvironment, step: Step, conditions: list[Conditions]) -> None:
    """Begin the next episode in rows whose episode is over."""
    over = step.terminated | step.truncated | step.diverged
    env_ids = over.nonzero()[:, 0]
    if env_ids.numel():
        environment.reset(env_ids, [conditions[row] for row in env_ids.tolist()])


def _bounds(environment: ArenaEnvironment) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest action."""
    spec = environment.action_spec
    assert spec.low is not None
    assert spec.high is not None
    return spec.low, spec.high


def known_keys(file: Path | None, part: str, fields: Iterable[str]) -> set[tuple[Any, ...]]:
    """Return which rows of a part are in a results file already; none where there is no file."""
    if file is None or not file.is_file():
        return set()
    rows = json.loads(file.read_text(encoding="utf-8")).get(part, [])
    return {tuple(row[name] for name in fields) for row in rows}


def measure_all(
    keys: Iterable[_Key], measure: Callable[[_Key], Any], *, output: Path | None, limit_s: float | None
) -> tuple[list[Any], int]:
    """Measure one thing after the other, and write the rows after each: a program may be ended at any time.

    Nothing is begun for which the time of the one before would not suffice. What fails is said and costs no other.

    Args:
        keys: What is measured, the quickest first.
        measure: Returns a row, a dataclass.
        output: File for the rows, as JSON; None for none.
        limit_s: Time for all of it; None for as long as it takes [s].

    Returns:
        The rows, and the exit code: 0, 1 where something failed, `OUT_OF_TIME` where only time was missing.
    """
    rows: list[Any] = []
    began = time.perf_counter()
    took_s, code = 0.0, 0
    for key in keys:
        started = time.perf_counter()
        if limit_s is not None and started - began + took_s > limit_s:
            print(f"no time left for {key}", flush=True)
            code = code or OUT_OF_TIME
            continue
        try:
            rows.append(measure(key))
        except (RuntimeError, MemoryError, EnvironmentBuildError) as error:
            print(f"{key} failed: {error}", flush=True)
            code = 1
        took_s = time.perf_counter() - started
        if output is not None:
            output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    return rows, code
