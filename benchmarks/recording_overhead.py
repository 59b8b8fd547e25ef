"""Measure what recording costs beside the job that is recorded.

Usage: python benchmarks/recording_overhead.py [--repeats 9] [--episodes 48] [--output FILE]

Runs the same episodes with and without a recording, in turn, in one process, with the physics on one thread, and
compares them: the least CPU seconds of either are the figure to quote on a noisy machine. A recording is all that ends
in the dataset: copying each control step, the episode files, their verification, and putting them into one file that is
flushed to disk. Without one there still are the commit lines, which are the results of a job.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedJob, RecordingOptions

RESULTS = Path(__file__).parent / "results" / "recording_overhead.md"
ENVIRONMENT = "lift_object"
POLICIES = ("scripted", "zero_action")
NUM_ENVS = (1, 8, 16)
PARTS = ("start", "step", "write", "consolidate")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        repeats: Pairs of runs of each row of the table.
        episodes: Episodes of each run.
        output: Where the table goes; by default the committed one.
    """

    repeats: int = 9
    episodes: int = 48
    output: Path | None = None


@dataclass(kw_only=True)
class Run:
    """What one run took, and how long each call of the recorder took in it."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    calls_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})


class Timed(Observer):
    """Hands everything to a recorder and notes how long each call takes."""

    def __init__(self, recorder: EpisodeRecorder, run: Run) -> None:
        self._recorder = recorder
        self._calls_s = run.calls_s

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Time the start of episodes."""
        begin = time.perf_counter()
        self._recorder.on_episode_start(environment, starts, observation)
        self._calls_s["start"].append(time.perf_counter() - begin)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Time a control step."""
        begin = time.perf_counter()
        self._recorder.on_step(environment, transition)
        self._calls_s["step"].append(time.perf_counter() - begin)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Time the writing of an episode."""
        begin = time.perf_counter()
        self._recorder.on_episode_end(environment, record)
        self._calls_s["write"].append(time.perf_counter() - begin)


def run_once(
    environment: Environment, policy: PolicyBase, episodes: Sequence[Episode], *, records: bool, detailed: bool
) -> Run:
    """Run the episodes, and return what that took.

    Args:
        environment: Runs them.
        policy: Gives the actions.
        episodes: What to run.
        records: Whether arrays are recorded.
        detailed: Whether to measure the recorder's parts, which costs something itself.
    """
    run = Run()
    with tempfile.TemporaryDirectory(prefix="recording_overhead_") as folder:
        job = RecordedJob(name="overhead", rank=0, world_size=1, attempt=1, env_args={"env_name": ENVIRONMENT})
        recorder = EpisodeRecorder(Path(folder), job, RecordingOptions(write_dataset=records))
        observer = Timed(recorder, run) if detailed else recorder

        cpu, wall = time.process_time(), time.perf_counter()
        rollout(environment, policy, episodes, [observer])
        begin = time.perf_counter()
        recorder.consolidate()
        run.calls_s["consolidate"].append(time.perf_counter() - begin)
        recorder.close()
        run.cpu_s, run.wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return run


def measure(policy_type: str, num_envs: int, options: Options) -> Mapping[str, float]:
    """Return one row of the table."""
    builder = ENVIRONMENTS.get(ENVIRONMENT)
    environment = builder.build(builder.config_class(), num_envs=num_envs, device=torch.device("cpu"), num_threads=1)
    policy = resolve_policy_class(policy_type).from_dict({})
    episodes = [Episode(job="overhead", episode_index=index, seed=0) for index in range(options.episodes)]
    runs: dict[bool, list[Run]] = {False: [], True: []}
    parts: list[Run] = []
    lines_only: list[Run] = []
    for repeat in range(options.repeats + 1):
        # Either goes first as often as the other.
        for records in (True, False) if repeat % 2 else (False, True):
            run = run_once(environment, policy, episodes, records=records, detailed=False)
            if repeat > 0:
                runs[records].append(run)
        if repeat > 0 and repeat % 3 == 0:
            parts.append(run_once(environment, policy, episodes, records=True, detailed=True))
            lines_only.append(run_once(environment, policy, episodes, records=False, detailed=True))
    environment.close()
    with_it, without = runs[True], runs[False]

    def overhead(unit: str) -> float:
        ratios = [getattr(a, unit) / getattr(b, unit) for a, b in zip(with_it, without, strict=True)]
        return 100 * (statistics.median(ratios) - 1)

    def least(of: Sequence[Run]) -> float:
        # The run that other programs on the machine disturbed least.
        return min(run.cpu_s for run in of)

    def call_s(part: str, of: Sequence[Run]) -> float:
        # Of the time of single calls the median is what other programs on the machine disturb least.
        return statistics.median([call for run in of for call in run.calls_s[part]])

    num_calls = {part: statistics.median(len(run.calls_s[part]) for run in parts) for part in PARTS}
    part_ms = {part: 1000 * call_s(part, parts) * num_calls[part] / options.episodes for part in PARTS}
    part_ms["write"] -= 1000 * call_s("write", lines_only)
    return {
        "cpu_s": statistics.median(run.cpu_s for run in with_it),
        "least_percent": 100 * (least(with_it) / least(without) - 1),
        "cpu_percent": overhead("cpu_s"),
        "wall_percent": overhead("wall_s"),
        "step_us": 1e6 * call_s("step", parts),
        **{f"{part}_ms": value for part, value in part_ms.items()},
    }


def main(options: Options) -> None:
    """Print the table and write it."""
    torch.set_num_threads(1)
    columns = ("policy", "num_envs", "CPU s", "overhead, least", "CPU", "wall", "ms an episode: start", "steps")
    columns += ("write", "consolidate", "µs a step of the batch")
    lines = [f"| {' | '.join(columns)} |", "| --- " + "| ---: " * (len(columns) - 1) + "|"]
    print("\n".join(lines))
    for policy_type in POLICIES:
        for num_envs in NUM_ENVS:
            row = measure(policy_type, num_envs, options)
            lines.append(
                f"| {policy_type} | {num_envs} | {row['cpu_s']:.2f} | {row['least_percent']:.1f} % "
                f"| {row['cpu_percent']:.1f} % | {row['wall_percent']:.1f} % | {row['start_ms']:.2f} "
                f"| {row['step_ms']:.2f} | {row['write_ms']:.2f} | {row['consolidate_ms']:.2f} | {row['step_us']:.0f} |"
            )
            print(lines[-1], flush=True)
    write_results(lines, options)


def write_results(lines: Sequence[str], options: Options) -> None:
    """Write the table with the command and the machine."""
    command = f"python benchmarks/recording_overhead.py --repeats {options.repeats} --episodes {options.episodes}"
    text = f"""# What recording costs

`{command}`

{machine()}; `{ENVIRONMENT}`, physics on one thread, no cameras, no compression, {options.episodes} episodes a run.

Overhead of a recording: `least` compares the CPU seconds of the run with one and of the run without one that other
programs disturbed least, `CPU` and `wall` are medians over {options.repeats} pairs of neighbouring runs. The parts are
wall times, the median of single calls; `write` is what the end of an episode costs more than without a recording.

""" + "\n".join(lines)
    path = options.output or RESULTS
    path.write_text(f"{text}\n", encoding="utf-8")


def machine() -> str:
    """Return which processor this is and how busy."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0]
    return (
        f"{names[0] if names else platform.processor()}, {platform.system()}, load average {load:.1f} "
        f"on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
