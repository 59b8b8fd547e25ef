"""Measure the success of the scripted experts in robosuite's tasks, in workers of an interpreter with robosuite."""

from dataclasses import dataclass

from benchmarks.harness.environments import build, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.policy.scripted import PLANS, RobosuiteExpertPolicy

PACKAGES = ("robosuite", "mujoco", "numpy", "python")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    python: str = ".venv-robosuite/bin/python"  # Interpreter of the workers; make test-benchmarks makes this one.
    episodes: int = 50  # Episodes per task.
    num_envs: int = 2  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.


def main(options: Options) -> None:
    """Run every task that has an expert, and write the page."""
    page = Page("robosuite_experts", "How often scripted experts solve robosuite's tasks", options)
    table = Table("task", "successes", "rate, Wilson 95 %", "timeouts/errors", "steps to success", "of", words=4)
    versions = {}
    for task in PLANS:
        environment = build(f"robosuite:{task}", options.num_envs, python=options.python)
        versions, horizon = dict(environment.provenance()), environment.max_episode_length
        found = tally(environment, RobosuiteExpertPolicy(), options.episodes, options.seed)
        environment.close()
        table.add(task, *found.of_expert, horizon)
    text = f"""\
{", ".join(f"{name} {versions[name]}" for name in PACKAGES)}; seed {options.seed}, one Panda, OSC_POSE at 20 Hz, CPU.
An episode is solved at the first step at which robosuite's own check says so, and ends there."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
