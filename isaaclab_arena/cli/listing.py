"""``isaaclab-arena list``: the names that a job file may use, with their options, and an environment's specs."""

import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
import tyro

from isaaclab_arena.cli.main import print_json
from isaaclab_arena.config.command_line import read_some
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import option_names, option_types, parse_tokens, read_options
from isaaclab_arena.config.schema import COMMON_ENVIRONMENT_KEYS
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS, OBJECTS, SUITES
from isaaclab_arena.errors import ConfigError, did_you_mean
from isaaclab_arena.interfaces.environment_builder import completed
from isaaclab_arena.nested import leaves
from isaaclab_arena.policy.catalog import POLICIES
from isaaclab_arena.registry import Registry, imported
from isaaclab_arena.storage.atomic import read_whole
from isaaclab_arena.training import TASKS

_REGISTRIES = {
    "environments": ENVIRONMENTS,
    "suites": SUITES,
    "tasks": TASKS,
    "policies": POLICIES,
    "embodiments": EMBODIMENTS,
    "robots": EMBODIMENTS,
    "objects": OBJECTS,
}


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Show the names that a job file may use, or the tasks of train; one line each, or one of them with its options."""

    what: tyro.conf.Positional[
        Literal["environments", "suites", "tasks", "policies", "embodiments", "robots", "objects"]
    ]
    """What to list; robots are embodiments."""
    name: tyro.conf.Positional[str] = ""
    """Show this one with its options; a part of the name will do. For an environment, also show the policy's inputs and
    outputs there, with the options typed after it, such as --embodiment so101 or --enable_cameras."""
    json: bool = False
    """Print it as JSON."""


def main(argv: Sequence[str]) -> int:
    """Show one catalog, or one entry of it; ConfigError, or EnvironmentBuildError if the entry cannot be built."""
    options, rest = read_some(ListOptions, _with_whole_kind(argv), program="isaaclab-arena list")
    registry = _REGISTRIES[options.what]
    # A part of a name will do where only one name has it.
    if options.name and options.name not in registry:
        with_part = [each for each in registry.names() if options.name.lower() in each]
        if len(with_part) > 1 and not options.json:
            print(catalog_text(registry, with_part, shows_options=False))
            return 0
        options = replace(options, name=with_part[0] if len(with_part) == 1 else options.name)
    if rest and (options.what != "environments" or not options.name):
        raise ConfigError(f"unexpected argument '{rest[0]}'; options follow the name of an environment")
    # An unknown name is a ConfigError; `catalog_text` would show it as a line.
    entry, names = (registry.get(options.name), [options.name]) if options.name else (None, None)
    data = catalog_data(registry, names) if options.json else []
    if not options.json:
        print(catalog_text(registry, names))
        if entry is None:
            print(f"\nisaaclab-arena list {options.what} NAME shows one of them in full")
    if entry is not None and options.what == "environments":
        # Of one environment also a policy's inputs and actions there, in one env slot. ``rest`` has the environment's
        # options as typed, ``--embodiment so101``; others have their defaults.
        positionals, typed = parse_tokens(rest)
        if positionals:
            raise ConfigError(f"unexpected argument '{positionals[0]}'; options of '{options.name}' begin with --")
        known = option_names(entry.config_class) or ()
        given = {key: value for key, value in typed.items() if key not in COMMON_ENVIRONMENT_KEYS or key in known}
        config = read_options(entry.config_class, given, owner=f"environment '{options.name}'")
        entry.check(config)
        # A sample needs milliseconds, but has no cameras.
        environment = None if getattr(config, "enable_cameras", False) else completed(entry).sample(config)
        if environment is None:
            environment = entry.build(config, num_envs=1, device=torch.device("cpu"), num_threads=1)
        try:
            specs = {
                "observation": {".".join(path): spec for path, spec in leaves(environment.observation_spec)},
                "action": environment.action_spec,
                "control_dt": environment.control_dt,
                "max_episode_length": environment.max_episode_length,
            }
        finally:
            environment.close()
        if options.json:
            data[0] |= specs
        else:
            print(specs_text(specs))
    if options.json:
        print_json(data)
    return 0


def _with_whole_kind(argv: Sequence[str]) -> list[str]:
    """Return the words with the kind of names written out, of which a part will do: ``list robot``. ConfigError."""
    words = list(argv)
    if words and not words[0].startswith("-"):
        kinds = [each for each in _REGISTRIES if words[0].rstrip("sy") in each]
        if len(kinds) != 1:
            raise ConfigError(f"there is no '{words[0]}'{did_you_mean(words[0], _REGISTRIES)}", key="WHAT")
        words[0] = kinds[0]
    return words


def catalog_data(registry: Registry, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return a catalog as data: each name with its summary and options; None for all names except schemes."""
    found = []
    for name in registry.names() if names is None else names:
        try:
            entry = registry.get(name)
        except ConfigError as error:
            found.append({"name": name, "error": str(error)})
            continue
        # Without words of its own the module describes a builder: that of its task or, without one, of its options.
        documented = getattr(entry, "words", None)
        if isinstance(entry, type):
            documented = entry.__doc__
        elif isinstance(entry, Path | Mapping):
            # A task of ``train``, whose file begins with a comment.
            text = read_whole(entry).decode() if isinstance(entry, Path) else ""
            documented = text.partition("\n")[0].lstrip("# ") if text.startswith("#") else ""
        elif hasattr(entry, "config_class") and not isinstance(documented, str):
            defined = getattr(entry, "make_task", entry.config_class)
            documented = inspect.getdoc(sys.modules[defined.__module__])
        summary = (documented or "").strip().partition("\n")[0]
        data: dict[str, Any] = {"name": name, "summary": summary, "options": [*_options_of(entry)]}
        summarise = getattr(entry, "summary", None)
        if summarise is not None and not isinstance(entry, type):
            data |= vars(summarise())
        found.append(data)
    return found


