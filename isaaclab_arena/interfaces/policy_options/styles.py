"""Read the options that a policy class declares, in any way of Isaac Lab Arena's releases.

In this order: a config class; ``add_args_to_parser`` and ``from_args``; the annotation of the constructor's first
parameter; a constructor that takes a config of which nothing is said, which is then a dict; nothing.
"""

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from isaaclab_arena.config.options import option_names
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.policy_options.declared import (
    DeclaredOptions,
    config_options,
    dict_options,
    keyword_options,
    no_options,
    required_parameters,
)
from isaaclab_arena.interfaces.policy_options.parsed import PolicyParser, either_options

_CONFIG_NAMES = ("config", "cfg")
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def declared_options(policy_class: type, *, config_class: type | None, has_own_parser: bool) -> DeclaredOptions:
    """Return what a policy class says its options are.

    Args:
        policy_class: The class.
        config_class: What it names as the class of its options.
        has_own_parser: Whether it defines ``from_args`` itself.

    Raises:
        ConfigError: If its constructor needs what nothing declares.
    """
    parameters = _parameters(policy_class)
    if config_class is not None and parameters:
        typed = _typed(policy_class, config_class, parameters)
        takes_dict = issubclass(config_class, Mapping)
        return _with_parser(typed, policy_class) if has_own_parser and not takes_dict else typed
    if has_own_parser:
        return PolicyParser(policy_class).declared()
    if not parameters:
        return no_options(policy_class)
    annotated = _annotation(policy_class, parameters[0].name)
    if annotated is not None:
        return _typed(policy_class, annotated, parameters)
    required = required_parameters(parameters)
    if not required:
        return no_options(policy_class)
    if [parameter.name for parameter in required] == [parameters[0].name] and required[0].name in _CONFIG_NAMES:
        return dict_options(policy_class)
    raise ConfigError(_undeclared(policy_class, required))


def _typed(policy_class: type, config_class: Any, parameters: Sequence[inspect.Parameter]) -> DeclaredOptions:
    others = [parameter for parameter in required_parameters(parameters) if parameter is not parameters[0]]
    if others:
        raise ConfigError(_undeclared(policy_class, others))
    if issubclass(config_class, Mapping):
        return dict_options(policy_class)
    options = keyword_options if option_names(config_class) is None else config_options
    return options(policy_class, config_class)


def _with_parser(typed: DeclaredOptions, policy_class: type) -> DeclaredOptions:
    try:
        return either_options(typed, PolicyParser(policy_class))
    except ConfigError:
        # What the config class declares needs no parser.
        return typed


def _parameters(policy_class: type) -> list[inspect.Parameter]:
    """Return the parameters of a constructor, those that are given by position first; none if it has no such."""
    parameters = list(inspect.signature(policy_class).parameters.values())
    return parameters if parameters and parameters[0].kind in _POSITIONAL else required_parameters(parameters)


def _annotation(policy_class: Any, name: str) -> Any:
    """Return the class that a constructor expects, None where that is not known or no class for options."""
    try:
        hint = typing.get_type_hints(policy_class.__init__).get(name)
    except (NameError, TypeError):
        return None
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        choices = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
        hint = choices[0] if len(choices) == 1 else None
    hint = typing.get_origin(hint) or hint
    if not isinstance(hint, type) or hint is Any:
        return None
    # Another class holds options only where the parameter says so: a constructor may also take a path, or a network.
    is_config = option_names(hint) is not None or issubclass(hint, Mapping) or name in _CONFIG_NAMES
    return hint if is_config else None


def _undeclared(policy_class: type, parameters: Sequence[inspect.Parameter]) -> str:
    needed = " and ".join(f"'{parameter.name}'" for parameter in parameters)
    return (
        f"{policy_class.__name__}.__init__ needs {needed}, and nothing says which options that comes from; derive the "
        "class from PolicyBase[Cfg] with a dataclass of its options, or define add_args_to_parser and from_args"
    )
