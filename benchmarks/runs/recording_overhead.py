"""Measure what recording costs beside the job that is recorded.

Runs the same episodes with and without a recording, in turn, in one process, with the physics on one thread, and
compares them: the least CPU seconds of either are the figure to quote on a noisy machine. A recording is all that ends
in the dataset: copying each control step, the episode files, their verification, and putting them into one file that is
flushed to disk. Without one there still are the commit lines, which are the results of a job.
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
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedJob, RecordingOptions

ENVIRONMENT = "lift_object"
POLICIES = ("scripted", "zero_action")
NUM_ENVS = (1, 8, 16)
PARTS = ("start", "step", "write", "consolidate")
ROUNDS_PER_DETAIL = 3
"""Rounds for each one in which the parts of recording are timed too."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    repeats: int = 9  # Pairs of runs of each line of the table.
    episodes: int = 48  # Episodes of each run.


@dataclass(kw_only=True)
class Run:
    """What one run took, and how long each call of the recorder took in it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    calls_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})


class TimedRecorder(Observer):
    """Hands everything to a recorder and notes how long each call takes."""

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
        begin = time.perf_counter()
        call(*event)
        self._calls_s[part].append(time.perf_counter() - begin)


def run_once(environment: Environment, policy: PolicyBase, number: int, *, records: bool, detailed: bool) -> Run:
    """Run episodes, and return what that took.

    Args:
        environment: Runs them.
        policy: Gives the actions.
        number: Number of episodes.
        records: Whether arrays are recorded.
        detailed: Whether to time the parts of recording, which costs something itself.
    """
    found = Run()
    with tempfile.TemporaryDirectory(prefix="recording_overhead_", dir=memory_directory()) as name:
        job = RecordedJob(name="overhead", rank=0, world_size=1, attempt=1, env_args={"env_name": ENVIRONMENT})
        recorder = EpisodeRecorder(Path(name), job, RecordingOptions(write_dataset=records))
        observer = TimedRecorder(recorder, found) if detailed else recorder

        def record() -> None:
            rollout(environment, policy, episodes(number), [observer])
            found.calls_s["consolidate"].append(timed(recorder.consolidate).wall_s)
            recorder.close()

        took = timed(record)
    found.cpu_s, found.wall_s = took.cpu_s, took.wall_s
    return found


def percent(ratio: float) -> str:
    """Return by how much more than the other something took."""
    return f"{100 * (ratio - 1):.1f} %"


def measure(policy_type: str, num_envs: int, options: Options) -> tuple[str, ...]:
    """Return the figures of one line of the table."""
    environment, policy = build(ENVIRONMENT, num_envs), make_policy(policy_type)

    def calls(*, detailed: bool) -> dict[bool, partial[Run]]:
        once = partial(run_once, environment, policy, options.episodes, detailed=detailed)
        return {records: partial(once, records=records) for records in (False, True)}

    runs = in_turn(calls(detailed=False), options.repeats, warm_up=1)
    details = in_turn(calls(detailed=True), max(1, options.repeats // ROUNDS_PER_DETAIL))
    environment.close()

    def call_s(part: str, *, records: bool = True) -> float:
        # Of the time of single calls the median is what other programs on the machine disturb least.
        return statistics.median([call for run in details[records] for call in run.calls_s[part]])

    number = {part: statistics.median(len(run.calls_s[part]) for run in details[True]) for part in PARTS}
    part_ms = {part: 1000 * call_s(part) * number[part] / options.episodes for part in PARTS}
    part_ms["write"] -= 1000 * call_s("write", records=False)
    with_it, without = runs[True], runs[False]
    return (
        f"{median(with_it, 'cpu_s'):.2f}",
        percent(min(values(with_it, "cpu_s")) / min(values(without, "cpu_s"))),
        *(percent(statistics.median(ratios(with_it, without, unit))) for unit in ("cpu_s", "wall_s")),
        *(f"{part_ms[part]:.2f}" for part in PARTS),
        f"{1e6 * call_s('step'):.0f}",
    )


def main(options: Options) -> None:
    """Record episodes of either policy with several numbers of env slots, and write the page."""
    torch.set_num_threads(1)
    page = Page("recording_overhead", "What recording costs", options)
    overhead = ("CPU s", "overhead, least", "CPU", "wall")
    parts = ("ms an episode: start", "steps", "write", "consolidate", "µs a step of the batch")
    table = Table("policy", "num_envs", *overhead, *parts)
    for policy_type in POLICIES:
        for num_envs in NUM_ENVS:
            table.add(policy_type, num_envs, *measure(policy_type, num_envs, options))
    text = f"""\
`{ENVIRONMENT}`, physics on one thread, no cameras, no compression, {options.episodes} episodes a run.

Overhead of a recording: `least` compares the CPU seconds of the run with one and of the run without one that other
programs disturbed least, `CPU` and `wall` are medians over {options.repeats} pairs of neighbouring runs. The parts are
wall times, the median of single calls; `write` is what the end of an episode costs more than without a recording."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
