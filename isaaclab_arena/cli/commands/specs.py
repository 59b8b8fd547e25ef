"""Describes the observations and actions of an environment as text: names, shapes, units and bounds."""

import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from isaaclab_arena.config.job_fields import COMMON_ENVIRONMENT_KEYS, parse_tokens
from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, SampleBuilder
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.nested import leaves

Described = TypeVar("Described")

_WIDTH = 110


def environment_specs(
    name: str, builder: EnvironmentBuilder, tokens: list[str], described: Callable[[Environment], Described]
) -> Described:
    """Describe a policy's inputs and actions, by `described`, in one env slot; ConfigError, EnvironmentBuildError."""
    # ``tokens`` are the environment's options as typed, ``--embodiment so101``; others have their defaults.
    positionals, options = parse_tokens(tokens)
    if positionals:
        raise ConfigError(Problem(f"unexpected argument '{positionals[0]}'; options of '{name}' begin with --"))
    known = option_names(builder.config_class) or ()
    given = {key: value for key, value in options.items() if key not in COMMON_ENVIRONMENT_KEYS or key in known}
    config = read_options(builder.config_class, given, owner=f"environment '{name}'")
    builder.check(config)
    environment = _one_env(builder, config)
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
    terms = [(".".join(path), spec) for path, spec in leaves(environment.observation_spec)]
    heads = [(name, _shape(spec), str(spec.dtype).removeprefix("torch."), spec.unit or "-") for name, spec in terms]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    lines = ["", "a policy is given, for each of num_envs environments:"]
    for head, (_, spec) in zip(heads, terms, strict=True):
        columns = "  ".join(f"{cell:<{width}}" for cell, width in zip(head, widths, strict=True))
        lines += _wrapped(f"  {columns}", ", ".join(spec.names or ()))
    action = environment.action_spec
    lines += ["", f"and gives an action of {action.shape[-1]} numbers, shape (num_envs, {action.shape[-1]}):"]
    lines += _action_lines(action)
    rate_hz, length = 1.0 / environment.control_dt, environment.max_episode_length
    lines += ["", f"{rate_hz:g} times a second, at most {length} times an episode"]
    return "\n".join(lines)


def _one_env(builder: EnvironmentBuilder, config: Any) -> Environment:
    # A sample needs milliseconds, but has no cameras.
    if isinstance(builder, SampleBuilder) and not getattr(config, "enable_cameras", False):
        return builder.sample(config)
    return builder.build(config, num_envs=1, device=torch.device("cpu"), num_threads=1)


def _shape(spec: ArraySpec) -> str:
    return f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"


def _wrapped(head: str, words: str) -> list[str]:
    indent = f"{head}  "
    if not words:
        return [head.rstrip()]
    return textwrap.wrap(
        words, max(_WIDTH, len(indent) + 30), initial_indent=indent, subsequent_indent=" " * len(indent)
    )


def _action_lines(action: ArraySpec) -> list[str]:
    size = action.shape[-1]
    names = action.names or tuple(map(str, range(size)))
    width = max(map(len, names), default=0)
    lines = [f"  unit: {action.unit}"] if action.unit else []
    for index, name in enumerate(names):
        low = "-inf" if action.low is None else f"{action.low[index]:g}"
        high = "inf" if action.high is None else f"{action.high[index]:g}"
        lines.append(f"  {index:>3}  {name:<{width}}  {low:>8} to {high}")
    return lines
