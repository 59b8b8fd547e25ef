"""Measure the success of Meta-World's scripted experts in its tasks, through the same loop as every job.

With ``--python`` the tasks run in workers of another interpreter, which may have another MuJoCo.
"""

import time
from dataclasses import dataclass

from benchmarks.harness.environments import build, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.environments.gym.worker.gymnasium_tasks import MetaWorld
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import MetaWorldExpertPolicy

RELIABLE = 0.95
PACKAGES = ("metaworld", "mujoco", "gymnasium", "numpy", "python")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    episodes: int = 20  # Episodes per task.
    num_envs: int = 2  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.
    python: str | None = None  # Interpreter of the workers; without it the tasks run in this process.
    tasks: tuple[str, ...] = ()  # Tasks; all by default.


def main(options: Options) -> None:
    """Run every task, and write the page."""
    page = Page("metaworld_experts", "How often Meta-World's scripted experts solve its tasks", options)
    figures = ("rate, Wilson 95 %", "timeouts/errors", "steps to success", "ms per episode")
    table = Table("task", "successes", *figures, words=4)
    solved, versions = [], {}
    for task in options.tasks or MetaWorld.task_names():
        environment = build(f"metaworld:{task}", options.num_envs, python=options.python)
        began = time.perf_counter()
        found = tally(environment, MetaWorldExpertPolicy(), options.episodes, options.seed)
        episode_s = (time.perf_counter() - began) / options.episodes
        versions = dict(environment.provenance())
        environment.close()
        solved.append(found.count(Outcome.SUCCESS))
        table.add(task, *found.of_expert, f"{1000 * episode_s:.0f}")
    reliable = sum(number >= RELIABLE * options.episodes for number in solved)
    text = f"""\
{", ".join(f"{name} {versions[name]}" for name in PACKAGES)}; seed {options.seed}, CPU.
{sum(solved)} of {len(solved) * options.episodes} episodes were solved; {reliable} of {len(solved)} tasks in at least \
95 % of theirs.
An episode is solved at its first step with `info['success']`, and ends there; it is given 500 steps."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
