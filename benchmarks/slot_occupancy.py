"""Measure which share of an environment's rows runs: ``python benchmarks/slot_occupancy.py``.

A row that finishes takes the next episode at once, so rows rest only at the end of a job, while the last episodes run.
How long that is depends on how uneven the episodes are; nobody knows an episode's length before it has run. The table
has the tasks with the built-in expert, whose episodes are of similar length, and coins, whose episodes take either 10
steps or 100: the worst that a time limit of 100 steps allows.
"""

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import tyro

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from isaaclab_arena.environments.catalog import ENVIRONMENTS  # noqa: E402  the tests' coins are beside the package
from isaaclab_arena.evaluation.rollout.rollout import rollout  # noqa: E402
from isaaclab_arena.interfaces.environment import Environment  # noqa: E402
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord  # noqa: E402
from isaaclab_arena.interfaces.observer import Observer, Transition  # noqa: E402
from isaaclab_arena.policy.catalog import resolve_policy_class  # noqa: E402
from isaaclab_arena.sim.threads import default_num_threads  # noqa: E402
from tests.fakes import CoinConfig, CoinEnvironment  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "slot_occupancy.md"
TASKS = ("reach", "lift_object", "pick_and_place", "open_drawer", "push_to_goal", "stack", "sort_two")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        num_envs: Rows of each environment.
        episodes_per_row: Episodes of a job, for each row.
        output: Where the table goes; by default the committed one.
    """

    num_envs: int = 16
    episodes_per_row: tuple[int, ...] = (10, 20)
    output: Path | None = None


class Occupancy(Observer):
    """Counts rows that run, and the lengths of episodes."""

    def __init__(self) -> None:
        self.running = 0
        self.rows = 0
        self.lengths: list[int] = []

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count the rows that made this step."""
        self.running += int(transition.running.sum())
        self.rows += environment.num_envs

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Note its length."""
        del environment
        self.lengths.append(record.length)


def environments(num_envs: int) -> Iterator[tuple[str, str, Environment]]:
    for task in TASKS:
        builder = ENVIRONMENTS.get(task)
        yield (
            task,
            "scripted",
            builder.build(
                builder.config_class(),
                num_envs=num_envs,
                device=torch.device("cpu"),
                num_threads=default_num_threads(),
            ),
        )
    for rate in (0.9, 0.5):
        yield (
            f"coins, {100 * rate:.0f} % short",
            "zero_action",
            CoinEnvironment(CoinConfig(success_rate=rate), num_envs),
        )


def occupancy(environment: Environment, policy_type: str, num_episodes: int) -> Occupancy:
    counted = Occupancy()
    episodes = [Episode(job="occupancy", episode_index=index, seed=0) for index in range(num_episodes)]
    rollout(environment, resolve_policy_class(policy_type).from_dict({}), episodes, [counted])
    assert len(counted.lengths) == num_episodes
    return counted


def main(options: Options) -> None:
    heads = " | ".join(f"{number} episodes a row" for number in options.episodes_per_row)
    numbers = " ---: |" * len(options.episodes_per_row)
    table = [f"| environment | steps of an episode | {heads} |", f"| --- | --- |{numbers}"]
    print("\n".join(table))
    for name, policy_type, environment in environments(options.num_envs):
        counts = [occupancy(environment, policy_type, options.num_envs * n) for n in options.episodes_per_row]
        lengths = counts[-1].lengths
        spread = f"{min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.0f}"
        shares = " | ".join(f"{100 * count.running / count.rows:.1f} %" for count in counts)
        table.append(f"| {name} | {spread} | {shares} |")
        print(table[-1], flush=True)
        environment.close()
    rows_of_table = "\n".join(table)
    text = f"""# Which share of the rows runs

    python benchmarks/slot_occupancy.py

{options.num_envs} rows, seed 0, {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}. The share of row-steps in which an
episode ran, over a whole job; neither the machine nor its load changes it.

{rows_of_table}
"""
    (options.output or RESULTS).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
