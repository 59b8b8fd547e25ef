"""The options that a policy class declares, in any way of Isaac Lab Arena's releases."""

import argparse
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, NoReturn

from isaaclab_arena.config.options import misnamed_options, option_names, option_types, read_options
from isaaclab_arena.distributed.devices import resolve_policy_device
from isaaclab_arena.errors import ConfigError, Problem, refuse


@dataclass(frozen=True, kw_only=True)
class DeclaredOptions:
    """The options of a policy class, and the way to build it from them."""

    names: Collection[str] | None  # None if the class takes any option
    # Takes plain values by name and, for messages, the ``owner`` of the options; returns the argument of ``build``.
    # It raises `ConfigError` with every problem, whose ``key`` names the option.
    read: Callable[..., Any]
    build: Callable[[Any], Any]  # returns the policy
    defaults: Mapping[str, Any] = field(default_factory=dict)  # known values of options that are not given
    # Takes the words of a command line; returns the options that only the class can read, and the other words.
    taken_from: Callable[[Sequence[str]], tuple[dict[str, Any], list[str]]] = lambda words: ({}, list(words))


def _built(make: Callable[[Any], Any], why: str, config: Any) -> Any:
    """Return the policy of a config; ConfigError, with the attribute's name in ``why``, if it reads a missing one."""
    try:
        return make(config)
    except AttributeError as error:
        if error.obj is not config:
            raise
        raise ConfigError(why.format(error.name), key=error.name) from error


def required_parameters(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters that every call must give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.default is inspect.Parameter.empty and each.kind not in kinds]


# Options that a policy class declares to argparse, as in Isaac Lab Arena: ``add_args_to_parser`` and ``from_args``. The
# class's own parser reads the words of a command line, and the values of a job file as the words that a person types.

SHARED_OPTIONS = ("num_envs", "device")
"""Arguments that Arena's own parser gives to every policy beside its own, as far as they exist here."""


class ParsedArguments(argparse.Namespace):
    """The argument of ``from_args``."""


