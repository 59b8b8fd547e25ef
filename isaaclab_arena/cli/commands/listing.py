"""``isaaclab-arena list``: the names that a job file may use, with their options."""

import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.config.options import option_types
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS, SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.registry import Registry

_REGISTRIES = {
    "environments": ENVIRONMENTS,
    "suites": SUITES,
    "policies": POLICIES,
    "embodiments": EMBODIMENTS,
    "objects": OBJECTS,
}


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Show the names that a job file may use, what they stand for and their options."""

    what: tyro.conf.Positional[Literal["environments", "suites", "policies", "embodiments", "objects"]]
    """What to list."""
    name: tyro.conf.Positional[str] = ""
    """Show only this one. For an environment, also show the policy's inputs and outputs there, with the options
    typed after it, such as --embodiment so101 or --enable_cameras."""
    json: bool = False
    """Print it as JSON."""


_SUMMARIES = {
    "open_drawer": "Pull a drawer open by its handle.",
    "close_drawer": "Push an open drawer shut.",
    "open_microwave": "Open the door of a microwave oven by its handle.",
    **dict.fromkeys(
        ("gym:...", "metaworld:..."),
        "Environments made elsewhere: ``gym:<id>`` of Gymnasium's registry and ``metaworld:<task>``, by their ids.",
    ),
    "robosuite:...": "Build the tasks of robosuite, ``robosuite:<task>``, in workers of an interpreter that has it.",
    "vla_eval:...": "Build benchmark classes of vla-eval, ``vla_eval:<module>:<Class>``, in workers of an interpreter "
    "that has them.",
}
"""Of environments whose module has others too, so that its docstring does not describe them."""


def main(argv: Sequence[str]) -> int:
    """Show one catalog, or one entry of it; ConfigError, or EnvironmentBuildError if the entry cannot be built."""
    options, rest = tyro.cli(ListOptions, args=argv, prog="isaaclab-arena list", return_unknown_args=True)
    registry = _REGISTRIES[options.what]
    if rest and (options.what != "environments" or not options.name):
        raise ConfigError(f"unexpected argument '{rest[0]}'; options follow the name of an environment")
    # An unknown name is a ConfigError; `catalog_text` would show it as a line.
    entry, names = (registry.get(options.name), [options.name]) if options.name else (None, None)
    data = catalog_data(registry, names) if options.json else []
    if not options.json:
        print(catalog_text(registry, names))
    if entry is not None and options.what == "environments":
        from isaaclab_arena.cli.commands import specs  # noqa: PLC0415  loads the simulation

        # Of one environment also a policy's inputs and actions there.
        if options.json:
            data[0] |= specs.environment_specs(options.name, entry, rest, specs.specs_as_data)
        else:
            print(specs.environment_specs(options.name, entry, rest, specs.described_specs))
    if options.json:
        print_json(data)
    return 0


def catalog_data(registry: Registry, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return a catalog as data: each name with its summary and options; None for all names except schemes."""
    found = []
    for name in registry.names() if names is None else names:
        try:
            entry = registry.get(name)
        except ConfigError as error:
            found.append({"name": name, "error": str(error)})
            continue
        told = _SUMMARIES.get(name) if registry is ENVIRONMENTS else None
        data: dict[str, Any] = {"name": name, "summary": told or _summary(entry), "options": _options_data(entry)}
        summarise = getattr(entry, "summary", None)
        if summarise is not None and not isinstance(entry, type):
            data |= vars(summarise())
        found.append(data)
    return found


def _options_data(entry: Any) -> list[dict[str, Any]]:
    """Return an entry's options, each with its name, its choices, and its default unless it is required."""
    config_class: type | None = getattr(entry, "config_class", None)
    if config_class is None or not dataclasses.is_dataclass(config_class):
        return []
    hints, options = option_types(config_class), []
    for field in dataclasses.fields(config_class):
        if not field.init:
            continue
        hint = hints.get(field.name)
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        option: dict[str, Any] = {"name": field.name, "required": False, "choices": choices}
        if field.default is not dataclasses.MISSING:
            option["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            option["default"] = field.default_factory()
        else:
            option["required"] = True
        options.append(option)
    return options


def catalog_text(registry: Registry, names: Sequence[str] | None = None) -> str:
    """Return a table of a catalog's names (None for all), each with a summary and its options with defaults."""
    names = [*registry.names(), *registry.patterns()] if names is None else names
    width = max(map(len, names), default=0)
    lines = []
    for name in names:
        [data] = catalog_data(registry, [name])
        told = data.get("summary", "")
        if "error" in data and name in registry.patterns():
            # A scheme of names has no entry; the module of its maker describes it.
            documented = inspect.getdoc(sys.modules[registry.maker(name).__module__])
            told = (documented or "").partition("\n")[0]
            told = _SUMMARIES.get(name, told) if registry is ENVIRONMENTS else told
        lines.append(f"{name:<{width}}  {told or data.get('error', '')}".rstrip())
        lines += [] if "error" in data else [f"{'':<{width}}    {line}" for line in _details(data)]
    return "\n".join(lines)


def _summary(entry: Any) -> str:
    if isinstance(entry, type):
        documented = entry.__doc__
    elif hasattr(entry, "config_class"):
        # The module describes a builder: that of its task or, without a task, that of its options.
        defined = getattr(entry, "make_task", entry.config_class)
        documented = inspect.getdoc(sys.modules[defined.__module__])
    else:
        documented = getattr(entry, "words", None)
    return (documented or "").strip().partition("\n")[0]


def _details(data: Mapping[str, Any]) -> list[str]:
    """Return the lines below an entry of `catalog_data`: its options, or the facts of an environment."""
    options = []
    for option in data["options"]:
        suffix = f"  ({' | '.join(map(str, option['choices']))})" if option["choices"] else ""
        value = ", required" if option["required"] else f" = {option['default']}"
        options.append(f"{option['name']}{value}{suffix}")
    if "instruction" not in data:
        return options
    facts = {
        "told": f'"{data["instruction"]}"',
        "success": data["success"],
        "episode": f"at most {data['episode_length']} steps, {data['episode_s']:g} s",
        "robots": ", ".join(data["embodiments"]),
        "objects": ", ".join(data["objects"]),
        "options": "; ".join(options),
    }
    return [
        line
        for name, text in facts.items()
        if text
        for line in textwrap.wrap(text, 96, initial_indent=f"{name:<8} ", subsequent_indent=" " * 9)
    ]
