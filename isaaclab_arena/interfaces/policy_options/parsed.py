"""Options that a policy class declares to argparse, as in Isaac Lab Arena: ``add_args_to_parser`` and ``from_args``.

The parser is the class's own, so the words of a command line and the values of a job file are both read by it. Values
of a job file are written as the words that a person would have typed.
"""

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, NoReturn

from isaaclab_arena.config.options import misnamed_options, option_names, option_types
from isaaclab_arena.distributed.devices import resolve_policy_device
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.policy_options.declared import DeclaredOptions

SHARED_OPTIONS = ("num_envs", "device")
"""What Arena's own parser gives to every policy beside its own arguments, as far as there is such a thing here."""


class ParsedArguments(argparse.Namespace):
    """What ``from_args`` is given."""


class PolicyParser:
    """The parser of a policy class that reads its options from an ``argparse.Namespace``.

    Args:
        policy_class: A class with ``add_args_to_parser`` and ``from_args`` of its own.

    Raises:
        ConfigError: If ``add_args_to_parser`` fails, or defines an argument that goes by its position.
    """

    def __init__(self, policy_class: Any) -> None:
        self._policy_class = policy_class
        self._actions: dict[str, list[argparse.Action]] = {}
        for action in _parser_of(policy_class)._actions:
            if not action.option_strings:
                what = f"{policy_class.__name__}.add_args_to_parser defines '{action.dest}' by its position"
                raise ConfigError(f"{what}, where a command line has the environment; call it --{action.dest}")
            self._actions.setdefault(action.dest, []).append(action)

    @property
    def own_names(self) -> frozenset[str]:
        """Those that ``add_args_to_parser`` defines; beside them ``from_args`` finds `SHARED_OPTIONS`."""
        return frozenset(self._actions)

    def declared(self) -> DeclaredOptions:
        """Return the options of a class that has no others."""
        return DeclaredOptions(
            names=frozenset({*self._actions, *SHARED_OPTIONS}),
            read=self.read,
            build=self.build,
            defaults={"device": "cuda", **{name: actions[0].default for name, actions in self._actions.items()}},
            taken_from=self.taken_from,
        )

    def read(self, options: Mapping[str, Any], *, owner: str) -> ParsedArguments:
        """Return the namespace that ``from_args`` is given.

        Args:
            options: JSON values by name.
            owner: Whose options they are, for messages.

        Raises:
            ConfigError: With ``key`` set to the option at fault.
        """
        given = [name for name, value in options.items() if value is not None or name not in self._actions]
        required = [name for name, actions in self._actions.items() if any(action.required for action in actions)]
        problems = misnamed_options(given, {*self._actions, *SHARED_OPTIONS}, required, owner=owner)
        if problems:
            raise ConfigError(problems)
        words = [
            word
            for name, value in options.items()
            if name in self._actions and value is not None
            for word in _words(name, self._actions[name], value)
        ]
        namespace = ParsedArguments(**{name: self._shared(name, options) for name in SHARED_OPTIONS})
        return self._parsed(words, namespace, owner)

    def build(self, config: ParsedArguments) -> Any:
        """Return what ``from_args`` makes of a namespace.

        Raises:
            ConfigError: If it reads what is not there; ``key`` names it.
        """
        try:
            return self._policy_class.from_args(config)
        except AttributeError as error:
            if error.obj is not config:
                raise
            message = (
                f"{self._policy_class.__name__}.from_args reads '{error.name}', which add_args_to_parser does not "
                f"define; beside that there are {' and '.join(SHARED_OPTIONS)}"
            )
            raise ConfigError(Problem(message, key=error.name)) from error

    def taken_from(self, words: Sequence[str], *, leaving: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
        """Return the options among the words of a command line, as they were typed, and the other words in order.

        Args:
            words: What a person typed.
            leaving: Names of options that are not to be taken.

        Raises:
            ConfigError: If an option lacks its words, or stands for something that no job file can hold.
        """
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
            raise ConfigError(Problem(error.message, key=error.argument_name)) from error
        for name, value in vars(namespace).items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise ConfigError(Problem(f"{value!r} is nothing that a job file can hold", key=f"--{name}")) from error
        return vars(namespace), others

    def _shared(self, name: str, options: Mapping[str, Any]) -> Any:
        if name in self._actions:
            return self._actions[name][0].default
        if options.get(name) is not None:
            return options[name]
        return 1 if name == "num_envs" else str(resolve_policy_device())

    def _parsed(self, words: list[str], namespace: ParsedArguments, owner: str) -> ParsedArguments:
        parser = _parser_of(self._policy_class)
        names = {spelling: action.dest for action in parser._actions for spelling in action.option_strings}
        try:
            found, others = parser.parse_known_args(words, namespace)
        except argparse.ArgumentError as error:
            key = next((names[part] for part in (error.argument_name or "").split("/") if part in names), None)
            raise ConfigError(Problem(error.message, key=key)) from error
        except ConfigError:
            raise
        except Exception as error:  # what reads an argument is the policy's own code, and may fail in any way
            message = f"{owner} cannot read its arguments {' '.join(words)}: {type(error).__name__}: {error}"
            raise ConfigError(message) from error
        if others:
            raise ConfigError(f"{owner} cannot read {' '.join(others)} among its arguments {' '.join(words)}")
        return found


def either_options(typed: DeclaredOptions, parser: PolicyParser) -> DeclaredOptions:
    """Return the options of a class with a config class and a parser, which may differ in names and defaults.

    The config class decides, unless an option is given that only the parser knows.

    Args:
        typed: What the config class declares.
        parser: The class's parser.
    """
    if typed.names is None:
        return dataclasses.replace(typed, taken_from=parser.taken_from)
    own_names, names = frozenset(typed.names), {*typed.names, *parser.own_names, "num_envs"}

    def read(options: Mapping[str, Any], *, owner: str) -> Any:
        unknown = misnamed_options(options, names, (), owner=owner)
        if unknown:
            raise ConfigError(unknown)
        if any(name not in own_names and name != "num_envs" for name in options):
            return parser.read(options, owner=owner)
        # Env slots are told to whoever asks for them, and a config class need not.
        return typed.read({name: value for name, value in options.items() if name in own_names}, owner=owner)

    return dataclasses.replace(
        typed,
        names=names,
        read=read,
        build=lambda config: (parser if isinstance(config, ParsedArguments) else typed).build(config),
        taken_from=partial(parser.taken_from, leaving=own_names),
    )


def add_config_arguments(parser: argparse.ArgumentParser, config_class: type | None) -> argparse.ArgumentParser:
    """Add one argument per option of a dataclass, and return the parser.

    Args:
        parser: What is added to; arguments that it already has are left as they are.
        config_class: The dataclass; a class that is none, and None, have no options to add.
    """
    if not dataclasses.is_dataclass(config_class):
        return parser
    hints = option_types(config_class)
    group = parser.add_argument_group(config_class.__name__)
    for option in dataclasses.fields(config_class):
        if not option.init or f"--{option.name}" in parser._option_string_actions:
            continue
        default = option.default if option.default_factory is dataclasses.MISSING else option.default_factory()
        required = default is dataclasses.MISSING
        reading = _reading(hints.get(option.name, str))
        group.add_argument(f"--{option.name}", required=required, default=None if required else default, **reading)
    return parser


def config_from_arguments(config_class: type, namespace: argparse.Namespace) -> Any:
    """Return the options that a namespace holds; it may hold others too.

    Raises:
        ConfigError: If one is missing.
    """
    given = vars(namespace)
    try:
        return config_class(**{name: given[name] for name in option_names(config_class) or () if name in given})
    except TypeError as error:
        raise ConfigError(f"options of {config_class.__name__}: {error}") from error


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
    """Return what a person would type for a value of a job file."""
    if isinstance(value, Mapping):
        raise ConfigError(Problem(f"must be a word, a number or a list of those, got {json.dumps(value)}", key=name))
    if all(action.nargs == 0 for action in actions):
        return _flags(name, actions, value)
    action = next(action for action in actions if action.nargs != 0)
    spelling = _spelling(action)
    if not isinstance(value, list | tuple):
        return [f"{spelling}={_word(action, value)}"]
    if isinstance(action, argparse._AppendAction) and action.nargs is None:
        return [f"{spelling}={_word(action, item)}" for item in value]
    if action.nargs in (None, "?"):
        raise ConfigError(Problem("must be one value, not a list", key=name))
    return [spelling, *(_word(action, item) for item in value)]


def _flags(name: str, actions: Sequence[argparse.Action], value: Any) -> list[str]:
    """Return the arguments without a value of their own that come to a value, none where it is so anyway."""
    for action in actions:
        if isinstance(action, argparse.BooleanOptionalAction) and isinstance(value, bool):
            return [next(word for word in action.option_strings if word.startswith("--no-") is not value)]
        if isinstance(action, argparse._CountAction) and isinstance(value, int):
            return [_spelling(action)] * value
        if type(action.const) is type(value) and action.const == value:
            return [_spelling(action)]
    if any(type(action.default) is type(value) and action.default == value for action in actions):
        return []
    known = [json.dumps(known, default=str) for action in actions for known in (action.const, action.default)]
    raise ConfigError(Problem(f"must be {' or '.join(dict.fromkeys(known))}, got {json.dumps(value)}", key=name))


def _spelling(action: argparse.Action) -> str:
    return next((word for word in action.option_strings if word.startswith("--")), action.option_strings[0])


def _word(action: argparse.Action, value: Any) -> str:
    if action.type is bool and not value:
        # To argparse every word but the empty one is true.
        return ""
    return str(value)


def _reading(hint: Any) -> dict[str, Any]:
    """Return how argparse is to read an option of some type."""
    choices = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _reading(choices[0]) if len(choices) == 1 else {"type": str}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is typing.Literal:
        return {"choices": choices, "type": type(choices[0])}
    if origin in (list, tuple) or hint in (list, tuple):
        return {"nargs": "*", **(_reading(choices[0]) if choices and choices[0] in (int, float) else {})}
    if origin is dict or hint is dict:
        return {"type": json.loads}
    return {"type": hint if isinstance(hint, type) and issubclass(hint, int | float | Enum | PurePath) else str}