class PolicyParser:
    """The parser of a policy class that reads its options from an ``argparse.Namespace``."""

    def __init__(self, policy_class: Any) -> None:
        # ConfigError: ``add_args_to_parser`` fails, or defines an argument that goes by its position.
        self._policy_class = policy_class
        # The arguments that ``add_args_to_parser`` defines, by name; ``from_args`` also finds `SHARED_OPTIONS`.
        self.actions: dict[str, list[argparse.Action]] = {}
        for action in _parser_of(policy_class)._actions:
            if not action.option_strings:
                what = f"{policy_class.__name__}.add_args_to_parser defines '{action.dest}' by its position"
                raise ConfigError(f"{what}, where a command line has the environment; call it --{action.dest}")
            self.actions.setdefault(action.dest, []).append(action)

    def read(self, options: Mapping[str, Any], *, owner: str) -> ParsedArguments:
        """Return the argument of ``from_args`` for JSON values by name; ConfigError with ``key`` for a wrong option."""
        given = [name for name, value in options.items() if value is not None or name not in self.actions]
        required = [name for name, actions in self.actions.items() if any(action.required for action in actions)]
        refuse(misnamed_options(given, {*self.actions, *SHARED_OPTIONS}, required, owner=owner))
        words = [
            word
            for name, value in options.items()
            if name in self.actions and value is not None
            for word in _words(name, self.actions[name], value)
        ]

        # An option of both Arena's parser and the class's own has the class's default.
        namespace = ParsedArguments()
        for name in SHARED_OPTIONS:
            if name in self.actions:
                value = self.actions[name][0].default
            elif options.get(name) is not None:
                value = options[name]
            else:
                value = 1 if name == "num_envs" else str(resolve_policy_device())
            setattr(namespace, name, value)
        parser = _parser_of(self._policy_class)
        names = {spelling: action.dest for action in parser._actions for spelling in action.option_strings}
        try:
            found, others = parser.parse_known_args(words, namespace)
        except argparse.ArgumentError as error:
            key = next((names[part] for part in (error.argument_name or "").split("/") if part in names), None)
            raise ConfigError(error.message, key=key) from error
        except ConfigError:
            raise
        except Exception as error:  # the policy's own code reads an argument, and may fail in any way
            message = f"{owner} cannot read its arguments {' '.join(words)}: {type(error).__name__}: {error}"
            raise ConfigError(message) from error
        if others:
            raise ConfigError(f"{owner} cannot read {' '.join(others)} among its arguments {' '.join(words)}")
        return found

    def build(self, arguments: ParsedArguments) -> Any:
        """Return the policy of ``from_args``; ConfigError if it reads a missing argument or returns another policy."""
        owner = self._policy_class.__name__
        why = (
            f"{owner}.from_args reads '{{}}', which add_args_to_parser does not define; beside that there are "
            f"{' and '.join(SHARED_OPTIONS)}"
        )
        policy = _built(self._policy_class.from_args, why, arguments)
        if not isinstance(policy, self._policy_class):
            # An inherited method may build the base class, and then the results would be another policy's.
            raise ConfigError(f"{owner}.from_args must return a {owner}, it returned a {type(policy).__name__}")
        return policy

    def taken_from(self, words: Sequence[str], *, leaving: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
        """Return the options among the words of a command line, as they were typed, and the other words in order."""
        # Options that ``leaving`` names stay among the words. ConfigError: an option lacks its words, or has a value
        # that no job file can hold.
        parser = _parser_of(self._policy_class)
        for action in parser._actions:
            if action.dest in leaving:
                for spelling in action.option_strings:
                    del parser._option_string_actions[spelling]
            # Here words are only found; they are read, and refused, with those of job files.
            action.required, action.type, action.choices, action.default = False, None, None, argparse.SUPPRESS
        for group in parser._mutually_exclusive_groups:
            group.required = False
        try:
            namespace, others = parser.parse_known_args(list(words))
        except argparse.ArgumentError as error:
            raise ConfigError(error.message, key=error.argument_name) from error
        for name, value in vars(namespace).items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise ConfigError(f"{value!r} cannot be stored in a job file", key=f"--{name}") from error
        return vars(namespace), others


def either_options(typed: DeclaredOptions, parser: PolicyParser) -> DeclaredOptions:
    """Return the options of a class with a config class and a parser, which may differ in names and defaults."""
    # The config class (``typed``) decides, unless an option is given that only the parser knows.
    if typed.names is None:
        return dataclasses.replace(typed, taken_from=parser.taken_from)
    own_names, names = frozenset(typed.names), {*typed.names, *parser.actions, "num_envs"}

    def read(options: Mapping[str, Any], *, owner: str) -> Any:
        refuse(misnamed_options(options, names, (), owner=owner))
        if any(name not in own_names and name != "num_envs" for name in options):
            return parser.read(options, owner=owner)
        # A config class gets the number of env slots only if it has a field for it.
        return typed.read({name: value for name, value in options.items() if name in own_names}, owner=owner)

    return dataclasses.replace(
        typed,
        names=names,
        read=read,
        build=lambda config: (parser if isinstance(config, ParsedArguments) else typed).build(config),
        taken_from=partial(parser.taken_from, leaving=own_names),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # By itself argparse would end the program.
        raise ConfigError(message)


def _parser_of(policy_class: Any) -> argparse.ArgumentParser:
    parser = _Parser(prog=policy_class.__name__, add_help=False, allow_abbrev=False, exit_on_error=False)
    try:
        policy_class.add_args_to_parser(parser)
    except Exception as error:  # another package's code may fail in any way
        what = f"{policy_class.__name__}.add_args_to_parser"
        raise ConfigError(f"{what} fails: {type(error).__name__}: {error}") from error
    return parser


def _words(name: str, actions: Sequence[argparse.Action], value: Any) -> list[str]:
    """Return the words of a command line for a value of a job file."""
    if isinstance(value, Mapping):
        raise ConfigError(f"must be a word, a number or a list of those, got {json.dumps(value)}", key=name)
    # The first long spelling, else the first short one.
    spellings = [
        next((word for word in action.option_strings if word.startswith("--")), action.option_strings[0])
        for action in actions
    ]
    if all(action.nargs == 0 for action in actions):
        for action, spelling in zip(actions, spellings, strict=True):
            if isinstance(action, argparse.BooleanOptionalAction) and isinstance(value, bool):
                return [next(word for word in action.option_strings if word.startswith("--no-") is not value)]
            if isinstance(action, argparse._CountAction) and isinstance(value, int):
                return [spelling] * value
            if type(action.const) is type(value) and action.const == value:
                return [spelling]
        if any(type(action.default) is type(value) and action.default == value for action in actions):
            return []
        known = [json.dumps(known, default=str) for action in actions for known in (action.const, action.default)]
        raise ConfigError(f"must be {' or '.join(dict.fromkeys(known))}, got {json.dumps(value)}", key=name)
    action, spelling = next(each for each in zip(actions, spellings, strict=True) if each[0].nargs != 0)
    # To argparse every word but the empty one is true.
    items = value if isinstance(value, list | tuple) else [value]
    words = ["" if action.type is bool and not item else str(item) for item in items]
    if not isinstance(value, list | tuple) or (isinstance(action, argparse._AppendAction) and action.nargs is None):
        return [f"{spelling}={word}" for word in words]
    if action.nargs in (None, "?"):
        raise ConfigError("must be one value, not a list", key=name)
    return [spelling, *words]


# The options of a config class as arguments of argparse, for callers who have a parser of their own.


def with_arguments(parser: argparse.ArgumentParser, config_class: type | None) -> argparse.ArgumentParser:
    """Return the parser with an argument per field of a config class; unchanged for a class that is no dataclass."""
    if not dataclasses.is_dataclass(config_class):
        return parser
    hints = option_types(config_class)
    group = parser.add_argument_group(config_class.__name__)
    for option in dataclasses.fields(config_class):
        # An argument that the parser already has stays as it is.
        if not option.init or f"--{option.name}" in parser._option_string_actions:
            continue
        default = option.default if option.default_factory is dataclasses.MISSING else option.default_factory()
        required = default is dataclasses.MISSING
        reading = _argparse_reading(hints.get(option.name, str))
        group.add_argument(f"--{option.name}", required=required, default=None if required else default, **reading)
    return parser


def config_in(namespace: argparse.Namespace, config_class: type) -> Any:
    """Return an instance of a config class from a namespace, which may hold others' options too."""
    given, names = vars(namespace), option_names(config_class) or ()
    try:
        return config_class(**{name: given[name] for name in names if name in given})
    except TypeError as error:
        raise ConfigError(f"options of {config_class.__name__}: {error}") from error


def _argparse_reading(hint: Any) -> dict[str, Any]:
    """Return the arguments that make argparse read an option of some type."""
    choices = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _argparse_reading(choices[0]) if len(choices) == 1 else {"type": str}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is typing.Literal:
        return {"choices": choices, "type": type(choices[0])}
    if origin in (list, tuple) or hint in (list, tuple):
        return {"nargs": "*", **(_argparse_reading(choices[0]) if choices and choices[0] in (int, float) else {})}
    if origin is dict or hint is dict:
        return {"type": json.loads}
    return {"type": hint if isinstance(hint, type) and issubclass(hint, int | float | Enum | PurePath) else str}


# Read the options that a policy class declares, in any way of Isaac Lab Arena's releases.
#
# In this order: a config class; ``add_args_to_parser`` and ``from_args``; the annotation of the constructor's first
# parameter; a constructor that takes a config without a description, which is then a dict; nothing.

_CONFIG_NAMES = ("config", "cfg")
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def declared_options(policy_class: Any) -> DeclaredOptions:
    """Return the options that a policy class declares in any way; ConfigError if its constructor needs others."""
    config_class, has_own_parser = policy_class.config_class, "from_args" in policy_class.offers
    # A constructor without parameters that are given by position may need some by keyword.
    parameters = list(inspect.signature(policy_class).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        parameters = required_parameters(parameters)
    if config_class is not None and parameters:
        typed = _typed(policy_class, config_class, parameters)
        if not has_own_parser or issubclass(config_class, Mapping):
            return typed
        try:
            return either_options(typed, PolicyParser(policy_class))
        except ConfigError:
            # The options of the config class need no parser.
            return typed
    if has_own_parser:
        parser = PolicyParser(policy_class)
        return DeclaredOptions(
            names=frozenset({*parser.actions, *SHARED_OPTIONS}),
            read=parser.read,
            build=parser.build,
            defaults={"device": "cuda", **{name: actions[0].default for name, actions in parser.actions.items()}},
            taken_from=parser.taken_from,
        )

    # The annotation of the first parameter may be a class, also one of a union with None.
    hint, name = None, parameters[0].name if parameters else ""
    if parameters:
        with suppress(NameError, TypeError):
            hint = typing.get_type_hints(policy_class.__init__).get(name)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        choices = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
        hint = choices[0] if len(choices) == 1 else None
    hint = typing.get_origin(hint) or hint
    # It holds options if it is a dataclass or a mapping, or if the parameter has a config's name: a constructor may
    # also take a path or a network.
    if (isinstance(hint, type) and hint is not Any) and (
        option_names(hint) is not None or issubclass(hint, Mapping) or name in _CONFIG_NAMES
    ):
        return _typed(policy_class, hint, parameters)
    required = required_parameters(parameters)
    if not required:
        return DeclaredOptions(
            names=(),
            read=lambda options, *, owner: refuse([Problem(f"{owner} takes no options", key=key) for key in options]),
            build=lambda _: policy_class(),
        )
    # A config without a description is a dict.
    is_config = [parameter.name for parameter in required] == [name] and name in _CONFIG_NAMES
    return _typed(policy_class, dict, parameters, is_described=is_config)


def _typed(
    policy_class: type, config_class: Any, parameters: Sequence[inspect.Parameter], *, is_described: bool = True
) -> DeclaredOptions:
    """Return the options of a class whose constructor takes an instance of a class, as the only one it needs."""
    # `is_described`: False if nothing describes even the first parameter.
    described = parameters[:1] if is_described else ()
    others = [parameter.name for parameter in required_parameters(parameters) if parameter not in described]
    if others:
        needed = " and ".join(f"'{name}'" for name in others)
        raise ConfigError(
            f"{policy_class.__name__}.__init__ needs {needed}, but declares no options for that; derive the class "
            "from PolicyBase[Cfg] with a dataclass of its options, or define add_args_to_parser and from_args"
        )
    if issubclass(config_class, Mapping):
        why = (
            f"{policy_class.__name__} reads config.{{}}, but does not declare its config, so it gets a dict; derive "
            "it from PolicyBase[Cfg] with a dataclass of its options"
        )
        build = partial(_built, policy_class, why)
        return DeclaredOptions(names=None, read=lambda options, **_: dict(options), build=build)
    names = option_names(config_class)
    if names is not None:
        fields = dataclasses.fields(config_class)
        return DeclaredOptions(
            names=names,
            read=partial(read_options, config_class),
            build=policy_class,
            defaults={each.name: each.default for each in fields if each.default is not dataclasses.MISSING},
        )

    # An instance of a plain class is made from keywords. The class may take any, or not say which it takes.
    keywords = None
    with suppress(TypeError, ValueError):
        taken = inspect.signature(config_class).parameters
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
            keywords = dict(taken)

    def read(options: Mapping[str, Any], *, owner: str) -> Any:
        if keywords is not None:
            required = [each.name for each in required_parameters(list(keywords.values()))]
            refuse(misnamed_options(options, keywords, required, owner=owner))
        try:
            return config_class(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options of {owner}: {error}") from error

    empty, known = inspect.Parameter.empty, (keywords or {}).values()
    return DeclaredOptions(
        names=None if keywords is None else frozenset(keywords),
        read=read,
        build=policy_class,
        defaults={each.name: each.default for each in known if each.default is not empty},
    )
