"""Measure what dividing rows into two groups gives: ``python benchmarks/pipeline.py``, where nothing else runs.

Whole runs of the program with a GR00T policy and cameras, with and without ``--pipeline 2``, in turn: asked once for
each chunk of actions, and asked in every control step. Writes benchmarks/results/pipeline.md.
"""

import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tyro
from gr00t_checkpoint import write_policy_yaml
from gr00t_jobs import GR00T, JobSize, Run, run_job

from isaaclab_arena.sim.threads import default_num_threads

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "pipeline.md"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        model_path: Folder of a checkpoint that fits ``panda_closedloop.yaml``.
        device: Where models and simulations run.
        environment: What the jobs run.
        backend: What simulates them.
        num_envs: Rows.
        episodes: Episodes for each row.
        num_threads: Threads of physics and pictures; by default as many as the program takes by itself.
        pairs: Runs of each kind.
        output: Where the table goes; by default the committed file.
    """

    model_path: Path = ROOT / "models" / "panda_tabletop"
    device: str = "cpu"
    environment: str = "lift_object"
    backend: str = "auto"
    num_envs: int = 16
    episodes: int = 2
    num_threads: int = default_num_threads()
    pairs: int = 5
    output: Path = RESULTS


def measured(options: Options, folder: Path) -> dict[bool, list[tuple[Run, Run]]]:
    """Return pairs of runs, without groups and with two, by whether the model is asked in every step."""
    yaml = write_policy_yaml(folder / "panda.yaml", options.model_path)
    pairs: dict[bool, list[tuple[Run, Run]]] = {False: [], True: []}
    for number in range(options.pairs):
        for every_step, found in pairs.items():
            size = JobSize(
                environment=options.environment,
                num_envs=options.num_envs,
                episodes_per_row=options.episodes,
                asks_every_step=every_step,
                backend=options.backend,
                num_threads=options.num_threads,
            )
            runs = {}
            for groups in (1, 2) if number % 2 else (2, 1):
                name = folder / f"{number}_{every_step}_{groups}"
                runs[groups] = run_job(name, yaml, size, GR00T, options.device, ["--pipeline", str(groups)])
            found.append((runs[1], runs[2]))
            print(f"{'every step' if every_step else 'chunks'}: {speed(runs[2]) / speed(runs[1]):.2f}", flush=True)
    return pairs


def speed(run: Run) -> float:
    """Return control steps of all rows per second of the job without building what it needs."""
    return run.env_steps / run.running_s


def table(pairs: dict[bool, list[tuple[Run, Run]]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| model asked | groups | control steps per s | policy s | render s | simulate s | CPU s | against one |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for every_step, found in pairs.items():
        ratios = sorted(speed(two) / speed(one) for one, two in found)
        against = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        for groups, runs in enumerate(zip(*found, strict=True), start=1):
            phases = [_median([run.phases_s[phase] for run in runs]) for phase in ("policy", "render", "simulate")]
            cells = (
                "in every step" if every_step else "for chunks of 8 steps",
                str(groups),
                f"{_median([speed(run) for run in runs]):,.0f}",
                *(f"{seconds:.1f}" for seconds in phases),
                f"{_median([run.cpu_s for run in runs]):.1f}",
                against if groups > 1 else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def command(options: Options) -> str:
    """Return the command line that measures the same."""
    words = ["python", "benchmarks/pipeline.py"]
    for name in ("device", "environment", "backend", "num_envs", "episodes", "num_threads", "pairs"):
        value = getattr(options, name)
        if value != getattr(Options(), name):
            words += [f"--{name}", str(value)]
    return " ".join(words)


def main(options: Options) -> None:
    """Measure, print the table and write it."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pipeline_") as name:
        lines = table(measured(options, Path(name)))
    print("\n".join(lines))
    text = f"""# Two groups of rows against one

    {command(options)}

{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the start, {datetime.now(UTC):%Y-%m-%d};
`{options.environment}` with {options.num_envs} rows and two cameras of 64 x 64 on `{options.device}`, backend
`{options.backend}`, {options.num_threads} threads for physics and pictures, one for torch. Figures are medians of
{options.pairs} runs; ratios are of pairs, with the smallest and the largest. With two groups `render` and
`simulate` are what the loop waited for.

"""
    options.output.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
