"""The names of policies, how a ``policy_type`` becomes a class, and policies that are one function."""

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, overload

import torch

from isaaclab_arena.config.arena import OTHER_POLICIES
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.registry import Registry

# Policies that are one function of the observation, named in a job by ``package.module:function``.

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

    # The other parameters become the fields of a dataclass.
    annotations = typing.get_type_hints(function, include_extras=True)
    fields = [(each.name, annotations.get(each.name, Any), _field(each)) for each in others]
    options_class = dataclasses.make_dataclass(
        f"{function.__name__}_options", fields, bases=(PolicyCfg,), frozen=True, kw_only=True
    )

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


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return dataclasses.field()
    # A default such as a list belongs to the function, which also shares it between its calls.
    return dataclasses.field(default_factory=lambda: parameter.default)


# The names of policies, and how a ``policy_type`` becomes a class.

POLICIES = Registry(
    "policy",
    {
        "zero_action": "isaaclab_arena.policy.zero_action_policy:ZeroActionPolicy",
        "random_action": "isaaclab_arena.policy.random_action:RandomActionPolicy",
        "lerobot": "isaaclab_arena.policy.lerobot.policy:LeRobotPolicy",
        "libero_expert": "isaaclab_arena.policy.experts:LiberoExpertPolicy",
        "metaworld_expert": "isaaclab_arena.policy.experts:MetaWorldExpertPolicy",
        "robosuite_expert": "isaaclab_arena.policy.experts:RobosuiteExpertPolicy",
        "replay": "isaaclab_arena.policy.replay:ReplayPolicy",
        "rsl_rl": "isaaclab_arena.policy.rsl_rl:RslRlPolicy",
        "scripted": "isaaclab_arena.policy.scripted:ScriptedPolicy",
    },
    entry_point_group="isaaclab_arena.policies",
)

PolicyClass = TypeVar("PolicyClass", bound=type[PolicyBase])


@overload
def register_policy(policy_class: PolicyClass) -> PolicyClass: ...


@overload
def register_policy(*, cfg_type: type | None = None) -> Callable[[PolicyClass], PolicyClass]: ...


def register_policy(policy_class: Any = None, *, cfg_type: type | None = None) -> Any:
    """Register a policy class under its ``name``; a class decorator, as in Isaac Lab Arena, with or without arguments.

    Args:
        policy_class: The class.
        cfg_type: Class of its options, instead of ``config_class``.

    Raises:
        ValueError: If the class has no name, or the name is taken.
    """

    def register(decorated: Any) -> Any:
        if not decorated.name:
            raise ValueError(f"{decorated.__name__} needs a class attribute 'name' to be registered")
        if cfg_type is not None:
            decorated.config_class = cfg_type
        POLICIES.register(decorated.name, decorated)
        return decorated

    return register if policy_class is None else register(policy_class)


def resolve_policy_class(policy_type: str, *, may_import: bool = True) -> type[PolicyBase]:
    """Return the class of a job's ``policy_type``.

    Args:
        policy_type: A registered name, or a dotted path ``package.module.Class`` (``package.module:Class`` too),
            of a class or of a function of the observation. Importing a module runs its code.
        may_import: Whether a dotted path may be imported; registered names always are.

    Raises:
        ConfigError: If there is no such policy, or the named object is no policy class.
    """
    if policy_type in POLICIES or ("." not in policy_type and ":" not in policy_type):
        found = POLICIES.get(policy_type)
    elif not may_import:
        raise ConfigError(
            f"'{policy_type}' is a dotted path, whose module would have to be imported; --no_import allows registered "
            f"names only: {', '.join(POLICIES.names())}"
        )
    else:
        module_name, _, attribute = policy_type.replace(":", ".").rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            instead = OTHER_POLICIES.get(module_name.partition(".")[0])
            if instead is not None:
                raise ConfigError(f"'{policy_type}' of Isaac Lab Arena {instead}") from error
            raise ConfigError(
                f"cannot import '{module_name}' of policy '{policy_type}': {type(error).__name__}: {error}"
            ) from error
        if not hasattr(module, attribute):
            raise ConfigError(f"'{module_name}' has no '{attribute}'{did_you_mean(attribute, dir(module))}")
        found = getattr(module, attribute)
    if isinstance(found, FunctionType):
        return function_policy_class(found)
    if not (isinstance(found, type) and issubclass(found, PolicyBase)):
        raise ConfigError(
            f"'{policy_type}' is no policy: it must be a class derived from PolicyBase or a function of the observation"
        )
    return found
