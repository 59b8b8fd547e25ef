"""Policies that are one function of the observation, named in a job by ``package.module:function``."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg

OBSERVATION = "observation"
"""The name of a function's first parameter, by which it says that it is a policy."""


class FunctionPolicy(PolicyBase):
    """Acts like a function from the observation to the actions."""

    def __init__(self, function: Callable[[Observation], Any]) -> None:
        # See `Environment` for the observation. The answer is a tensor or an array of shape (num_envs, action_dim).
        super().__init__()
        self._function = function

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the function's actions."""
        del env
        return self._function(observation)


@functools.cache
def function_policy_class(function: FunctionType) -> type[PolicyBase]:
    """Return a policy class that acts like a function; the parameters after ``observation`` are its options."""
    # ConfigError: the first parameter has another name, or an option cannot be given by name.
    options_class = _options_class(function)

    class NamedFunctionPolicy(FunctionPolicy):
        config_class = options_class

        def __init__(self, config: Any) -> None:
            options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
            super().__init__(functools.partial(function, **options))
            self.config = config

    # A run identifies its policy by the source of the class, which here is the function's.
    NamedFunctionPolicy.__name__ = NamedFunctionPolicy.__qualname__ = function.__name__
    NamedFunctionPolicy.__module__ = function.__module__
    return NamedFunctionPolicy


def _options_class(function: FunctionType) -> type:
    path = f"{function.__module__}.{function.__name__}"
    first, *others = inspect.signature(function).parameters.values() or (None,)
    if first is None or first.name != OBSERVATION:
        raise ConfigError(
            f"'{path}' is no policy: the first parameter of a function that acts is called '{OBSERVATION}', and the "
            "others are its options"
        )
    unnamed = [each.name for each in others if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if unnamed:
        raise ConfigError(f"'{path}' takes '{unnamed[0]}' not by one name, so no job can give it; name each option")
    annotations = typing.get_type_hints(function, include_extras=True)
    fields = [(each.name, annotations.get(each.name, Any), _field(each)) for each in others]
    return dataclasses.make_dataclass(
        f"{function.__name__}_options", fields, bases=(PolicyCfg,), frozen=True, kw_only=True
    )


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return dataclasses.field()
    # A default such as a list belongs to the function, which also shares it between its calls.
    return dataclasses.field(default_factory=lambda: parameter.default)
