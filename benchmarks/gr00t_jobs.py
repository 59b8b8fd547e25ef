"""Where the time and the memory of a job with a GR00T policy go, beside the same job with actions that are zero."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

ROOT = Path(__file__).parents[1]
PHASES = ("policy", "render", "simulate", "record", "idle")
GR00T, ZERO = "gr00t_closedloop", "zero_action"
_SAMPLE_INTERVAL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """What a job runs.

    Attributes:
        environment: Its name.
        num_envs: Its rows.
        episodes_per_row: Episodes for each of them.
        camera_size: Edge of the pictures [px].
        asks_every_step: Whether the model is asked in every control step instead of once for each chunk.
        backend: What simulates.
        num_threads: Threads of physics and pictures.
    """

    environment: str
    num_envs: int
    episodes_per_row: int
    camera_size: int = 64
    asks_every_step: bool = False
    backend: str = "auto"
    num_threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the program with one job took.

    Attributes:
        build_s: Building environment and policy [s].
        phases_s: Phase to its wall time [s]; ``idle`` is what belongs to no other.
        env_steps: Control steps of all rows.
        cpu_s: CPU time of the whole process, from its start to its end [s].
        resident_mb: The most that was resident at any time [MB].
        gpu_mb: The most that was taken of the GPU while it ran, by all that ran on it [MB]; 0 without one.
    """

    build_s: float
    phases_s: dict[str, float]
    env_steps: int
    cpu_s: float
    resident_mb: float
    gpu_mb: float

    @property
    def running_s(self) -> float:
        """Wall time of the job without building what it needs [s]."""
        return sum(self.phases_s.values())


def run_job(
    folder: Path, yaml: str, size: JobSize, policy_type: str, device: str, more_options: Sequence[str] = ()
) -> Run:
    """Run a job in a process of its own, as a user does, with one thread of torch."""
    arguments = {
        "environment": size.environment,
        "num_envs": size.num_envs,
        "enable_cameras": True,
        "camera_size": size.camera_size,
        "backend": size.backend,
    }
    job = {
        "name": "job",
        "arena_env_args": arguments,
        "num_episodes": size.num_envs * size.episodes_per_row,
        "policy_type": policy_type,
        "policy_config_dict": _policy_options(yaml, size) if policy_type == GR00T else {},
    }
    folder.mkdir()
    jobs, output = folder / "jobs.json", folder / "out"
    jobs.write_text(json.dumps({"jobs": [job]}))
    command = [sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner", "--eval_jobs_config", str(jobs)]
    options = ["--output_dir", str(output), "--device", device, "--policy_device", device]
    threads = ["--num_threads", str(size.num_threads)]
    process = _watched([*command, *options, *threads, *more_options], folder / "log.txt")
    row = pd.read_csv(output / "timing.csv").iloc[0]
    return Run(
        build_s=float(row["build_s"]),
        phases_s={phase: float(row[f"{phase}_s"]) for phase in PHASES},
        env_steps=int(row["env_steps"]),
        cpu_s=process.cpu_s,
        resident_mb=process.resident_mb,
        gpu_mb=process.gpu_mb,
    )


def _policy_options(yaml: str, size: JobSize) -> dict[str, object]:
    options: dict[str, object] = {"policy_config_yaml_path": yaml}
    return options | ({"temporal_ensemble_coeff": 0.01} if size.asks_every_step else {})


@dataclass(frozen=True, kw_only=True)
class _Process:
    cpu_s: float
    resident_mb: float
    gpu_mb: float


def _watched(command: Sequence[str], log: Path) -> _Process:
    """Run a command to its end, and return what it took."""
    before_mb = _gpu_taken_mb()
    resident_mb, gpu_mb = 0.0, before_mb
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)
        while True:
            # The kernel's own record of the peak is that of this process, from which the other one was made.
            resident_mb = _resident_peak_mb(process.pid) or resident_mb
            gpu_mb = max(gpu_mb, _gpu_taken_mb())
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(_SAMPLE_INTERVAL_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text[-2000:]}")
    return _Process(cpu_s=usage.ru_utime + usage.ru_stime, resident_mb=resident_mb, gpu_mb=gpu_mb - before_mb)


def _resident_peak_mb(pid: int) -> float:
    """Return the most that a process has held so far [MB], 0 for one that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _gpu_taken_mb() -> float:
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6


Runs = dict[tuple[str, int, str], list[Run]]
"""Device, rows and policy to their runs."""


def run_jobs(folder: Path, yaml: str, sizes: Sequence[JobSize], *, devices: Sequence[str], repetitions: int) -> Runs:
    """Run the jobs of all sizes with either policy in turn."""
    runs: Runs = {}
    for repetition in range(repetitions):
        for device in devices:
            for size in sizes:
                for policy_type in (GR00T, ZERO) if repetition % 2 else (ZERO, GR00T):
                    name = f"{device}_{size.num_envs}_{policy_type}_{repetition}"
                    run = run_job(folder / name, yaml, size, policy_type, device)
                    runs.setdefault((device, size.num_envs, policy_type), []).append(run)
    return {key: runs[key] for key in sorted(runs)}


def time_table(runs: Runs) -> list[str]:
    """Return the lines of the table of where the time goes."""
    shares = " | ".join("rest" if phase == "idle" else phase for phase in PHASES)
    lines = [
        f"| device | rows | job with | build s | run s | {shares} | control steps per s | CPU s, whole process |",
        f"| --- | ---: | --- | ---: | ---: |{' ---: |' * len(PHASES)} ---: | ---: |",
    ]
    for (device, num_envs, policy_type), each in runs.items():
        cells = [
            f"{100 * statistics.median(run.phases_s[phase] / run.running_s for run in each):.1f} %" for phase in PHASES
        ]
        build_s, running_s, cpu_s = (
            statistics.median(getattr(run, name) for run in each) for name in ("build_s", "running_s", "cpu_s")
        )
        speed = statistics.median(run.env_steps / run.running_s for run in each)
        lines.append(
            f"| {device} | {num_envs} | `{policy_type}` | {build_s:.1f} | {running_s:.1f} | {' | '.join(cells)} "
            f"| {speed:,.0f} | {cpu_s:.1f} |"
        )
    return lines


def memory_table(runs: Runs) -> list[str]:
    """Return the lines of the table of peaks."""
    lines = [
        "| device | rows | MB with `gr00t_closedloop` | with `zero_action` | more | GPU MB | with `zero_action` |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for device, num_envs in sorted({(device, num_envs) for device, num_envs, _ in runs}):
        peaks = {
            (policy, part): statistics.median(getattr(run, part) for run in runs[device, num_envs, policy])
            for policy in (GR00T, ZERO)
            for part in ("resident_mb", "gpu_mb")
        }
        gpu = [f"{peaks[policy, 'gpu_mb']:.0f}" if device != "cpu" else "" for policy in (GR00T, ZERO)]
        ours, zero = peaks[GR00T, "resident_mb"], peaks[ZERO, "resident_mb"]
        lines.append(f"| {device} | {num_envs} | {ours:.0f} | {zero:.0f} | {ours - zero:.0f} | {' | '.join(gpu)} |")
    return lines
