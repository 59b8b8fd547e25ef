"""Run a program to its end and measure its CPU time and memory."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import ROOT

_LAST_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a process took from its start to its end."""

    began: float  # When it was started [s since the epoch].
    ended: float  # When it had ended [s since the epoch].
    cpu_s: float  # CPU time of the process and of the children that it has waited for [s].
    peak_mb: float  # Most memory that was resident at any time [MB].
    gpu_mb: float  # Most GPU memory that was taken while it ran, by all programs [MB]; 0 without a GPU.
    samples: Sequence[tuple[float, float]]  # Times [s since the epoch] and resident memory [MB].

    def resident_mb(self, when: float) -> float:
        """Return the memory that was resident at a time, in seconds since the epoch [MB]."""
        return max(sample for sample in self.samples if sample[0] <= when)[1]


def watched(
    command: Sequence[str],
    log: Path,
    variables: Mapping[str, str] | None = None,
    *,
    note: Callable[[], None] = lambda: None,
    interval_s: float = 0.05,
) -> Watched:
    """Run a command in the root of the repository and return what it took.

    Args:
        command: Program and arguments.
        log: File for its output.
        variables: Environment variables to add.
        note: Called again and again while the command runs.
        interval_s: Time between two looks at it [s].

    Raises:
        RuntimeError: It failed; with the end of its output.
    """
    began, before_mb = time.time(), _gpu_taken_mb()
    peak_mb, gpu_mb, samples = 0.0, before_mb, []
    with log.open("wb") as stream:
        environment = {**os.environ, **(variables or {})}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream)
        while True:
            # The kernel's peak of children that were waited for is that of this process, so it is read while it runs.
            memory = _status_mb(process.pid)
            peak_mb = max(peak_mb, memory.get("VmHWM", 0.0))
            if "VmRSS" in memory:
                samples.append((time.time(), memory["VmRSS"]))
            gpu_mb = max(gpu_mb, _gpu_taken_mb())
            note()
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(interval_s)
    ended, process.returncode = time.time(), os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        said = log.read_text(encoding="utf-8", errors="replace")[-_LAST_CHARACTERS:]
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said}")
    return Watched(
        began=began,
        ended=ended,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=peak_mb,
        gpu_mb=gpu_mb - before_mb,
        samples=samples,
    )


def cpu_of_all_s() -> float:
    """Return the CPU time of this process and of its workers [s]."""
    worker_ticks = 0
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in path.read_text(encoding="utf-8").split():
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            worker_ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + worker_ticks / 100


def _status_mb(pid: int) -> dict[str, float]:
    """Return what the kernel says of a process's memory [MB]; nothing for one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = (line.split() for line in lines if line.startswith(("VmHWM:", "VmRSS:")))
    return {name.rstrip(":"): int(kilobytes) * 1024 / 1e6 for name, kilobytes, _ in fields}


def _gpu_taken_mb() -> float:
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6
