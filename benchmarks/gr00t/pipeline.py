"""Measure the gain of two groups of env slots, on a machine without other programs.

Whole runs of the program with a GR00T policy and cameras, with and without ``--pipeline 2``, in turn: asked once for
each chunk of actions, and asked in every control step.
"""

import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import ROOT
from benchmarks.gr00t.checkpoint import write_policy_yaml
from benchmarks.gr00t.policy import GR00T, JobSize, Run, run_job
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, median, ratios, run, spread
from isaaclab_arena.distributed.devices import default_num_threads


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    # Directory of a checkpoint that fits ``panda_closedloop.yaml``.
    model_path: Path = ROOT / "models" / "panda_tabletop"
    device: str = "cpu"  # Device of models and simulations.
    environment: str = "lift_object"  # Environment of the jobs.
    backend: str = "auto"  # Backend of the environment.
    num_envs: int = 16  # Env slots.
    episodes: int = 2  # Episodes for each slot.
    # Threads of physics and pictures; by default those of the program.
    num_threads: int = default_num_threads()
    pairs: int = 5  # Runs of each kind.


def measure(options: Options, directory: Path) -> dict[tuple[bool, int], list[Run]]:
    """Return runs by (query in every step, number of groups)."""
    yaml = write_policy_yaml(directory / "panda.yaml", options.model_path)
    numbers = count()

    def once(groups: int, *, every_step: bool) -> Run:
        size = JobSize(
            environment=options.environment,
            num_envs=options.num_envs,
            episodes_per_slot=options.episodes,
            asks_every_step=every_step,
            backend=options.backend,
            num_threads=options.num_threads,
        )
        name = directory / f"run_{next(numbers)}"
        return run_job(name, yaml, size, GR00T, options.device, ["--pipeline", str(groups)])

    kinds = [(every_step, groups) for every_step in (False, True) for groups in (1, 2)]
    calls = {(every_step, groups): partial(once, groups, every_step=every_step) for every_step, groups in kinds}
    return in_turn(calls, options.pairs)


def main(options: Options) -> None:
    """Measure, print the table and write the page."""
    page = Page("pipeline", "Two groups of env slots against one", options)
    with tempfile.TemporaryDirectory(prefix="pipeline_") as name:
        runs = measure(options, Path(name))
    figures = ("control steps per s", "policy s", "render s", "simulate s", "CPU s", "against one")
    table = Table("model asked", "groups", *figures)
    for (every_step, groups), found in runs.items():
        phases = ("policy", "render", "simulate")
        seconds = (statistics.median(each.phases_s[phase] for each in found) for phase in phases)
        table.add(
            "in every step" if every_step else "for chunks of 8 steps",
            groups,
            f"{median(found, 'speed'):,.0f}",
            *(f"{each:.1f}" for each in (*seconds, median(found, "cpu_s"))),
            spread(ratios(found, runs[every_step, 1], "speed")) if groups > 1 else "",
        )
    text = f"""\
`{options.environment}` with {options.num_envs} env slots and two cameras of 64 x 64 on `{options.device}`, backend
`{options.backend}`, {options.num_threads} threads for physics and pictures, one for torch. Figures are medians of
{options.pairs} runs; ratios are of pairs, with the smallest and the largest. With two groups `render` and
`simulate` are what the loop waited for."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
