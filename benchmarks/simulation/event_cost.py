"""Measure the cost of events in episodes, as a share of all other costs of their control steps.

Runs random actions through the evaluation's loop on the CPU, so only the simulation and the loop take time; a policy
with a network makes the share smaller. Robots on a floor, which random actions throw over in half a second, do nothing
instead, so their episodes last as long as those of policies. Events take the CPU time of keeping states at each start
and after each control step, of judging starts, and of reading events at each end.
"""

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.measure import Page, PageOptions, Table, run, spread
from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.events import MomentRing
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.interfaces.environment import Environment, Observer
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord

TASKS = (
    *("reach", "lift_object", "pick_and_place", "push_to_goal", "push_cube", "stack", "pick_by_colour", "sort_two"),
    *("open_drawer", "close_drawer", "open_microwave", "press_button"),
    *("cartpole", "velocity_go1", "walk_humanoid", "track_motion"),
)
STILL: Mapping[str, Mapping[str, Any]] = {
    "cartpole": {"start": "hanging"},
    "velocity_go1": {},
    "walk_humanoid": {},
    "track_motion": {},
}
"""Environments with a policy that does nothing, and their options."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    tasks: tuple[str, ...] = TASKS  # Environments.
    num_envs: tuple[int, ...] = (1, 4, 16)  # Numbers of env slots.
    turns: int = 3  # Turns of each number; all numbers of a task take turns, so none gets the quiet time.
    least: int = 4  # Episodes of a turn if there are fewer env slots.


class Clock:
    """Adds up the CPU time of this thread in some methods while it is entered."""

    def __init__(self, *methods: tuple[type, str]) -> None:
        self._methods = methods
        self._plain: list[Callable[..., Any]] = []
        # Two readings of the clock are half a microsecond apart; that is not the methods' time.
        asked = [time.thread_time() for _ in range(1001)]
        self._asking_s = statistics.median(later - earlier for earlier, later in pairwise(asked))
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
                self.spent_s += time.thread_time() - begun - self._asking_s

        return counted


EVENTS = (
    *((ArenaEnvironment, name) for name in ("begin_events", "solved_at_start", "episode_events")),
    (MomentRing, "keep"),
)


def main(options: Options) -> None:
    """Measure every task and number of env slots, and write the page."""
    # As every run does.
    join_freed_memory_at_once()
    page = Page("event_cost", "What it costs to tell what happened", options, "mujoco", "torch")
    table = Table("task", "env slots", "CPU µs a control step and env slot", "share of events, %", words=1)
    for task in options.tasks:
        environments = {num_envs: build(task, num_envs, **STILL.get(task, {})) for num_envs in options.num_envs}
        policy = "zero_action" if task in STILL else "random_action"
        each_us: dict[int, list[float]] = {num_envs: [] for num_envs in environments}
        shares: dict[int, list[float]] = {num_envs: [] for num_envs in environments}
        for turn in range(1 + options.turns):
            for num_envs, environment in environments.items():
                each = episodes(max(num_envs, options.least), seed=turn)
                other_us, share = turn_of(environment, policy, each)
                # The first turn warms up.
                each_us[num_envs] += [other_us] if turn else []
                shares[num_envs] += [share] if turn else []
        for num_envs in environments:
            table.add(task, num_envs, spread(each_us[num_envs], 0), spread(shares[num_envs]))
        page.write(
            f"MuJoCo on one thread, random actions, or on a floor none, {options.turns} turns of an episode in every "
            f"env slot, and of {options.least} episodes at least.",
            table,
        )


def turn_of(environment: Environment, policy: str, each: Sequence[Episode]) -> tuple[float, float]:
    """Return the CPU time of a control step and env slot without events [µs], and the share of events [%]."""
    begun, lengths = time.process_time(), Lengths()
    with Clock(*EVENTS) as clock:
        rollout(environment, make_policy(policy), each, [lengths])
    others_s = time.process_time() - begun - clock.spent_s
    return 1e6 * others_s / lengths.total, 100 * clock.spent_s / others_s


class Lengths(Observer):
    """Adds up the control steps of finished episodes."""

    sees_pictures, total = False, 0

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Add the episode's control steps."""
        del environment
        self.total += record.length


if __name__ == "__main__":
    run(main, Options)
