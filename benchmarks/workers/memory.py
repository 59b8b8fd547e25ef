"""Measure the memory of an env slot with a worker of its own, for environments of other packages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.environments import build, episodes, make_policy
from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.workers import children, memory_bytes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment, Observer, Transition

TEXT = """\
Each environment has one worker for each of {num_envs} env slots, acts at random, and has every picture of {steps}
control steps drawn, on this machine without a GPU by OSMesa. Memory is that of the workers after the last of them,
divided among the env slots; of what workers share each one has its part. This program itself is not in it."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Interpreters; an environment without its interpreter is left out."""

    pusht_python: str = ""  # Interpreter with gym-pusht 0.1.8.
    aloha_python: str = ""  # Interpreter with gym-aloha 0.1.5.
    metaworld_python: str = ""  # Interpreter with metaworld 3.1.1.
    robosuite_python: str = ""  # Interpreter with robosuite 1.5.2.
    libero_python: str = ""  # Interpreter with LIBERO's packages.
    libero_path: str = ""  # Checkout of LIBERO.
    num_envs: int = 2  # Env slots of each environment.
    steps: int = 10  # Control steps that every env slot makes.


def kinds(options: Options) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield label, environment and arguments of each measurement."""
    pixels = {"make_kwargs": {"obs_type": "pixels_agent_pos"}, "success_key": "is_success"}
    yield "PushT, state", "gym:gym_pusht:gym_pusht/PushT-v0", {"python": options.pusht_python}
    yield (
        "ALOHA's transfer of a cube, 480 x 640 pixels",
        "gym:gym_aloha:gym_aloha/AlohaTransferCube-v0",
        {"python": options.aloha_python, **pixels},
    )
    yield "Meta-World's reach-v3, state", "metaworld:reach-v3", {"python": options.metaworld_python}
    yield "robosuite's Lift, state", "robosuite:Lift", {"python": options.robosuite_python}
    yield (
        "robosuite's Lift, two cameras of 84 x 84",
        "robosuite:Lift",
        {"python": options.robosuite_python, "enable_cameras": True},
    )
    yield (
        "LIBERO's spatial 0, two cameras",
        "libero:libero_spatial/0",
        {"python": options.libero_python, "libero_path": options.libero_path, "enable_cameras": True},
    )


class MemoryReader(Observer):
    """Looks at every picture, and notes the memory of some processes after each step."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.bytes = 0

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Note the memory."""
        del environment, transition
        self.bytes = sum(map(memory_bytes, self._pids))


def measure(environment: str, arguments: Mapping[str, Any], options: Options) -> float:
    """Return the memory of an env slot's worker [bytes]."""
    others = set(children())
    built = build(environment, options.num_envs, **arguments)
    try:
        reader = MemoryReader([pid for pid in children() if pid not in others])
        limits = RolloutLimits(max_steps=options.steps)
        rollout(built, make_policy("random_action"), episodes(options.num_envs), [reader], limits=limits)
    finally:
        built.close()
    return reader.bytes / options.num_envs


def main(options: Options) -> None:
    """Measure every environment with an interpreter, and write the page."""
    torch.set_num_threads(1)
    page = Page("worker_memory", "Memory of workers", options)
    table = Table("environment", "MiB an env slot")
    for label, environment, arguments in kinds(options):
        if arguments["python"]:
            table.add(label, f"{measure(environment, arguments, options) / 2**20:.0f}")
    page.write(TEXT.format(num_envs=options.num_envs, steps=options.steps), table)


if __name__ == "__main__":
    run(main, Options)
