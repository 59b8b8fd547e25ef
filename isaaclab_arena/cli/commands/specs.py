"""Describes the observations and actions of an environment as text: names, shapes, units and bounds."""

import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from isaaclab_arena.config.job_fields import COMMON_ENVIRONMENT_KEYS, parse_tokens
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, completed
from isaaclab_arena.nested import leaves

Described = TypeVar("Described")


def environment_specs(
    name: str, builder: EnvironmentBuilder, tokens: list[str], described: Callable[[Environment], Described]
) -> Described:
    """Describe a policy's inputs and actions, by `described`, in one env slot; ConfigError, EnvironmentBuildError."""
    # ``tokens`` are the environment's options as typed, ``--embodiment so101``; others have their defaults.
    positionals, options = parse_tokens(tokens)
    if positionals:
        raise ConfigError(f"unexpected argument '{positionals[0]}'; options of '{name}' begin with --")
    known = option_names(builder.config_class) or ()
    given = {key: value for key, value in options.items() if key not in COMMON_ENVIRONMENT_KEYS or key in known}
    config = read_options(builder.config_class, given, owner=f"environment '{name}'")
    builder.check(config)
    # A sample needs milliseconds, but has no cameras.
    environment = None if getattr(config, "enable_cameras", False) else completed(builder).sample(config)
    if environment is None:
        environment = builder.build(config, num_envs=1, device=torch.device("cpu"), num_threads=1)
    try:
        return described(environment)
    finally:
        environment.close()


def specs_as_data(environment: Environment) -> dict[str, Any]:
    """Return the observations, the action and the control rate of an environment as data, for JSON."""
    return {
        "observation": {".".join(path): spec for path, spec in leaves(environment.observation_spec)},
        "action": environment.action_spec,
        "control_dt": environment.control_dt,
        "max_episode_length": environment.max_episode_length,
    }


def described_specs(environment: Environment) -> str:
    """Return the observations, the action and the control rate of an environment, one term a line."""
    specs = dict(leaves(environment.observation_spec))
    heads = []
    for path, spec in specs.items():
        shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
        heads.append((".".join(path), shape, str(spec.dtype).removeprefix("torch."), spec.unit or "-"))
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    lines = ["", "a policy is given, for each of num_envs environments:"]
    for head, spec in zip(heads, specs.values(), strict=True):
        indent = "  ".join(["", *(f"{cell:<{width}}" for cell, width in zip(head, widths, strict=True)), ""])
        # The names of the elements follow the columns, in lines that begin below them.
        width = max(110, len(indent) + 30)
        names = textwrap.wrap(
            ", ".join(spec.names or ()), width, initial_indent=indent, subsequent_indent=" " * len(indent)
        )
        lines += names or [indent.rstrip()]

    action = environment.action_spec
    size = action.shape[-1]
    lines += ["", f"and gives an action of {size} numbers, shape (num_envs, {size}):"]
    names = action.names or tuple(map(str, range(size)))
    width = max(map(len, names), default=0)
    lines += [f"  unit: {action.unit}"] if action.unit else []
    for index, name in enumerate(names):
        low = "-inf" if action.low is None else f"{action.low[index]:g}"
        high = "inf" if action.high is None else f"{action.high[index]:g}"
        lines.append(f"  {index:>3}  {name:<{width}}  {low:>8} to {high}")
    rate_hz, length = 1.0 / environment.control_dt, environment.max_episode_length
    lines += ["", f"{rate_hz:g} times a second, at most {length} times an episode"]
    return "\n".join(lines)
