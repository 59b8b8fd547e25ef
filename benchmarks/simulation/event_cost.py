"""Measure what it costs to tell what happened in episodes: whole episodes with events and without, in turn.

Runs random actions through the evaluation's loop on the CPU, so that nothing but the simulation and the loop takes
time; a policy with a network makes the share smaller. With events, states are kept in every control step, and the
events are read from them at the end of each episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table, spread
from benchmarks.harness.timing import Timing, in_turn, median, ratios, timed
from isaaclab_arena.environments.arena.table_environment import TableEnvironment
from isaaclab_arena.evaluation.rollout.rollout import rollout


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    tasks: tuple[str, ...] = ("lift_object", "pick_and_place", "sort_two", "open_drawer")  # Environments.
    num_envs: tuple[int, ...] = (8, 32)  # Numbers of env slots.
    rounds: int = 5  # Turns that count.


def without_events(environment: TableEnvironment) -> TableEnvironment:
    """Return an environment that keeps nothing, as where nobody asks."""
    environment.begin_events = _keep_nothing  # type: ignore[method-assign]
    return environment


def _keep_nothing(env_ids: Sequence[int]) -> None:
    del env_ids


def one_episode_each(environment: TableEnvironment) -> Timing:
    """Time an episode in every env slot."""
    policy = make_policy("random_action")
    return timed(lambda: rollout(environment, policy, episodes(environment.num_envs), []))


def main(options: Options) -> None:
    """Measure every task and number of env slots, and write the page."""
    page = Page("event_cost", "What it costs to tell what happened", options, "mujoco", "torch")
    table = Table("task", "env slots", "CPU µs a control step and env slot without", "with events, times", words=1)
    for task in options.tasks:
        for num_envs in options.num_envs:
            environments = {
                "without": without_events(build(task, num_envs)),
                "with": build(task, num_envs),
            }
            calls = {name: partial(one_episode_each, environment) for name, environment in environments.items()}
            times = in_turn(calls, options.rounds, warm_up=1)
            steps = num_envs * environments["with"].max_episode_length
            each_us = 1e6 * median(times["without"], "cpu_s") / steps
            table.add(task, num_envs, f"{each_us:.1f}", spread(ratios(times["with"], times["without"], "cpu_s"), 3))
    page.write(f"MuJoCo on one thread, random actions, {options.rounds} turns of an episode in every env slot.", table)


if __name__ == "__main__":
    run(main, Options)
