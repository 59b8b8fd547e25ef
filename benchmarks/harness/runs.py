"""Run programs to their end, above all the evaluation runner, and measure their CPU time and memory."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks.harness.workers import children, cpu_s, module

RUNNER = "isaaclab_arena.evaluation.eval_runner"


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Resources of a process from its start to its end."""

    began: float  # Start [s since the epoch].
    ended: float  # End [s since the epoch].
    cpu_s: float  # CPU time of the process and of the children that it has waited for [s].
    peak_mb: float  # Peak of its resident memory [MB].
    gpu_mb: float  # Peak of the GPU memory that all programs took meanwhile [MB]; 0 without a GPU.
    samples: Sequence[tuple[float, float]]  # Times [s since the epoch] and resident memory [MB].

    @property
    def wall_s(self) -> float:
        """Wall time [s]."""
        return self.ended - self.began

    def resident_mb(self, when: float) -> float:
        """Return the resident memory at a time in seconds since the epoch [MB]."""
        return max(sample for sample in self.samples if sample[0] <= when)[1]


def watched(
    command: Sequence[str],
    log: Path,
    variables: Mapping[str, str] | None = None,
    *,
    note: Callable[[], None] = lambda: None,
    interval_s: float = 0.05,
) -> Watched:
    """Run a command in the repository's root with its output in ``log``; call ``note`` every ``interval_s``."""
    began, before_mb = time.time(), _gpu_taken_mb()
    peak_mb, gpu_mb, samples = 0.0, before_mb, []
    with log.open("wb") as stream:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream)
        while True:
            # The kernel's peak of children that were waited for is that of this process, so it is read while it runs.
            lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
            fields = (line.split() for line in lines if line.startswith(("VmHWM:", "VmRSS:")))
            memory_mb = {name: int(kilobytes) * 1024 / 1e6 for name, kilobytes, _ in fields}
            peak_mb = max(peak_mb, memory_mb.get("VmHWM:", 0.0))
            if "VmRSS:" in memory_mb:
                samples.append((time.time(), memory_mb["VmRSS:"]))
            gpu_mb = max(gpu_mb, _gpu_taken_mb())
            note()
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(interval_s)
    ended, process.returncode = time.time(), os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        output = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {output}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Watched(began=began, ended=ended, cpu_s=cpu_s, peak_mb=peak_mb, gpu_mb=gpu_mb - before_mb, samples=samples)


def _gpu_taken_mb() -> float:
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6


def cpu_of_all_s() -> float:
    """Return the CPU time of this process and of its workers [s]."""
    return time.process_time() + sum(map(cpu_s, children()))


def evaluate(
    directory: Path,
    document: Mapping[str, Any],
    *options: str,
    ranks: int = 1,
    program: str = RUNNER,
    variables: Mapping[str, str] | None = None,
) -> Watched:
    """Run a job file in a process of its own, with torchrun if there are several ranks; the output is in ``out``."""
    directory.mkdir(parents=True, exist_ok=True)
    jobs = directory / "jobs.json"
    jobs.write_text(json.dumps(document), encoding="utf-8")
    launcher = ("torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m") if ranks > 1 else ()
    command = module(*launcher, program, "--eval_jobs_config", jobs, "--output_dir", directory / "out", *options)
    return watched(command, directory / "log.txt", variables)


def one_job(
    environment: Mapping[str, Any], policy_type: str, num_episodes: int, policy: Mapping[str, Any] | None = None,
    *, name: str = "job", **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a job file with one job."""
    job = {"name": name, "arena_env_args": dict(environment), "policy_type": policy_type, "num_episodes": num_episodes}
    return {"jobs": [{**job, **({} if policy is None else {"policy_config_dict": dict(policy)}), **more}]}


def job_results(directory: Path) -> list[dict[str, Any]]:
    """Return the results of all jobs of an evaluation in a directory."""
    return json.loads((directory / "out" / "results.json").read_text(encoding="utf-8"))["jobs"]


def job_reports(directory: Path) -> list[dict[str, Any]]:
    """Return the job reports of all ranks of an evaluation in a directory."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("out/*/job_report_*.json")]
