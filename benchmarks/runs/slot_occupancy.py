"""Measure the share of an environment's slots that run.

A slot that finishes takes the next episode at once, so slots rest only while the last episodes of a job run, for longer
if their lengths are more uneven. The table has the tasks with the built-in expert, whose episodes are of similar
length, and coins, whose episodes take either 10 steps or 100: the worst case for a time limit of 100 steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness.coins import CoinOptions, Coins
from benchmarks.harness.environments import build, make_policy, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.interfaces.environment import Environment

TASKS = ("reach", "lift_object", "pick_and_place", "open_drawer", "push_to_goal", "stack", "sort_two")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: int = 16  # Number of env slots.
    episodes_per_slot: tuple[int, ...] = (10, 20)  # Episodes of a job, for each slot.


def environments(num_envs: int) -> Iterator[tuple[str, str, Environment]]:
    """Yield name, policy and environment."""
    for task in TASKS:
        yield task, "scripted", build(task, num_envs, num_threads=default_num_threads())
    for rate in (0.9, 0.5):
        yield f"coins, {100 * rate:.0f} % short", "zero_action", Coins(CoinOptions(success_rate=rate), num_envs)


def main(options: Options) -> None:
    """Run the tasks and the coins, and write the page."""
    page = Page("slot_occupancy", "Which share of the env slots runs", options)
    columns = (f"{number} episodes a slot" for number in options.episodes_per_slot)
    table = Table("environment", "steps of an episode", *columns, words=2)
    for name, policy_type, environment in environments(options.num_envs):
        policy = make_policy(policy_type)
        found = [tally(environment, policy, options.num_envs * number) for number in options.episodes_per_slot]
        table.add(name, found[-1].lengths, *(f"{100 * each.busy / each.steps:.1f} %" for each in found))
        environment.close()
    text = f"{options.num_envs} env slots, seed 0. The share of slot-steps in which an episode ran, over a whole job;"
    page.write(f"{text}\nneither the machine nor its load changes it.", table)


if __name__ == "__main__":
    run(main, Options)