def _options_of(entry: Any) -> Iterator[dict[str, Any]]:
    """Yield the options of an entry, each with its name, its choices, and its default unless it is required."""
    if isinstance(entry, Path | Mapping):
        for path, value in leaves(read_document(entry) if isinstance(entry, Path) else entry):
            yield {"name": ".".join(path), "required": False, "choices": (), "default": value}
    config_class: type | None = getattr(entry, "config_class", None)
    if config_class is None or not is_dataclass(config_class):
        return
    hints = option_types(config_class)
    for field in fields(config_class):
        if not field.init:
            continue
        hint = hints.get(field.name)
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        option: dict[str, Any] = {"name": field.name, "required": False, "choices": choices}
        if field.default is not MISSING:
            option["default"] = field.default
        elif field.default_factory is not MISSING:
            option["default"] = field.default_factory()
        else:
            option["required"] = True
        yield option


def catalog_text(registry: Registry, names: Sequence[str] | None = None, *, shows_options: bool | None = None) -> str:
    """Return a table of all names in a catalog, one line each; or of `names`, by default with options and defaults."""
    shows_options = names is not None if shows_options is None else shows_options
    names = [*registry.names(), *registry.patterns()] if names is None else names
    width = max(map(len, names), default=0)
    lines = []
    for name in names:
        [data] = catalog_data(registry, [name])
        told = data.get("summary", "")
        if "error" in data and name in registry.patterns():
            # A scheme of names has no entry. Its maker describes it: by its words, or else by its docstring.
            maker = imported(registry.schemes[name.partition(":")[0]])
            words = maker.keywords.get("words") if isinstance(maker, partial) else None
            told = words or (inspect.getdoc(maker) or "").partition("\n")[0]
        lines.append(f"{name:<{width}}  {told.replace('`', '') or data.get('error', '')}".rstrip())
        if not shows_options:
            continue
        # Below an entry: its options, or the facts of an environment.
        details = []
        for option in data.get("options", ()):
            suffix = f"  ({' | '.join(map(str, option['choices']))})" if option["choices"] else ""
            value = ", required" if option["required"] else f" = {option['default']}"
            details.append(f"{option['name']}{value}{suffix}")
        if "instruction" in data:
            facts = {
                "told": f'"{data["instruction"]}"',
                "success": data["success"],
                "episode": f"at most {data['episode_length']} steps, {data['episode_s']:g} s",
                "robots": ", ".join(data["embodiments"]),
                "objects": ", ".join(data["objects"]),
                "options": "; ".join(details),
            }
            details = [
                line
                for name, text in facts.items()
                if text
                for line in textwrap.wrap(text, 96, initial_indent=f"{name:<8} ", subsequent_indent=" " * 9)
            ]
        lines += [f"{'':<{width}}    {line}" for line in details]
    return "\n".join(lines)


def specs_text(specs: Mapping[str, Any]) -> str:
    """Return the specs of an environment as text, one term a line."""
    observation, action = specs["observation"], specs["action"]
    heads = []
    for name, spec in observation.items():
        shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
        heads.append((name, shape, str(spec.dtype).removeprefix("torch."), spec.unit or "-"))
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    lines = ["", "a policy is given, for each of num_envs environments:"]
    for head, spec in zip(heads, observation.values(), strict=True):
        indent = "  ".join(["", *(f"{cell:<{width}}" for cell, width in zip(head, widths, strict=True)), ""])
        # The names of the elements follow the columns, in lines that begin below them.
        width = max(110, len(indent) + 30)
        names = textwrap.wrap(
            ", ".join(spec.names or ()), width, initial_indent=indent, subsequent_indent=" " * len(indent)
        )
        lines += names or [indent.rstrip()]

    size = action.shape[-1]
    lines += ["", f"and gives an action of {size} number{'s' if size > 1 else ''}, shape (num_envs, {size}):"]
    names = action.names or tuple(map(str, range(size)))
    width = max(map(len, names), default=0)
    lines += [f"  unit: {action.unit}"] if action.unit else []
    for index, name in enumerate(names):
        count = action.choices[index] if action.choices else 0
        # The bounds lie half a step beyond whole numbers.
        beyond = 0.5 if count else 0.0
        low = "-inf" if action.low is None else f"{action.low[index] + beyond:g}"
        high = "inf" if action.high is None else f"{action.high[index] - beyond:g}"
        lines.append(f"  {index:>3}  {name:<{width}}  {f'one of {count}: {low}' if count else low:>8} to {high}")
    rate_hz = 1.0 / specs["control_dt"]
    lines += ["", f"{rate_hz:g} times a second, at most {specs['max_episode_length']} times an episode"]
    return "\n".join(lines)
