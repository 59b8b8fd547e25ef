"""Measure what a GR00T policy costs: ``python benchmarks/gr00t_policy.py``, where nothing else runs.

Six subjects, each with a table of its own: one query by rows, precision and device; from a checkpoint's folder to the
first answer; a server instead of a model in the same process; where the time of a job goes; its memory; and how many
rows are asked for. What is compared takes turns within one run, and figures are medians. CPU seconds are those to quote
on a noisy machine. Without ``--model_path`` the checkpoint is a fresh one of the usual size with random weights: how
long an answer takes does not depend on them.
"""

import dataclasses
import os
import platform
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
import tyro
from gr00t_checkpoint import save_random_checkpoint, write_policy_yaml
from gr00t_jobs import JobSize, memory_table, run_jobs, time_table
from gr00t_queries import latency_table, remote_table
from gr00t_rows import rows_table
from gr00t_start import start_table

from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import CPU_ROWS_PER_QUERY

RESULTS = Path(__file__).parent / "results" / "gr00t_policy.md"

QUERY_TEXT = """\
`Gr00tPolicy.get_action`, with pictures of 64 x 64 from two cameras, preparation and noise included. `times float32` is
the median of ratios to the neighbouring query with float32 weights. A policy takes float32 on a CPU and bfloat16 on a
GPU. "Compiled" is what the job's option `compile_model` gives: `torch.compile` of the steps of the flow."""

START_TEXT = """\
Each start is a process of its own, with all files in the disk's cache. The runner imports torch in any case."""

REMOTE_TEXT = """\
`gr00t_closedloop` asks in this process, `gr00t_remote_closedloop` a `gr00t-server` on the loopback; both ask the same
checkpoint, in turn. `more` is the median of differences, `times` that of ratios."""

TIME_TEXT = """\
Whole runs of the program, with two cameras of 64 x 64 and a dataset of states, physics on one thread. Shares are those
of `timing.csv` in a job's time without building; the rest is the loop itself. CPU seconds are those of the process with
its start and its tables."""

MEMORY_TEXT = """\
The most that the process of the same runs held at any time: resident, with its tables, and on a GPU all that was taken
of it while the process ran."""

ROWS_TEXT = f"""\
Episodes end as those of the scripted policy, so at different times. A model is asked for the rows whose chunk is used
up: on a GPU for these alone, on a CPU in queries of {CPU_ROWS_PER_QUERY} rows, filled up. "All rows" is what asking for
every row at the same moments would have come to."""


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        model_path: Folder of a checkpoint that fits `isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml`; by
            default one with random weights is made.
        devices: Where models and simulations run; by default the CPU, and a GPU where there is one.
        batch_sizes: Rows of a query.
        num_envs: Rows of a job whose time and memory are measured.
        counted_num_envs: Rows of a job whose queries are counted.
        environment: What the jobs run.
        repetitions: Queries of each kind.
        starts: Starts on each device.
        runs: Runs of each job.
        episodes: Episodes for each row of a job whose time and memory are measured.
        counted_episodes: Episodes for each row of a job whose queries are counted.
        compiled_on: Devices on which the model is also compiled by torch, which takes minutes; by default a GPU.
        num_threads: Threads of torch.
        output: Where the tables go; by default the committed file.
    """

    model_path: Path | None = None
    devices: tuple[str, ...] = field(default_factory=_devices)
    batch_sizes: tuple[int, ...] = (1, 8, 64)
    num_envs: tuple[int, ...] = (8, 32)
    counted_num_envs: tuple[int, ...] = (1, 8, 32)
    environment: str = "lift_object"
    repetitions: int = 15
    starts: int = 5
    runs: int = 3
    episodes: int = 1
    counted_episodes: int = 8
    compiled_on: tuple[str, ...] = field(default_factory=lambda: _devices()[1:])
    num_threads: int = 1
    output: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table, and what it says.

    Attributes:
        title: Its heading.
        text: What stands above the table.
        table: Its lines.
    """

    title: str
    text: str
    table: Sequence[str]


