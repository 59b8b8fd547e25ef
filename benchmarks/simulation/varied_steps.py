"""Measure the cost of a control step with every variation on, beside the same scene without variations.

Steps ``lift_object`` with random actions in one process in turn, with MuJoCo on one thread: nothing varied, and all but
the number of distractors; then distractors alone, which are further bodies, and all. Counts the torch operations of a
control step too: on a GPU each is at least one launch.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness.environments import build, episodes
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, median, ratios, run, spread, timed
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.interfaces.environment import Environment

ENVIRONMENT = "lift_object"


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    num_envs: tuple[int, ...] = (16, 64, 256)  # Numbers of env slots.
    control_steps: int = 20  # Control steps of a turn.
    rounds: int = 7  # Turns that count.


class OperationCount(TorchDispatchMode):
    """Counts torch's operations while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and do it."""
        self.number += 1
        return func(*args, **(kwargs or {}))


def varied(num_envs: int, *keys: str) -> Environment:
    """Return the environment with variations on, by their keys."""
    return build(ENVIRONMENT, num_envs, settings={f"{key}.enabled": True for key in keys}, backend="mujoco")


def begin(environment: Environment) -> None:
    """Begin an episode in every env slot."""
    conditions = []
    for episode in episodes(environment.num_envs):
        drawn = environment.draw_conditions(episode.conditions_generator())
        conditions.append(environment.vary_conditions(drawn, episode))
    environment.reset(torch.arange(environment.num_envs), conditions)


def stepped(environment: Environment, actions: torch.Tensor) -> Timing:
    """Time control steps of new episodes."""
    begin(environment)

    def step() -> None:
        for action in actions:
            environment.step(action)

    return timed(step)


def simulated(environment: Any, number: int) -> Timing:
    """Time the physics alone of as many control steps of new episodes."""
    begin(environment)
    backend, all_move = environment.backend, torch.ones(environment.num_envs, dtype=torch.bool)
    num_substeps = round(environment.control_dt / backend.physics_dt)

    def step() -> None:
        for _ in range(number):
            backend.step(all_move, num_substeps)

    return timed(step)


def operations(environment: Environment, action: torch.Tensor) -> int:
    """Return the number of torch operations of a control step."""
    with OperationCount() as count:
        environment.step(action)
    return count.number


def main(options: Options) -> None:
    """Measure every number of env slots, and write the page."""
    page = Page("varied_steps", "Control steps with every variation on", options, "mujoco", "torch")
    figures = ("torch operations a step", "CPU µs a step and env slot", "physics alone", "times", "over nothing")
    heading = ("env slots", "what varies", *figures)
    table = Table(*heading, words=2)
    builder = ENVIRONMENTS.get(ENVIRONMENT)
    offered = [each.key for each in offered_variations(builder, builder.config_class())]
    others = [key for key in offered if key not in ("distractors.count", "action.idle", "picture.exchanged")]
    pairs = {
        ("nothing", "all but distractors"): ((), others),
        ("distractors", "all"): (("distractors.count",), (*others, "distractors.count")),
    }
    for num_envs in options.num_envs:
        nothing_us = 0.0
        for (without, varying), keys in pairs.items():
            environments = {name: varied(num_envs, *own) for name, own in zip((without, varying), keys, strict=True)}
            spec = environments[without].action_spec
            low, high = torch.tensor(spec.low), torch.tensor(spec.high)
            shape = (options.control_steps, num_envs, len(low))
            actions = low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(0))
            calls = {name: partial(stepped, environment, actions) for name, environment in environments.items()}
            times = in_turn(calls, options.rounds, warm_up=1)
            alone = {name: partial(simulated, each, options.control_steps) for name, each in environments.items()}
            physics = in_turn(alone, options.rounds)
            for name, environment in environments.items():
                each_us, physics_us = (
                    1e6 * median(measured[name], "cpu_s") / options.control_steps / num_envs
                    for measured in (times, physics)
                )
                nothing_us = nothing_us or each_us
                factor = "" if name == without else spread(ratios(times[name], times[without], "cpu_s"))
                found = (f"{each_us:.1f}", f"{physics_us:.1f}", factor, f"{each_us / nothing_us:.2f}")
                table.add(num_envs, name, operations(environment, actions[0]), *found)
    words = """\
Times: CPU time over that of the line above, whose scene is the same. Over nothing: over the scene without distractors
in which nothing varies. Distractors are further free bodies with contacts; what they cost is physics, which is there as
long as they are in the scene, whether or not their number varies."""
    page.write(f"`{ENVIRONMENT}`, MuJoCo on one thread, random actions, {options.rounds} turns. {words}", table)


if __name__ == "__main__":
    run(main, Options)
