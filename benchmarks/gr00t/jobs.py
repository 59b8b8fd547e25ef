"""Measure where the time and the memory of a job with a GR00T policy go, beside the same job with zero actions."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.harness.evaluations import evaluate, job_results
from benchmarks.harness.processes import Watched
from benchmarks.harness.tables import markdown_table
from benchmarks.harness.timing import in_turn, median

PHASES = ("policy", "render", "simulate", "record", "idle")
GR00T, ZERO = "gr00t_closedloop", "zero_action"


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """What a job runs."""

    environment: str  # Its name.
    num_envs: int  # Its env slots.
    episodes_per_slot: int  # Episodes for each of them.
    camera_size: int = 64  # Edge of the pictures [px].
    asks_every_step: bool = False  # Whether the model is asked in every control step instead of once for each chunk.
    backend: str = "auto"  # What simulates.
    num_threads: int = 1  # Threads of physics and pictures.


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the program with one job took."""

    build_s: float  # Building environment and policy [s].
    phases_s: dict[str, float]  # Phase to its wall time [s]; ``idle`` is what belongs to no other.
    env_steps: int  # Control steps of all env slots.
    process: Watched  # What the whole process took.

    @property
    def running_s(self) -> float:
        """Wall time of the job without building what it needs [s]."""
        return sum(self.phases_s.values())

    @property
    def speed(self) -> float:
        """Control steps of all env slots per second of the job without building what it needs."""
        return self.env_steps / self.running_s

    @property
    def cpu_s(self) -> float:
        """CPU time of the whole process [s]."""
        return self.process.cpu_s


def run_job(
    directory: Path, yaml: str, size: JobSize, policy_type: str, device: str, more_options: Sequence[str] = ()
) -> Run:
    """Run a job in a process of its own, as a user does, with one thread of torch."""
    arguments = {
        "environment": size.environment,
        "num_envs": size.num_envs,
        "enable_cameras": True,
        "camera_size": size.camera_size,
        "backend": size.backend,
    }
    ensemble = {"temporal_ensemble_coeff": 0.01} if size.asks_every_step else {}
    job = {
        "name": "job",
        "arena_env_args": arguments,
        "num_episodes": size.num_envs * size.episodes_per_slot,
        "policy_type": policy_type,
        "policy_config_dict": {"policy_config_yaml_path": yaml, **ensemble} if policy_type == GR00T else {},
    }
    options = ("--device", device, "--policy_device", device, "--num_threads", str(size.num_threads), *more_options)
    process = evaluate(directory, {"jobs": [job]}, *options)
    (found,) = job_results(directory)
    phases_s = {phase: found[f"{phase}_s"] for phase in PHASES}
    return Run(build_s=found["build_s"], phases_s=phases_s, env_steps=found["env_steps"], process=process)


Runs = dict[tuple[str, int, str], list[Run]]
"""Device, env slots and policy to their runs."""


def run_jobs(directory: Path, yaml: str, sizes: Sequence[JobSize], *, devices: Sequence[str], repetitions: int) -> Runs:
    """Run the jobs of all sizes with either policy in turn."""
    numbers = count()

    def once(size: JobSize, policy_type: str, device: str) -> Run:
        return run_job(directory / f"run_{next(numbers)}", yaml, size, policy_type, device)

    calls = {
        (device, size.num_envs, policy_type): partial(once, size, policy_type, device)
        for device in devices
        for size in sizes
        for policy_type in (GR00T, ZERO)
    }
    return in_turn(calls, repetitions)


def time_table(runs: Runs) -> list[str]:
    """Return the lines of the table of where the time goes."""
    table = []
    for (device, num_envs, policy_type), each in runs.items():
        shares = (statistics.median(run.phases_s[phase] / run.running_s for run in each) for phase in PHASES)
        table.append(
            (
                *(device, f"`{policy_type}`", str(num_envs)),
                *(f"{median(each, figure):.1f}" for figure in ("build_s", "running_s")),
                *(f"{100 * share:.1f} %" for share in shares),
                *(f"{median(each, 'speed'):,.0f}", f"{median(each, 'cpu_s'):.1f}"),
            )
        )
    shares = ("rest" if phase == "idle" else phase for phase in PHASES)
    heading = (
        "device",
        "job with",
        "env slots",
        "build s",
        "run s",
        *shares,
        "control steps per s",
        "CPU s, whole process",
    )
    return markdown_table(heading, table, words=2)


def memory_table(runs: Runs) -> list[str]:
    """Return the lines of the table of peaks."""
    table = []
    for device, num_envs in dict.fromkeys((device, num_envs) for device, num_envs, _ in runs):
        processes = [[run.process for run in runs[device, num_envs, policy]] for policy in (GR00T, ZERO)]
        ours, zero = (median(each, "peak_mb") for each in processes)
        gpu = (f"{median(each, 'gpu_mb'):.0f}" if device != "cpu" else "" for each in processes)
        table.append((device, str(num_envs), f"{ours:.0f}", f"{zero:.0f}", f"{ours - zero:.0f}", *gpu))
    memory = (f"MB with `{GR00T}`", f"with `{ZERO}`", "more", "GPU MB", f"with `{ZERO}`")
    return markdown_table(("device", "env slots", *memory), table)
