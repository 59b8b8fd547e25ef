"""Measure how often the scripted policy solves each task along every axis that it can notice."""

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
    ("lift_object", {"object": "cube"}),
    ("push_to_goal", {"object": "cube"}),
    ("push_cube", {}),
    ("pick_and_place", {"object": "cube"}),
    ("reach", {}),
    ("open_drawer", {}),
    ("close_drawer", {}),
    ("open_microwave", {}),
    ("press_button", {}),
    ("stack", {}),
    ("pick_by_colour", {}),
    ("sort_two", {}),
)
BLIND = frozenset({"sensor_noise", "delay", "language"})
"""Axes that the scripted policy cannot notice, beside those of pictures: it reads the simulation."""

LEAST = 0.9
NOTES = (
    "Axes end where the scripted policy still solves 90 % of the episodes of each task. A drop is then the policy's. "
    "Axes of pictures, sensor noise, delay and language are left out, because it reads the simulation and not what is "
    "observed or said; only in `pick_by_colour` it looks for the colour among the words, and each rewrite names it. "
    "Rates are the same for any number of env slots and threads. "
    "A dash is a level that was not measured."
)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    episodes: int = 50  # Episodes per task, axis and level.
    num_envs: int = 25  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.
    every_level: tuple[str, ...] = ("lift_object", "push_to_goal", "push_cube")  # Tasks of which no level is left out.
    only: tuple[str, ...] = ()  # Tasks to measure; by default all.


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


def levels_of(task: str, options: Options) -> list[int]:
    """Return the levels of a task that are measured, the edge last."""
    return list(range(1, EDGE_LEVEL + 1)) if task in options.every_level else [EDGE_LEVEL]


def main(options: Options) -> None:
    """Run every task at levels of its axes; the page grows from task to task."""
    page = Page("robustness_levels", "How far the scripted policy gets along each axis", options, "mujoco", "torch")
    headings = [f"level {level}" for level in range(1, EDGE_LEVEL + 1)]
    table = Table("task", "axis", *headings, f"level {EDGE_LEVEL}, Wilson 95 %", "at least 90 %", words=2)
    for task, arguments in TASKS:
        if options.only and task not in options.only:
            continue
        label = f"{task} ({', '.join(arguments.values())})" if arguments else task
        for axis in axes_of(task, arguments):
            solved = {level: successes_at(task, arguments, axis, level, options) for level in levels_of(task, options)}
            shown = [
                f"{solved[level]}/{options.episodes}" if level in solved else "-" for level in range(1, EDGE_LEVEL + 1)
            ]
            holds = "yes" if min(solved.values()) >= LEAST * options.episodes else "no"
            table.add(label, axis, *shown, success_rate(solved[EDGE_LEVEL], options.episodes), holds)
        page.write(NOTES, table)


if __name__ == "__main__":
    run(main, Options)
