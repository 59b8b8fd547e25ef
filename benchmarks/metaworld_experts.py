"""Measure how often Meta-World's scripted experts solve its tasks, through the same loop as every job.

Usage: python benchmarks/metaworld_experts.py [--episodes 20] [--python ~/metaworld-venv/bin/python] [--tasks reach-v3]

With ``--python`` the tasks run in workers of another interpreter, which may have another MuJoCo.
"""

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.worker.meta_world import task_names
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.policy.metaworld_expert import MetaWorldExpertPolicy
from isaaclab_arena.results.statistics import wilson_interval

HEADER = ("task", "successes", "rate, Wilson 95 %", "timeouts/errors", "steps to success", "ms per episode")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        episodes: Episodes per task.
        num_envs: Rows of each environment's batch; it changes the time, not the rates.
        seed: Seed of the initial conditions.
        python: Interpreter of the workers; without it the tasks run in this process.
        tasks: Which tasks, all by default.
        output: Where the table goes.
    """

    episodes: int = 20
    num_envs: int = 2
    seed: int = 0
    python: str | None = None
    tasks: tuple[str, ...] = ()
    output: Path = Path("benchmarks/results/metaworld_experts.md")


@dataclass(kw_only=True)
class Measured(Observer):
    """What became of the episodes of a task."""

    versions: dict[str, str] = field(default_factory=dict)
    records: list[EpisodeRecord] = field(default_factory=list)
    wall_s: float = 0.0

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep the record."""
        del environment
        self.records.append(record)

    def count(self, outcome: Outcome) -> int:
        """Return how many episodes ended so."""
        return sum(record.outcome is outcome for record in self.records)


def measure(task: str, options: Options) -> Measured:
    builder = ENVIRONMENTS.get(f"metaworld:{task}")
    config = builder.config_class(python=options.python)
    builder.check(config)
    environment = builder.build(config, num_envs=options.num_envs, device=torch.device("cpu"), num_threads=1)
    measured = Measured(versions=dict(environment.provenance()))
    episodes = [
        Episode(job="metaworld_experts", episode_index=index, seed=options.seed) for index in range(options.episodes)
    ]
    started_s = time.perf_counter()
    rollout(environment, MetaWorldExpertPolicy(), episodes, [measured])
    measured.wall_s = time.perf_counter() - started_s
    environment.close()
    return measured


def row(task: str, measured: Measured) -> str:
    successes, episodes = measured.count(Outcome.SUCCESS), len(measured.records)
    interval = wilson_interval(successes, episodes)
    lengths = [record.length for record in measured.records if record.success]
    cells = (
        task,
        f"{successes}/{episodes}",
        f"{100 * successes / episodes:.0f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else "",
        f"{measured.count(Outcome.TIMEOUT)}/{measured.count(Outcome.ERROR)}",
        f"{sum(lengths) / len(lengths):.0f}" if lengths else "",
        f"{1000 * measured.wall_s / episodes:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def lines(options: Options) -> Iterator[str]:
    results = {}
    for task in options.tasks or task_names():
        results[task] = measure(task, options)
        print(row(task, results[task]), flush=True)
    versions = next(iter(results.values())).versions
    episodes = sum(len(measured.records) for measured in results.values())
    solved = sum(measured.count(Outcome.SUCCESS) for measured in results.values())
    reliable = sum(measured.count(Outcome.SUCCESS) >= 0.95 * len(measured.records) for measured in results.values())
    yield "# How often Meta-World's scripted experts solve its tasks"
    yield ""
    yield f"    python {shlex.join(['benchmarks/metaworld_experts.py', *sys.argv[1:]])}"
    yield ""
    packages = ("metaworld", "mujoco", "gymnasium", "numpy", "python")
    yield ", ".join(f"{name} {versions[name]}" for name in packages) + f"; seed {options.seed}, CPU."
    yield f"{solved} of {episodes} episodes were solved; {reliable} of {len(results)} tasks in at least 95 % of theirs."
    yield "An episode is solved at its first step with `info['success']`, and ends there; it is given 500 steps."
    yield ""
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + "---|" * len(HEADER)
    yield from (row(task, measured) for task, measured in results.items())


def main(options: Options) -> None:
    text = "\n".join([*lines(options), ""])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
