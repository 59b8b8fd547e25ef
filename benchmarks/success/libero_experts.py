"""Measure the success of the scripted expert in LIBERO's tasks, in workers of an interpreter with LIBERO."""

from dataclasses import dataclass

from benchmarks.harness.environments import build, tally
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.policy.scripted import LIBERO_PLANS, LiberoExpertPolicy

PACKAGES = ("libero", "robosuite", "mujoco", "numpy", "python")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    python: str = ".venv-libero/bin/python"  # Interpreter of the workers; make libero makes this one.
    libero_path: str | None = None  # Checkout of LIBERO; LIBERO_PATH by default, else pip's package.
    protocols: tuple[str, ...] = ("strict", "openpi")  # Protocols of the episodes.
    episodes: int = 50  # Episodes per task.
    num_envs: int = 2  # Number of env slots; it changes the time, not the rates.
    seed: int = 0  # Seed of the initial conditions.


def main(options: Options) -> None:
    """Run every task that has an expert by each protocol, and write the page."""
    page = Page("libero_experts", "How often a scripted expert solves LIBERO's tasks", options)
    table = Table("task", "protocol", "successes", "rate, Wilson 95 %", "timeouts/errors", "steps", "of", words=5)
    versions = {}
    for task, protocol in ((task, protocol) for task in LIBERO_PLANS for protocol in options.protocols):
        named = {"python": options.python, "libero_path": options.libero_path, "protocol": protocol}
        environment = build(f"libero:libero_spatial/{task}", options.num_envs, **named)
        versions, horizon = dict(environment.provenance()), environment.max_episode_length
        found = tally(environment, LiberoExpertPolicy(), options.episodes, options.seed)
        environment.close()
        table.add(task.replace("_", " "), protocol, *found.of_expert, horizon)
    stated = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    text = f"""\
{stated}; seed {options.seed}, one Panda, OSC_POSE at 20 Hz, CPU, nothing drawn.
An episode is solved at the first step at which LIBERO's own check says so, and ends there; "steps" is how many it then
took on average, after those in which objects come to rest."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)
