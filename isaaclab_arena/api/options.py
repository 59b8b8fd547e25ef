"""Turn keyword arguments into the options of a run, and those into a command line."""

from collections.abc import Mapping
from dataclasses import fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from isaaclab_arena.config.options import read_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.options import RunOptions, refuse_unknown

_Options = TypeVar("_Options", bound=RunOptions)

_WITHOUT_WATCHDOG: Mapping[str, Any] = {"step_timeout_s": 0.0, "build_timeout_s": 0.0}
"""The watchdog ends the whole process, which is somebody else's program here."""

OPTION_NAMES = frozenset(field.name for field in fields(RunOptions))


def run_options(options_class: type[_Options], given: Mapping[str, Any], *, is_guest: bool) -> _Options:
    """Return the options of a run, checked as the command line checks them.

    Args:
        options_class: What they are.
        given: Options by name. Paths may be path objects, ``resume=True`` means the run in ``output_dir``.
        is_guest: Whether the run is to take place in this process, which must not be ended by a time limit.

    Raises:
        ConfigError: With every option that is unknown, of a wrong type or contradicts another one.
    """
    known = {field.name for field in fields(options_class)}
    unknown = [f"--{name}" for name in given if name not in known]
    refuse_unknown(unknown, options_class)
    plain = {name: plain_value(value) for name, value in given.items() if value is not None}
    if isinstance(plain.get("resume"), bool):
        plain["resume"] = plain.get("output_dir", "") if plain["resume"] else None
    if plain.get("resume") == "":
        raise ConfigError(Problem("does not say which run; name its directory, here or as output_dir", key="--resume"))
    wanted = {**(_WITHOUT_WATCHDOG if is_guest else {}), **plain}
    try:
        options = read_options(options_class, wanted, owner="evaluate")
    except ConfigError as error:
        raise ConfigError([replace(each, key=f"--{each.key}") for each in error.problems]) from error
    if options.list_variations:
        raise ConfigError(Problem("shows, and runs nothing; use isaaclab-arena", key="--list_variations"))
    options.check()
    return options


def as_arguments(options: RunOptions) -> list[str]:
    """Return the command line that gives these options.

    Args:
        options: The options of a run.
    """
    arguments: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value == field.default or value is None:
            continue
        if value is True:
            arguments.append(f"--{field.name}")
        else:
            for each in value if isinstance(value, tuple) else (value,):
                arguments += [f"--{field.name}", str(Path(each).absolute()) if field.name == "resume" else str(each)]
    return arguments


def plain_value(value: Any) -> Any:
    """Return a path object as text, and anything else as it is."""
    return fspath(value) if isinstance(value, PathLike) else value
