"""Measure what recording costs beside the job that is recorded.

Runs the same episodes with and without a recording, in turn, in one process, with the physics on one thread, and
compares them: the CPU seconds in the recorder's own calls are the figure to quote on a noisy machine, because the runs
differ by more than a recording costs. A recording is all that ends
in the dataset: copying each control step, the episode files, their verification, and putting them into one file that is
flushed to disk. Without one there still are the commit lines, which are the results of a job. What a resumed run does
with episode files that a killed one has left is measured too.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.machine import memory_directory
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table
from benchmarks.harness.timing import in_turn, median, ratios, timed, values
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedJob, RecordingOptions
from isaaclab_arena.storage.recovery.job_diagnosis import PlannedEpisodes, diagnose
from isaaclab_arena.storage.recovery.job_repair import repair_job
from isaaclab_arena.storage.recovery.recorded_copies import read_recordings
from isaaclab_arena.storage.run.commits import read_commits

ENVIRONMENT = "lift_object"
POLICIES = ("scripted", "zero_action")
NUM_ENVS = (1, 8, 16)
PARTS = ("start", "step", "write", "consolidate")
JOB = "benchmark"


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    repeats: int = 25  # Pairs of runs of each line of the table.
    repairs: int = 3  # Runs of each line whose episodes are put together after a crash.
    episodes: int = 48  # Episodes of each run.
    policies: tuple[str, ...] = POLICIES  # Policies of the runs.
    num_envs: tuple[int, ...] = NUM_ENVS  # Numbers of env slots, with each policy.


@dataclass(kw_only=True)
class Run:
    """What one run took, and the CPU seconds of each call of the recorder in it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    calls_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})


class TimedRecorder(Observer):
    """Hands everything to a recorder and notes the CPU seconds of each call."""

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
    """Run episodes, and return what that took.

    Args:
        environment: Runs them.
        policy: Gives the actions.
        number: Number of episodes.
        records: Whether arrays are recorded.
    """
    found = Run()
    with tempfile.TemporaryDirectory(prefix="recording_overhead_", dir=memory_directory()) as name:
        recorder = make_recorder(Path(name), records=records)

        def record() -> None:
            rollout(environment, policy, episodes(number), [TimedRecorder(recorder, found)])
            found.calls_s["consolidate"].append(timed(recorder.consolidate).cpu_s)
            recorder.close()

        took = timed(record)
    found.cpu_s, found.wall_s = took.cpu_s, took.wall_s
    return found


def make_recorder(directory: Path, *, records: bool = True) -> EpisodeRecorder:
    """Return the recorder of a job, which has one attempt on one rank."""
    job = RecordedJob(
        name=JOB, rank=0, world_size=1, attempt=1, env_args={"env_name": ENVIRONMENT}, provenance={"config_hash": JOB}
    )
    return EpisodeRecorder(directory, job, RecordingOptions(write_dataset=records))


def repaired_s(environment: Environment, policy: PolicyBase, number: int) -> float:
    """Return the CPU seconds in which a resumed run checks what a killed one has left, and makes its dataset."""
    with tempfile.TemporaryDirectory(prefix="recording_overhead_", dir=memory_directory()) as name:
        directory = Path(name)
        recorder = make_recorder(directory)
        rollout(environment, policy, episodes(number), [recorder])
        recorder.close()
        expected = PlannedEpisodes(name=JOB, seed=0, num_episodes=number, config_hash=JOB)

        def repair() -> None:
            log = read_commits(directory, JOB, skip_unreadable=False)
            diagnosis = diagnose(expected, log, read_recordings(directory, JOB, log.lines))
            repair_job(directory, JOB, diagnosis)

        took = timed(repair)
        assert len(list(directory.glob("*.hdf5"))) == 1, "the episodes were not put into one dataset"
    return took.cpu_s


def percent(ratio: float) -> str:
    """Return by how much more than the other something took."""
    return f"{100 * (ratio - 1):.1f} %"


def measure(policy_type: str, num_envs: int, options: Options) -> tuple[str, ...]:
    """Return the figures of one line of the table."""
    environment, policy = build(ENVIRONMENT, num_envs), make_policy(policy_type)

    once = partial(run_once, environment, policy, options.episodes)
    runs = in_turn({records: partial(once, records=records) for records in (False, True)}, options.repeats, warm_up=1)
    repairs_s = [repaired_s(environment, policy, options.episodes) for _ in range(options.repairs)]
    environment.close()
    with_it, without = runs[True], runs[False]
    least_s = min(values(without, "cpu_s"))

    def part_s(part: str) -> float:
        """Return the CPU seconds of one part of recording: what it took more than without one, at the least."""
        return min(sum(run.calls_s[part]) for run in with_it) - min(sum(run.calls_s[part]) for run in without)

    of_step_s = statistics.median(call for run in with_it for call in run.calls_s["step"])
    return (
        f"{median(with_it, 'cpu_s'):.2f}",
        percent(1 + sum(map(part_s, PARTS)) / least_s),
        percent(min(values(with_it, "cpu_s")) / least_s),
        *(percent(statistics.median(ratios(with_it, without, unit))) for unit in ("cpu_s", "wall_s")),
        *(f"{1000 * each_s / options.episodes:.2f}" for each_s in (*map(part_s, PARTS), min(repairs_s))),
        f"{1e6 * of_step_s:.0f}",
    )


def main(options: Options) -> None:
    """Record episodes of either policy with several numbers of env slots, and write the page."""
    torch.set_num_threads(1)
    # As every run does.
    join_freed_memory_at_once()
    page = Page("recording_overhead", "What recording costs", options)
    overhead = ("CPU s", "overhead: its calls", "least", "CPU", "wall")
    parts = ("ms an episode: start", "steps", "write", "consolidate", "repair", "µs a step of the batch")
    table = Table("policy", "num_envs", *overhead, *parts)
    for policy_type in options.policies:
        for num_envs in options.num_envs:
            table.add(policy_type, num_envs, *measure(policy_type, num_envs, options))
    text = f"""\
`{ENVIRONMENT}`, physics on one thread, no cameras, no compression, {options.episodes} episodes a run.

Overhead of a recording: `its calls` is the CPU time of the recorder's own calls, as a part of the CPU time of the run
without a recording. The other three compare whole runs: `least` the CPU seconds of those that other programs disturbed
least, `CPU` and `wall` are medians over {options.repeats} pairs of neighbouring runs. The parts are CPU times, of which
`write` is what the end of an episode costs more than without a recording. In a run of several jobs `consolidate`
happens while the next job runs. `repair` is what takes its place in a run that is resumed after it was killed: every
episode file is read and checked, and all are put into one."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