def main(options: Options) -> None:
    """Print the tables and write them."""
    load = os.getloadavg()[0]
    torch.set_num_threads(options.num_threads)
    with tempfile.TemporaryDirectory(prefix="gr00t_policy_") as name:
        folder = Path(name)
        if options.model_path is None:
            millions = save_random_checkpoint(folder / "checkpoint") / 1e6
            model = f"a fresh checkpoint of {millions:.1f} million parameters with random weights"
        else:
            model = f"the checkpoint `{options.model_path}`"
        sections = measured(folder, options.model_path or folder / "checkpoint", options)
    write_results(sections, options, model=model, load=load)


def measured(folder: Path, model_path: Path, options: Options) -> list[Section]:
    """Measure everything, and print each table as soon as it is there."""
    yaml = write_policy_yaml(folder / "panda.yaml", model_path)
    blind = write_policy_yaml(folder / "blind.yaml", model_path, pov_cam_name_sim={})
    sections: list[Section] = []

    def add(title: str, text: str, table: Sequence[str]) -> None:
        sections.append(Section(title=title, text=text, table=table))
        print("\n".join([f"\n{title}\n", *table]), flush=True)

    queries = latency_table(
        yaml,
        devices=options.devices,
        batch_sizes=options.batch_sizes,
        repetitions=options.repetitions,
        compiled_on=options.compiled_on,
    )
    add("One query", QUERY_TEXT, queries)
    threads, starts = options.num_threads, options.starts
    add("The start", START_TEXT, start_table(yaml, devices=options.devices, num_threads=threads, repetitions=starts))
    served = remote_table(
        yaml, folder, devices=options.devices, batch_sizes=options.batch_sizes, repetitions=options.repetitions
    )
    add("A server instead", REMOTE_TEXT, served)
    sizes = [
        JobSize(environment=options.environment, num_envs=num_envs, episodes_per_row=options.episodes)
        for num_envs in options.num_envs
    ]
    runs = run_jobs(folder, yaml, sizes, devices=options.devices, repetitions=options.runs)
    add("Where the time of a job goes", TIME_TEXT, time_table(runs))
    add("Memory of a rank", MEMORY_TEXT, memory_table(runs))
    rows = rows_table(
        blind, options.environment, num_envs=options.counted_num_envs, episodes_per_row=options.counted_episodes
    )
    add("Rows that are asked for", ROWS_TEXT, rows)
    return sections


def write_results(sections: Sequence[Section], options: Options, *, model: str, load: float) -> None:
    """Write the tables with the command and the machine."""
    parts = [f"## {section.title}\n\n{section.text}\n\n" + "\n".join(section.table) for section in sections]
    tables = "\n\n".join(parts)
    jobs = f"{options.runs} runs of each job of `{options.environment}`"
    counts = f"{options.repetitions} queries of each kind, {options.starts} starts, and {jobs}"
    text = f"""# What a GR00T policy costs

    {command(options)}

{machine()}, load average {load:.1f} at the start, {datetime.now(UTC):%Y-%m-%d}.

The model is {model}. Torch has
{options.num_threads} thread{"s" if options.num_threads > 1 else ""}. Figures are medians of {counts}.

{tables}
"""
    (options.output or RESULTS).write_text(text, encoding="utf-8")


def command(options: Options) -> str:
    """Return the command line that measures the same."""
    words = ["python", "benchmarks/gr00t_policy.py"]
    for option in dataclasses.fields(options):
        value, usual = getattr(options, option.name), getattr(Options(), option.name)
        if value != usual and option.name != "output":
            words += _words(option.name, value)
    return shlex.join(words)


def _words(name: str, value: object) -> list[str]:
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]


def machine() -> str:
    """Return which processors this machine has, and the versions that matter."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processors = [f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"]
    if torch.cuda.is_available():
        processors.append(torch.cuda.get_device_name())
    versions = [f"torch {torch.__version__}", f"transformers {metadata.version('transformers')}"]
    return ", ".join([*processors, platform.system(), *versions])


if __name__ == "__main__":
    main(tyro.cli(Options))
