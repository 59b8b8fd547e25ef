"""Measure control steps of Gymnasium's Ant per CPU second, beside Gymnasium's vector environments and EnvPool.

Every system steps the same number of ants with the same random actions, observes and rewards them, and resets fallen
ants; each in a process of its own and on one thread, except AsyncVectorEnv with a process per ant. They take turns
within one run, so a ratio is that of neighbours in time. CPU seconds count all processes and threads of a system; quote
them on a noisy machine.
"""

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, median, ratios, run, spread
from benchmarks.harness.workers import Worker, module

ARENA = "arena"
LABELS = {
    ARENA: "this package",
    "envpool": "EnvPool",
    "sync": "Gymnasium SyncVectorEnv",
    "async": "Gymnasium AsyncVectorEnv",
    "bare": "`mujoco.batch` alone, no observation and no reward",
}
NOTES = """\
A control step is five physics steps of `ant.xml`, the observation of 105 numbers and the reward of Ant-v5. Each system
starts fallen ants anew. EnvPool brings a MuJoCo of its own. `benchmarks/simulation/ant_environment.py` says in which
moments the contact forces and the forward reward of this package's Ant differ from Gymnasium's."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: tuple[int, ...] = (8, 64, 256)  # Sizes of the batch.
    rounds: int = 9  # Turns of every system at every size.
    control_steps: int = 12800  # Control steps of a turn, summed over the ants.
    async_up_to: int = 64  # Largest batch of AsyncVectorEnv, which needs a process for each ant.
    # Directory of EnvPool, into which pip installs it if necessary; it never enters the project's own environment.
    envpool_directory: Path = Path(tempfile.gettempdir()) / "envpool_for_ant_throughput"


class System:
    """A system in its own process."""

    def __init__(self, name: str, num_envs: int, options: Options) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        if name == "envpool":
            variables["PYTHONPATH"] = str(options.envpool_directory)
        self._worker = Worker(module("benchmarks.simulation.ant_systems", name, num_envs), variables)
        self._seeds = itertools.count()
        self._num_steps = max(1, options.control_steps // num_envs)
        self.version = self._worker.answer()["version"]
        self.close = self._worker.close

    def turn(self) -> Timing:
        """Make the steps of a turn."""
        self._worker.ask(next(self._seeds), self._num_steps)
        return Timing(**self._worker.answer())


def installed_envpool(directory: Path) -> bool:
    """Return if EnvPool is in its directory, after an attempt to install it there."""
    if not (directory / "envpool").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory), "envpool"]
        subprocess.run(command, check=False)
    return (directory / "envpool").is_dir()


def measure(num_envs: int, names: Sequence[str], options: Options, table: Table) -> None:
    """Measure systems in turn, and add their lines to the table."""
    systems = {name: System(name, num_envs, options) for name in names}
    taken = in_turn({name: system.turn for name, system in systems.items()}, options.rounds)
    num_steps = num_envs * max(1, options.control_steps // num_envs)
    for name, label in LABELS.items():
        if name not in systems:
            table.add(num_envs, label, "not run", "", "", "")
            continue
        systems[name].close()
        per_cpu_s, per_s = (num_steps / median(taken[name], clock) for clock in ("cpu_s", "wall_s"))
        against = "" if name == ARENA else spread(ratios(taken[name], taken[ARENA], "cpu_s"))
        table.add(num_envs, label, f"{per_cpu_s:,.0f}", f"{per_s:,.0f}", against, systems[name].version)


def main(options: Options) -> None:
    """Measure every size of the batch, and write the page."""
    page = Page("ant_throughput", "Control steps of Gymnasium's Ant", options)
    known = [name for name in LABELS if name != "envpool" or installed_envpool(options.envpool_directory)]
    speeds = ("control steps per CPU second", "per second", "this package against it")
    table = Table("ants", "system", *speeds, "version", words=2)
    for num_envs in options.num_envs:
        names = [name for name in known if name != "async" or num_envs <= options.async_up_to]
        measure(num_envs, names, options, table)
    text = f"""\
Medians of {options.rounds} turns of {options.control_steps:,} control steps. Ratios are of neighbouring turns, with the
smallest and the largest."""
    page.write(text, table, NOTES)


if __name__ == "__main__":
    run(main, Options)
