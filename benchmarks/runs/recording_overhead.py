"""Measure the cost of a recording beside its job.

Runs the same episodes with and without a recording, in turn in the same processes, with the physics on one thread.
Quote the CPU seconds of the recorder's own calls on a noisy machine, because runs differ by more than a recording
costs. A recording is all that ends in the dataset: copies of control steps, episode files, their verification, and one
file that is flushed to disk. Commit lines are there without one too.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.measure import (
    Page,
    PageOptions,
    Table,
    in_turn,
    median,
    memory_directory,
    ratios,
    run,
    timed,
    values,
)
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.recording.recorder import EpisodeRecorder

ENVIRONMENT = "lift_object"
POLICIES = ("scripted", "zero_action")
NUM_ENVS = (1, 8, 16)
WHILE_EPISODES_RUN = ("start", "step", "write")
PARTS = (*WHILE_EPISODES_RUN, "consolidate")
JOB = "benchmark"


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    processes: int = 15  # Processes for each line of the table, one after the other.
    repeats: int = 3  # Pairs of runs in each of them.
    episodes: int = 48  # Episodes of each run.
    policies: tuple[str, ...] = POLICIES  # Policies of the runs.
    num_envs: tuple[int, ...] = NUM_ENVS  # Numbers of env slots, with each policy.


@dataclass(kw_only=True)
class Run:
    """CPU seconds of a run's episodes, and of each call of the recorder."""

    cpu_s: float = 0.0  # CPU time of the episodes [s].
    wall_s: float = 0.0  # Their wall time [s].
    alone_s: float = 0.0  # Wall time of them and of `consolidate`, in sequence [s].
    # CPU time of each call of the recorder [s], by the part of recording.
    calls_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})


class TimedRecorder(Observer):
    """Passes everything to a recorder and notes the CPU seconds of each call."""

    def __init__(self, recorder: EpisodeRecorder, run: Run) -> None:
        self._recorder = recorder
        self._calls_s = run.calls_s

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Time the start of episodes."""
        self._time("start", self._recorder.on_episode_start, environment, starts, observation)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Time a control step."""
        self._time("step", self._recorder.on_step, environment, transition)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Time the writing of an episode."""
        self._time("write", self._recorder.on_episode_end, environment, record)

    def _time(self, part: str, call: Callable[..., None], *event: Any) -> None:
        begin = time.thread_time()
        call(*event)
        self._calls_s[part].append(time.thread_time() - begin)


def run_once(environment: Environment, policy: PolicyBase, number: int, *, records: bool) -> Run:
    """Run episodes, and return their time."""
    found = Run()
    with tempfile.TemporaryDirectory(prefix="recording_overhead_", dir=memory_directory()) as name:
        recorder = make_recorder(Path(name), records=records)
        took = timed(lambda: rollout(environment, policy, episodes(number), [TimedRecorder(recorder, found)]))
        consolidated = timed(recorder.consolidate)
        recorder.close()
    found.calls_s["consolidate"].append(consolidated.cpu_s)
    found.cpu_s, found.wall_s, found.alone_s = took.cpu_s, took.wall_s, took.wall_s + consolidated.wall_s
    return found


def make_recorder(directory: Path, *, records: bool = True) -> EpisodeRecorder:
    """Return the recorder of a job with one attempt on one rank."""
    return EpisodeRecorder(
        directory,
        job=JOB,
        rank=0,
        world_size=1,
        attempt=1,
        env_args={"env_name": ENVIRONMENT},
        provenance={"config_hash": JOB},
        write_dataset=records,
    )


def percent(ratio: float) -> str:
    """Return a ratio as a difference in percent."""
    return f"{100 * (ratio - 1):.1f} %"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Runs of one line of the table, those with and those without a recording in pairs."""

    recorded: Sequence[Run]
    unrecorded: Sequence[Run]


def measured_here(policy_type: str, num_envs: int, options: Options) -> Measured:
    """Make the runs of one line in this process."""
    torch.set_num_threads(1)
    # As every run does.
    join_freed_memory_at_once()
    environment, policy = build(ENVIRONMENT, num_envs), make_policy(policy_type)
    once = partial(run_once, environment, policy, options.episodes)
    runs = in_turn({records: partial(once, records=records) for records in (False, True)}, options.repeats, warm_up=1)
    environment.close()
    return Measured(recorded=runs[True], unrecorded=runs[False])


def measured(policy_type: str, num_envs: int, options: Options) -> list[Measured]:
    """Make the runs of one line in several processes, because a process's memory layout changes its runs."""
    found: list[Measured] = []
    for _ in range(options.processes):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            found.append(process.submit(measured_here, policy_type, num_envs, options).result())
    return found


def overheads(processes: Sequence[Measured], unit: str) -> list[float]:
    """Return the median ratio with a recording to without one in each process."""
    return [statistics.median(ratios(each.recorded, each.unrecorded, unit)) for each in processes]


def figures(processes: Sequence[Measured], options: Options) -> tuple[str, ...]:
    """Return the figures of one line of the table."""
    with_it = [run for each in processes for run in each.recorded]
    without = [run for each in processes for run in each.unrecorded]

    def part_s(part: str) -> float:
        """Return the least CPU seconds of one part of recording beyond those without a recording."""
        return min(sum(run.calls_s[part]) for run in with_it) - min(sum(run.calls_s[part]) for run in without)

    of_step_s = statistics.median(call for run in with_it for call in run.calls_s["step"])
    wall = overheads(processes, "wall_s")
    low, _, high = statistics.quantiles(wall, n=4, method="inclusive") if len(wall) > 1 else wall * 3
    return (
        f"{median(with_it, 'cpu_s'):.2f}",
        percent(1 + sum(map(part_s, WHILE_EPISODES_RUN)) / min(values(without, "cpu_s"))),
        percent(statistics.median(overheads(processes, "cpu_s"))),
        percent(statistics.median(wall)),
        f"{percent(low)} to {percent(high)}",
        percent(statistics.median(overheads(processes, "alone_s"))),
        *(f"{1000 * each_s / options.episodes:.2f}" for each_s in map(part_s, PARTS)),
        f"{1e6 * of_step_s:.0f}",
    )


def main(options: Options) -> None:
    """Record episodes of either policy with several numbers of env slots, and write the page."""
    page = Page("recording_overhead", "What recording costs", options)
    overhead = ("CPU s", "overhead: its calls", "CPU", "wall", "half of the processes", "wall, one job alone")
    parts = ("ms an episode: start", "steps", "write", "consolidate", "µs a step of the batch")
    table = Table("policy", "num_envs", *overhead, *parts)
    for policy_type in options.policies:
        for num_envs in options.num_envs:
            table.add(policy_type, num_envs, *figures(measured(policy_type, num_envs, options), options))
    text = f"""\
`{ENVIRONMENT}`, physics on one thread, no cameras, no compression, {options.episodes} episodes a run.

Overhead of a recording: `its calls` is the CPU time of the recorder's own calls, as a part of the CPU time of the run
without a recording. The others compare all that happens while episodes run. Each process gives a median over
{options.repeats} pairs of neighbouring runs; the columns are medians over {options.processes} processes, and half of
them lie between those of `half of the processes`. What happens after the episodes, `consolidate`, is done while the
next job runs; `wall, one job alone` has it too, because a job that has none behind it waits for it. The parts are CPU
times, of which `write` is what the end of an episode costs more than without a recording."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
