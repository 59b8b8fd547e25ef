"""Measure the success of the scripted policy in each task along every axis that it can notice.

With ``--search`` it looks for the edges instead: the reach of each axis below which every task is solved in 90 %.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from benchmarks.artifacts.task_catalog import level_value
from benchmarks.harness.environments import build, make_policy, success_rate, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import ALL_AXES, AXES, EDGE_LEVEL, Axis
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Outcome

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
BLIND = frozenset({"sensor_noise", "delay", "language", "missing_words", "misspelt_words"})
"""Axes that the scripted policy cannot notice, beside those of pictures: it reads the simulation."""

STEPS: Mapping[str, tuple[float, ...]] = {
    "object_position": (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.5, 10.0),
    "object_yaw": (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.5, 15.7),
    "object_size": (0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0),
    "object_mass": (1.2, 1.4, 1.6, 1.7, 1.8, 1.9, 2.0),
    "object_friction": (1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0),
    "robot_start": (4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 24.0, 28.0, 32.0, 40.0),
    "table_height": (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
    "distractors": (1.0, 5 / 3, 2.0, 7 / 3),
    "action_noise": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0),
    "action_jolt": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 20.0),
}
"""The reaches that are tried, as multiples of the variations' own ranges."""

LEAST = 0.9
NOTES = (
    "Axes end where the scripted policy still solves 90 % of the episodes of each task. A drop is then the policy's. "
    "Axes of pictures, sensor noise, delay and language are left out, because it reads the simulation and not what is "
    "observed or said; only in `pick_by_colour` it looks for the colour among the words, and each rewrite names it. "
    "`all` is what is left, together. "
    "Rates are the same for any number of env slots and threads. "
    "A dash is a level that was not measured."
)
EDGE_NOTES = (
    "How far each axis can go until a task is solved in less than 90 % of its episodes, in steps of the reach, which "
    "is a multiple of the variation's own range. The edge is the last step at which every task still is. What ends it "
    "is the first task that was found below, or a limit that lies in the thing itself. Units are those of "
    "the first task that has the axis."
)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    search: bool = False  # Look for the edges, and write their page.
    episodes: int = 50  # Episodes per task, axis and level.
    num_envs: int = 25  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.
    every_level: tuple[str, ...] = ("lift_object", "push_to_goal", "push_cube")  # Tasks with all of their levels.
    only: tuple[str, ...] = ()  # Tasks to measure; by default all.


@cache
def catalogue_of(task: str) -> tuple[Variation, ...]:
    """Return the variations of a task."""
    builder = ENVIRONMENTS.get(task)
    return offered_variations(builder, builder.config_class(**dict(TASKS)[task]))


def axes_of(task: str) -> list[str]:
    """Return the axes that a task has and the scripted policy can notice."""
    return [
        name
        for name, axis in AXES.items()
        if axis.variations(catalogue_of(task)) and not axis.pictures_only and name not in BLIND
    ]


def successes_at(task: str, axes: Sequence[Axis], level: int, options: Options) -> int:
    """Return the number of solved episodes at a level of some axes together."""
    settings = {key: value for axis in axes for key, value in axis.settings(catalogue_of(task), level).items()}
    threads = {"num_threads": default_num_threads()}
    environment = build(task, options.num_envs, settings=settings, **threads, **dict(TASKS)[task])
    found = tally(environment, make_policy("scripted"), options.episodes, options.seed)
    environment.close()
    return found.count(Outcome.SUCCESS)


