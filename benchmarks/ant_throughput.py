"""Measure control steps of Gymnasium's Ant per CPU second, beside Gymnasium's vector environments and EnvPool.

Usage: python benchmarks/ant_throughput.py [--rounds 9] [--envpool_folder DIR] [--output FILE]

Every system steps the same number of ants with the same random actions, observes them, rewards them and starts anew
those that have fallen; each in a process of its own and on one thread, except AsyncVectorEnv, which has a process per
ant. They take turns within one run, so a ratio is that of neighbours in time. CPU seconds count all processes and
threads of a system, and are the figure to quote on a noisy machine.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tyro

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ant_throughput.md"
LABELS = {
    "arena": "this package",
    "envpool": "EnvPool",
    "sync": "Gymnasium SyncVectorEnv",
    "async": "Gymnasium AsyncVectorEnv",
    "bare": "`mujoco.batch` alone, no observation and no reward",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        num_envs: Sizes of the batch.
        rounds: Turns of every system at every size.
        control_steps: Control steps of a turn, summed over the ants.
        async_up_to: Largest batch of AsyncVectorEnv, which needs a process for each ant.
        envpool_folder: Where EnvPool is, or is installed by pip if it is not; it never enters the project's own
            environment.
        output: Where the table goes; by default the committed one.
    """

    num_envs: tuple[int, ...] = (8, 64, 256)
    rounds: int = 9
    control_steps: int = 12800
    async_up_to: int = 64
    envpool_folder: Path = Path(tempfile.gettempdir()) / "envpool_for_ant_throughput"
    output: Path | None = None


@dataclass(kw_only=True)
class Measured:
    """What one system did at one size."""

    version: str
    per_cpu_s: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)


class System:
    """A system in its own process."""

    def __init__(self, name: str, num_envs: int, envpool_folder: Path) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        if name == "envpool":
            variables["PYTHONPATH"] = str(envpool_folder)
        command = [sys.executable, str(HERE / "ant_systems.py"), name, str(num_envs)]
        pipe = subprocess.PIPE
        self._name = f"{name} with {num_envs} ants"
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=variables, text=True)
        self._num_envs = num_envs
        self.measured = Measured(version=self._answer()["version"])

    def turn(self, seed: int, control_steps: int) -> None:
        """Step and note how fast that was."""
        num_steps = max(1, control_steps // self._num_envs)
        assert self._process.stdin is not None
        print(seed, num_steps, file=self._process.stdin, flush=True)
        answer = self._answer()
        self.measured.per_cpu_s.append(num_steps * self._num_envs / answer["cpu_s"])
        self.measured.per_s.append(num_steps * self._num_envs / answer["wall_s"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        return json.loads(line)


def installed_envpool(folder: Path) -> bool:
    """Return whether EnvPool is in its folder, after trying to install it there."""
    if not (folder / "envpool").is_dir():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "envpool"], check=False)
    return (folder / "envpool").is_dir()


def measure(num_envs: int, options: Options, names: list[str]) -> dict[str, Measured]:
    systems = {name: System(name, num_envs, options.envpool_folder) for name in names}
    for turn in range(options.rounds):
        for system in systems.values():
            system.turn(turn, options.control_steps)
    for system in systems.values():
        system.close()
    return {name: system.measured for name, system in systems.items()}


def rows(num_envs: int, measured: Mapping[str, Measured]) -> Iterator[str]:
    ours = measured["arena"].per_cpu_s
    for name, label in LABELS.items():
        if name not in measured:
            yield f"| {num_envs} | {label} | not run | | | |"
            continue
        theirs = measured[name].per_cpu_s
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        ratio = "" if name == "arena" else f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        per_cpu_s, per_s = statistics.median(theirs), statistics.median(measured[name].per_s)
        yield f"| {num_envs} | {label} | {per_cpu_s:,.0f} | {per_s:,.0f} | {ratio} | {measured[name].version} |"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(options: Options) -> None:
    load = os.getloadavg()[0]
    known = (
        list(LABELS) if installed_envpool(options.envpool_folder) else [name for name in LABELS if name != "envpool"]
    )
    table = [
        "| ants | system | control steps per CPU second | per second | this package against it | version |",
        "| ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for num_envs in options.num_envs:
        names = [name for name in known if name != "async" or num_envs <= options.async_up_to]
        for row in rows(num_envs, measure(num_envs, options, names)):
            print(row, flush=True)
            table.append(row)
    rows_of_table = "\n".join(table)
    text = f"""# Control steps of Gymnasium's Ant

    python benchmarks/ant_throughput.py --rounds {options.rounds}

{processor()}, {os.cpu_count()} cores, load average {load:.1f} at the start, Python {platform.python_version()},
{datetime.now(UTC):%Y-%m-%d}. Medians of {options.rounds} turns of {options.control_steps:,} control steps. Ratios
are of neighbouring turns, with the smallest and the largest.

{rows_of_table}

A control step is five physics steps of `ant.xml`, the observation of 105 numbers and the reward of Ant-v5. Each system
starts fallen ants anew. EnvPool brings a MuJoCo of its own. `benchmarks/ant_environment.py` says in which moments the
contact forces and the forward reward of this package's Ant differ from Gymnasium's.
"""
    output = options.output or RESULTS
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
