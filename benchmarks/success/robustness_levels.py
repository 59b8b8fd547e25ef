"""Measure how often the scripted policy solves each task at every level of every axis that it can notice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.environments import CPU, make_policy, success_rate, tally
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.axes import AXES, EDGE_LEVEL
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.sim.threads import default_num_threads

TASKS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("reach", {}),
    ("lift_object", {"object": "cube"}),
    ("pick_and_place", {"object": "cube"}),
    ("open_drawer", {}),
    ("close_drawer", {}),
    ("open_microwave", {}),
    ("press_button", {}),
    ("push_to_goal", {"object": "cube"}),
    ("stack", {}),
    ("pick_by_colour", {}),
    ("sort_two", {}),
)
BLIND = frozenset({"sensor_noise", "delay"})
"""Axes that the scripted policy cannot notice, beside those of pictures: it reads the simulation."""

LEAST = 0.9
NOTES = (
    "Axes end where the scripted policy still solves 90 % of the episodes of each task. A drop is then the policy's. "
    "Axes of pictures, sensor noise and delay are left out, because it reads the simulation and not what is observed. "
    "Rates are the same for any number of env slots and threads."
)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    episodes: int = 50  # Episodes per task, axis and level.
    num_envs: int = 25  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.
    levels: tuple[int, ...] = tuple(range(1, EDGE_LEVEL + 1))  # Levels of every axis.


def axes_of(task: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the axes that a task has and the scripted policy can notice."""
    builder = ENVIRONMENTS.get(task)
    catalogue = builder.variations(builder.config_class(**arguments))
    return [
        name
        for name, axis in AXES.items()
        if axis.variations(catalogue) and not axis.pictures_only and name not in BLIND
    ]


def successes_at(task: str, arguments: Mapping[str, Any], axis: str, level: int, options: Options) -> int:
    """Return how many episodes of a level are solved."""
    builder = ENVIRONMENTS.get(task)
    config = builder.config_class(**arguments)
    catalogue = builder.variations(config)
    environment = builder.build(
        config,
        num_envs=options.num_envs,
        device=CPU,
        num_threads=default_num_threads(),
        variations=enabled_variations(catalogue, AXES[axis].settings(catalogue, level)),
    )
    found = tally(environment, make_policy("scripted"), options.episodes, options.seed)
    environment.close()
    return found.count(Outcome.SUCCESS)


def main(options: Options) -> None:
    """Run every task at every level of its axes, and write the page."""
    page = Page("robustness_levels", "How far the scripted policy gets along each axis", options, "mujoco", "torch")
    headings = (*(f"level {level}" for level in options.levels), "highest level, Wilson 95 %", "at least 90 %")
    table = Table("task", "axis", *headings, words=2)
    for task, arguments in TASKS:
        label = f"{task} ({', '.join(arguments.values())})" if arguments else task
        for axis in axes_of(task, arguments):
            solved = [successes_at(task, arguments, axis, level, options) for level in options.levels]
            shown = (f"{count}/{options.episodes}" for count in solved)
            holds = "yes" if solved[-1] >= LEAST * options.episodes else "no"
            table.add(label, axis, *shown, success_rate(solved[-1], options.episodes), holds)
    page.write(NOTES, table)


if __name__ == "__main__":
    run(main, Options)
