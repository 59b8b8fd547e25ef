"""Measure what it costs to tell what happened in episodes, as a share of everything else that their control steps cost.

Runs random actions through the evaluation's loop on the CPU, so that nothing but the simulation and the loop takes
time; a policy with a network makes the share smaller. Counted in the same run, in CPU time, are the states that are
kept at each start and after each control step, and the reading of events from them at each end.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table, spread
from isaaclab_arena.environments.arena.arena_environment import ArenaEnvironment
from isaaclab_arena.environments.events.moments import MomentRing
from isaaclab_arena.evaluation.rollout.rollout import rollout


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    tasks: tuple[str, ...] = ("lift_object", "open_drawer", "sort_two")  # Environments.
    num_envs: tuple[int, ...] = (4, 16)  # Numbers of env slots.
    rounds: int = 2  # Times that every env slot runs an episode.


class Clock:
    """Adds up the CPU time of this thread in some methods while it is entered.

    Args:
        methods: Classes and the names of their methods.

    Attributes:
        spent_s: Their CPU time so far [s].
    """

    def __init__(self, *methods: tuple[type, str]) -> None:
        self._methods = methods
        self._plain: list[Callable[..., Any]] = []
        self.spent_s = 0.0

    def __enter__(self) -> "Clock":
        """Begin to count."""
        for owner, name in self._methods:
            self._plain.append(getattr(owner, name))
            setattr(owner, name, self._counted(self._plain[-1]))
        return self

    def __exit__(self, *error: object) -> None:
        """Put the methods back."""
        for (owner, name), plain in zip(self._methods, self._plain, strict=True):
            setattr(owner, name, plain)

    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def counted(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            try:
                return plain(*args, **kwargs)
            finally:
                self.spent_s += time.thread_time() - begun

        return counted


EVENTS = ((ArenaEnvironment, "begin_events"), (MomentRing, "keep"), (ArenaEnvironment, "episode_events"))


def main(options: Options) -> None:
    """Measure every task and number of env slots, and write the page."""
    page = Page("event_cost", "What it costs to tell what happened", options, "mujoco", "torch")
    table = Table("task", "env slots", "CPU µs a control step and env slot", "share of events, %", words=1)
    for task in options.tasks:
        for num_envs in options.num_envs:
            environment, policy = build(task, num_envs), make_policy("random_action")
            rollout(environment, policy, episodes(num_envs), [])
            each_us, shares = [], []
            for turn in range(options.rounds):
                begun = time.process_time()
                with Clock(*EVENTS) as clock:
                    ran = rollout(environment, policy, episodes(num_envs, seed=turn + 1), [])
                others_s = time.process_time() - begun - clock.spent_s
                each_us.append(1e6 * others_s / ran.env_steps)
                shares.append(100 * clock.spent_s / others_s)
            table.add(task, num_envs, spread(each_us, 0), spread(shares))
    page.write(f"MuJoCo on one thread, random actions, {options.rounds} turns of an episode in every env slot.", table)


if __name__ == "__main__":
    run(main, Options)
