"""What a shell may complete after each command: its options, their values, and the names that follow."""

import dataclasses
import enum
import importlib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isaaclab_arena.cli.command_table import COMMANDS, commands_of_others
from isaaclab_arena.config.options import option_types
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS
from isaaclab_arena.evaluation.options import Assignment
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.registry import Registry
from isaaclab_arena.training.settings.tasks import TASKS

_VALUES_OF_OPTIONS = {"policy_type": POLICIES.names(), "policy": POLICIES.names(), "assignment": [*Assignment]}
_OPTIONS_OF_ENVIRONMENTS = {"embodiment": EMBODIMENTS, "object": OBJECTS}
_NAMED_THINGS: Mapping[str, Registry] = {
    "policy": ENVIRONMENTS, "view": ENVIRONMENTS, "collect": ENVIRONMENTS, "train": TASKS,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Completable:
    """What may follow a command.

    Attributes:
        summary: What the command does.
        values: By option, without dashes, the values that it takes; none where it takes any value, such as a path.
        flags: Options that take no value.
        words: What may stand without an option: names of environments, or the choices of an argument.
    """

    summary: str
    values: Mapping[str, tuple[str, ...]]
    flags: tuple[str, ...]
    words: tuple[str, ...]


def completable_commands() -> dict[str, Completable]:
    """Return every command by name; of those of other packages nothing but the name is known."""
    found = {
        name: _completable(name, getattr(importlib.import_module(command.module), command.options or ""))
        for name, command in COMMANDS.items()
    }
    others = {
        name: Completable(summary=command.summary, values={}, flags=(), words=())
        for name, command in commands_of_others()
    }
    return {**found, **others}


def _completable(name: str, options: type) -> Completable:
    values: dict[str, tuple[str, ...]] = {}
    flags, words = ["help"], []
    hints = option_types(options)
    for field in dataclasses.fields(options):
        hint = hints[field.name]
        if "Positional" in map(str, typing.get_args(hint)):
            words += _choices(hint)
        elif hint is bool:
            flags.append(field.name)
        else:
            values[field.name] = tuple(_VALUES_OF_OPTIONS.get(field.name) or _choices(hint))
    things = _NAMED_THINGS.get(name)
    if things is ENVIRONMENTS:
        values.update((option, tuple(registry.names())) for option, registry in _OPTIONS_OF_ENVIRONMENTS.items())
    words += [] if things is None else things.names()
    return Completable(
        summary=COMMANDS[name].summary, values=values, flags=tuple(flags), words=tuple(dict.fromkeys(words))
    )


def _choices(hint: Any) -> Iterable[str]:
    """Return the values that an annotation allows, none where there are too many to name."""
    if typing.get_origin(hint) is Literal:
        return map(str, typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [str(member.value) for member in hint]
    return [value for part in typing.get_args(hint) for value in _choices(part)]
