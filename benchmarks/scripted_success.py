"""Measure how often the scripted policy solves each task, and that doing nothing and moving at random do not.

Usage: python benchmarks/scripted_success.py [--so101] [--episodes 200] [--output FILE]
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import torch
import tyro

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.sim.threads import default_num_threads

RESULTS = Path(__file__).parent / "results"
GRASPED = ("cube", "cylinder", "can", "bottle", "mug", "cracker_box")
TASKS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("reach", {}),
    *(("lift_object", {"object": name}) for name in GRASPED),
    *(("pick_and_place", {"object": name}) for name in GRASPED),
    ("open_drawer", {}),
    ("close_drawer", {}),
    ("open_microwave", {}),
    ("press_button", {}),
    *(("push_to_goal", {"object": name}) for name in (*GRASPED, "plate", "bin")),
    ("push_cube", {}),
    ("stack", {}),
    ("pick_by_colour", {}),
    ("sort_two", {}),
)
SO101 = {"embodiment": "so101"}
SO101_TASKS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("reach", SO101),
    ("lift_object", {"object": "cube", **SO101}),
    ("push_to_goal", {"object": "cube", **SO101}),
    ("press_button", SO101),
)
# Every object is measured once; other action modes and policies with the default object.
DEFAULT_TASKS = tuple((task, options) for task, options in TASKS if options in ({}, {"object": "cube"}))
RUNS = (
    ("scripted", "joint_position", TASKS),
    ("scripted", "ee_delta", DEFAULT_TASKS),
    ("zero_action", "joint_position", DEFAULT_TASKS),
)

SO101_EVERYTHING: tuple[tuple[str, Mapping[str, str]], ...] = (
    *SO101_TASKS,
    *(("lift_object", {"object": name, **SO101}) for name in ("cylinder", "can", "bottle", "mug")),
    *(("push_to_goal", {"object": name, **SO101}) for name in ("cylinder", "can")),
    *(("pick_and_place", {"object": name, **SO101}) for name in ("cube", "cylinder", "can")),
    ("stack", SO101),
    ("pick_by_colour", SO101),
)
SO101_RUNS = (
    ("scripted", "joint_position", SO101_EVERYTHING),
    ("scripted", "ee_delta", SO101_TASKS),
    ("zero_action", "joint_position", SO101_TASKS),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        so101: Whether to measure everything that the SO-ARM101 can do, instead of every task with the Panda.
        episodes: Episodes per row of the table.
        num_envs: Rows of each environment's batch; it changes the time, not the rates.
        seed: Seed of the initial conditions.
        output: Where the table goes; by default the committed one of that robot.
    """

    so101: bool = False
    episodes: int = 200
    num_envs: int = 16
    seed: int = 0
    output: Path | None = None


class Tally(Observer):
    """Keeps the records of finished episodes."""

    def __init__(self) -> None:
        self.records: list[EpisodeRecord] = []

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep the record."""
        del environment
        self.records.append(record)

    def count(self, outcome: Outcome) -> int:
        """Return how many episodes ended so."""
        return sum(record.outcome is outcome for record in self.records)


def measure(task: str, options_of_task: Mapping[str, str], policy_type: str, mode: str, options: Options) -> list[Any]:
    builder = ENVIRONMENTS.get(task)
    config = builder.config_class(**options_of_task, action_mode=mode)
    environment = builder.build(
        config, num_envs=options.num_envs, device=torch.device("cpu"), num_threads=default_num_threads()
    )
    policy = resolve_policy_class(policy_type).from_dict({})
    tally = Tally()
    episodes = [
        Episode(job="scripted_success", episode_index=index, seed=options.seed) for index in range(options.episodes)
    ]
    started = time.process_time()
    result = rollout(environment, policy, episodes, [tally])
    cpu_ms = (time.process_time() - started) * 1000 / options.episodes
    successes = tally.count(Outcome.SUCCESS)
    interval = wilson_interval(successes, options.episodes)
    low, high = (interval.low, interval.high) if interval else (0.0, 1.0)
    others = "/".join(str(tally.count(outcome)) for outcome in (Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ERROR))
    label = f"{task} ({', '.join(options_of_task.values())})" if options_of_task else task
    rate = f"{100 * successes / options.episodes:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    mean_length = result.env_steps / options.episodes
    return [
        label,
        policy_type,
        mode,
        f"{successes}/{options.episodes}",
        rate,
        others,
        f"{mean_length:.0f}",
        f"{cpu_ms:.0f}",
    ]


def table(options: Options) -> Iterator[str]:
    header = [
        "task",
        "policy",
        "action mode",
        "successes",
        "rate, Wilson 95 %",
        "failure/timeout/error",
        "mean steps",
        "CPU ms",
    ]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for policy_type, mode, tasks in SO101_RUNS if options.so101 else RUNS:
        for task, options_of_task in tasks:
            row = "| " + " | ".join(measure(task, options_of_task, policy_type, mode, options)) + " |"
            print(row, flush=True)
            yield row


def main(options: Options) -> None:
    robot = " --so101" if options.so101 else ""
    command = f"python benchmarks/scripted_success.py{robot} --episodes {options.episodes} --seed {options.seed}"
    rows = list(table(options))
    versions = f"MuJoCo {mujoco.__version__}, torch {torch.__version__}, CPU."
    notes = "Rates are the same for any number of environments and threads; CPU time is per episode, with the policy's."
    lines = [
        "# How often the built-in policies solve the built-in tasks",
        "",
        f"    {command}",
        "",
        f"{versions} {notes}",
        "",
    ]
    text = "\n".join([*lines, *rows, ""])
    output = options.output or RESULTS / f"scripted_success{'_so101' if options.so101 else ''}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