def measure_levels(options: Options) -> None:
    """Run every task at levels of its axes; the page grows from task to task."""
    page = Page("robustness_levels", "How far the scripted policy gets along each axis", options, "mujoco", "torch")
    headings = [f"level {level}" for level in range(1, EDGE_LEVEL + 1)]
    table = Table("task", "axis", *headings, f"level {EDGE_LEVEL}, Wilson 95 %", "at least 90 %", words=2)
    for task, arguments in tasks_of(options):
        label = f"{task} ({', '.join(arguments.values())})" if arguments else task
        own = axes_of(task)
        for name in (*own, ALL_AXES):
            axes = [AXES[each] for each in (own if name == ALL_AXES else [name])]
            # The edge is always measured, the other levels of some tasks and of all axes together.
            has_all = task in options.every_level or name == ALL_AXES
            levels = range(1, EDGE_LEVEL + 1) if has_all else [EDGE_LEVEL]
            solved = {level: successes_at(task, axes, level, options) for level in levels}
            shown = [
                f"{solved[level]}/{options.episodes}" if level in solved else "-" for level in range(1, EDGE_LEVEL + 1)
            ]
            holds = "yes" if min(solved.values()) >= LEAST * options.episodes else "no"
            table.add(label, name, *shown, success_rate(solved[EDGE_LEVEL], options.episodes), holds)
        page.write(NOTES, table)


def tasks_of(options: Options) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tasks that are measured."""
    return [each for each in TASKS if not options.only or each[0] in options.only]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """The edge of an axis."""

    step: int  # Index of the last step with enough solved episodes of every task; -1 for none.
    worst: tuple[str, int]  # The task that is solved least often there, and how often.
    ended_by: str  # Its reason: a task with its successes one step farther, or the limit.


def edge_of(tasks: Sequence[str], num_steps: int, solved: Callable[[str, int], int | str], least: float) -> Edge:
    """Return the edge of an axis. Each task searches only below the edge of the tasks before it."""
    top, ended_by = num_steps - 1, "the last step that was tried"
    for task in tasks:
        low, high = -1, top + 1
        at = top
        while high - low > 1:
            found = solved(task, at)
            if isinstance(found, int) and found >= least:
                low = at
            else:
                high, ended_by = at, found if isinstance(found, str) else f"{task}: {found} solved"
            at = (low + high) // 2
        top = low
    counts = {task: solved(task, top) for task in tasks} if top >= 0 else {}
    scored = [(task, count) for task, count in counts.items() if isinstance(count, int)]
    worst = min(scored, key=lambda each: each[1], default=("-", 0))
    return Edge(step=top, worst=worst, ended_by=ended_by)


def search_edges(options: Options) -> None:
    """Look for the edge of every axis; the page grows from axis to axis."""
    page = Page("robustness_edges", "Where the axes of change end", options, "mujoco", "torch")
    table = Table("axis", "reach at the edge", "that is", "solved least often there", "next step", "what ends it",
                  words=6)  # fmt: skip
    for name, steps in STEPS.items():
        axis = AXES[name]
        tasks = [task for task, _ in tasks_of(options) if name in axes_of(task)]

        @cache
        def solved(task: str, step: int, axis: Axis = axis, steps: Sequence[float] = steps) -> int | str:
            farther = replace(axis, reach=steps[step])
            try:
                count = successes_at(task, [farther], EDGE_LEVEL, options)
            except ConfigError as limit:
                return f"{task}: {limit.problems[0].message}"
            print(axis.name, steps[step], task, count, flush=True)
            return count

        edge = edge_of(tasks, len(steps), solved, LEAST * options.episodes)
        key = axis.variations(catalogue_of(tasks[0]))[0].key
        reach = steps[edge.step]
        value = level_value(replace(axis, reach=reach), catalogue_of(tasks[0]), EDGE_LEVEL, key)
        farther = f"{steps[edge.step + 1]:.3g}" if edge.step + 1 < len(steps) else "-"
        worst = f"{edge.worst[0]}: {edge.worst[1]}/{options.episodes}"
        table.add(name, f"{reach:.3g}", f"`{key}` {value}", worst, farther, edge.ended_by)
        page.write(EDGE_NOTES, table)


def main(options: Options) -> None:
    """Write one of the two pages."""
    if options.search:
        search_edges(options)
    else:
        measure_levels(options)


if __name__ == "__main__":
    run(main, Options)
