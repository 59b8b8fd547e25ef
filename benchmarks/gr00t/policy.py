"""Measure what a GR00T policy costs, where nothing else runs.

Six subjects, each with a table of its own: one query by batch size, precision and device; from a checkpoint's directory
to the first answer; a server instead of a model in the same process; where the time of a job goes; its memory; and for
how many env slots a model is asked. What is compared takes turns within one run, and figures are medians. CPU seconds
are those to quote on a noisy machine. Without ``--model_path`` the checkpoint is a fresh one of the usual size with
random weights: how long an answer takes does not depend on them.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.gr00t.checkpoint import save_random_checkpoint, write_policy_yaml
from benchmarks.gr00t.jobs import JobSize, memory_table, run_jobs, time_table
from benchmarks.gr00t.queries import latency_table, remote_table
from benchmarks.gr00t.requests import requests_table
from benchmarks.gr00t.start import start_table
from benchmarks.harness.pages import Page, PageOptions, run
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import CPU_SLOTS_PER_QUERY

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

REQUESTS_TEXT = f"""\
Episodes end as those of the scripted policy, so at different times. A model is asked for the env slots whose chunk is
used up: on a GPU for these alone, on a CPU in queries of {CPU_SLOTS_PER_QUERY} slots, filled up. "All slots" is what
asking for every slot at the same moments would have come to."""


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    # Directory of a checkpoint that fits `isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml`; by default
    # one with random weights is made.
    model_path: Path | None = None
    # Where models and simulations run; by default the CPU, and a GPU where there is one.
    devices: tuple[str, ...] = field(default_factory=_devices)
    batch_sizes: tuple[int, ...] = (1, 8, 64)  # Env slots of a query.
    num_envs: tuple[int, ...] = (8, 32)  # Env slots of a job whose time and memory are measured.
    counted_num_envs: tuple[int, ...] = (1, 8, 32)  # Env slots of a job whose queries are counted.
    environment: str = "lift_object"  # What the jobs run.
    repetitions: int = 15  # Queries of each kind.
    starts: int = 5  # Starts on each device.
    runs: int = 3  # Runs of each job.
    episodes: int = 1  # Episodes for each slot of a job whose time and memory are measured.
    counted_episodes: int = 8  # Episodes for each slot of a job whose queries are counted.
    # Devices on which the model is also compiled by torch, which takes minutes; by default a GPU.
    compiled_on: tuple[str, ...] = field(default_factory=lambda: _devices()[1:])
    num_threads: int = 1  # Threads of torch.


def main(options: Options) -> None:
    """Print the tables and write the page."""
    torch.set_num_threads(options.num_threads)
    page = Page("gr00t_policy", "What a GR00T policy costs", options, "torch", "transformers")
    with tempfile.TemporaryDirectory(prefix="gr00t_policy_") as name:
        directory = Path(name)
        if options.model_path is None:
            millions = save_random_checkpoint(directory / "checkpoint") / 1e6
            model = f"a fresh checkpoint of {millions:.1f} million parameters with random weights"
        else:
            model = f"the checkpoint `{options.model_path}`"
        sections = measure(directory, options.model_path or directory / "checkpoint", options)
    text = f"""\
The model is {model}. Torch has
{options.num_threads} thread{"s" if options.num_threads > 1 else ""}. Figures are medians of {options.repetitions} \
queries of each kind, {options.starts} starts, and {options.runs} runs of each job of `{options.environment}`."""
    page.write(text, *sections)


def measure(directory: Path, model_path: Path, options: Options) -> list[str]:
    """Measure everything, and print each section as soon as it is there."""
    yaml = write_policy_yaml(directory / "panda.yaml", model_path)
    blind = write_policy_yaml(directory / "blind.yaml", model_path, pov_cam_name_sim={})
    devices, repetitions = options.devices, options.repetitions
    sections: list[str] = []

    def add(title: str, text: str, table: Sequence[str]) -> None:
        sections.append("\n".join([f"## {title}", "", text, "", *table]))
        print(f"\n{sections[-1]}", flush=True)

    asked = {"devices": devices, "batch_sizes": options.batch_sizes, "repetitions": repetitions}
    add("One query", QUERY_TEXT, latency_table(yaml, compiled_on=options.compiled_on, **asked))
    starts = start_table(yaml, devices=devices, num_threads=options.num_threads, repetitions=options.starts)
    add("The start", START_TEXT, starts)
    add("A server instead", REMOTE_TEXT, remote_table(yaml, directory, **asked))
    sizes = [
        JobSize(environment=options.environment, num_envs=num_envs, episodes_per_slot=options.episodes)
        for num_envs in options.num_envs
    ]
    runs = run_jobs(directory, yaml, sizes, devices=devices, repetitions=options.runs)
    add("Where the time of a job goes", TIME_TEXT, time_table(runs))
    add("Memory of a rank", MEMORY_TEXT, memory_table(runs))
    requests = requests_table(
        blind, options.environment, num_envs=options.counted_num_envs, episodes_per_slot=options.counted_episodes
    )
    add("Env slots that are asked for", REQUESTS_TEXT, requests)
    return sections


if __name__ == "__main__":
    run(main, Options)
