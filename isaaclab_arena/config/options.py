"""Options as plain JSON values or words, checked against the dataclass that declares them; what they name on disk."""

import dataclasses
import json
import math
import os.path
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, nearest_names, refuse
from isaaclab_arena.nested import not_finite
from isaaclab_arena.paths import expanded

_SHOWN_CHARACTERS = 60
_FIXED = {
    "missing": "is missing",
    "string_type": "{value} is not a text; put it in quotes",
    "bool_type": "{value} is not true or false",
    "dict_type": "{value} is not a mapping",
    "dataclass_type": "{value} is not a mapping",
    "model_type": "{value} is not a mapping",
    "list_type": "{value} is not a list",
    "tuple_type": "{value} is not a list",
    "int_type": "{value} is not a whole number",
    "int_from_float": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "finite_number": "{value} is not a finite number",
    "string_unicode": "{value} holds half a character (a surrogate)",
    "string_too_short": "is empty",
    "greater_than": "must be greater than {gt}, got {value}",
    "greater_than_equal": "must be at least {ge}, got {value}",
    "less_than": "must be less than {lt}, got {value}",
    "less_than_equal": "must be at most {le}, got {value}",
    "literal_error": "{value} is none of {expected}",
    "enum": "{value} is none of {expected}",
}


class StrictModel(BaseModel):
    """Keys of a mapping that a person wrote: no other keys, and no other types."""

    model_config = ConfigDict(strict=True, extra="forbid")


def error_message(error: ErrorDetails, choices: Collection[str] = ()) -> str:
    """Return the text of one of pydantic's errors; `choices` are the accepted keys, for a suggestion."""
    kind = error["type"]
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key{did_you_mean(str(error['loc'][-1]), choices)}"
    context: Mapping[str, Any] = error.get("ctx") or {}
    if kind in _FIXED:
        return _FIXED[kind].format(value=shown(error["input"]), **context)
    message = error["msg"]
    return f"{shown(error['input'])}: {message[:1].lower()}{message[1:]}"


def shown(value: Any) -> str:
    """Return a value as JSON, shortened to fit into a message."""
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        value = value[:_SHOWN_CHARACTERS]
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:57]}..."


Count: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Amount: TypeAlias = Annotated[float, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


def wrong_numbers(options: Any) -> list[Problem]:
    """Return the problems of numeric options that are not finite or beyond the limits of their annotations."""
    problems = []
    for name, value in vars(options).items():
        if isinstance(value, float) and not math.isfinite(value):
            problems.append(Problem(f"{value} is no finite number", key=f"--{name}"))
        elif isinstance(value, int | float):
            try:
                _adapters(type(options))[name].validate_python(value)
            except ValidationError as invalid:
                problems.extend(problems_of(invalid, f"--{name}"))
    return problems


def option_names(config_class: type) -> frozenset[str] | None:
    """Return the names of the options that a dataclass declares, None for a class that is no dataclass."""
    if not dataclasses.is_dataclass(config_class):
        return None
    return frozenset(field.name for field in dataclasses.fields(config_class) if field.init)


def option_types(config_class: type) -> dict[str, Any]:
    """Return the annotations of a dataclass's options; none if one of them cannot be resolved."""
    try:
        return typing.get_type_hints(config_class, include_extras=True)
    except (NameError, TypeError):
        return {}


def read_options(
    config_class: type, options: Mapping[str, Any], *, owner: str, other_names: Collection[str] = ()
) -> Any:
    """Build a dataclass from plain options; ConfigError lists every problem with the option as ``key``."""
    # Types are strict as in the job file: ``"10"`` and ``true`` are no numbers. A list serves as a tuple, a name as an
    # enum. ``other_names`` only serve suggestions.
    options = expanded(options)
    declared = {field.name: field for field in dataclasses.fields(config_class) if field.init}
    missing = dataclasses.MISSING
    required = [name for name, each in declared.items() if each.default is missing and each.default_factory is missing]
    problems = misnamed_options(options, declared, required, owner=owner, other_names=other_names)
    adapters = _adapters(config_class)
    values: dict[str, Any] = {}
    for name, field in declared.items():
        if name in options and options[name] is None and field.default is None:
            values[name] = None
        elif name in options:
            adapter, value = adapters.get(name), options[name]
            try:
                if adapter is not None:
                    # Pydantic's JSON mode is strict about types and still turns lists into tuples and names into enums.
                    try:
                        text = json.dumps(value)
                    except TypeError:
                        # A program, unlike a file, may give values that JSON does not know, such as a path.
                        value = adapter.validate_python(value, strict=True)
                    else:
                        value = adapter.validate_json(text, strict=True)
                values[name] = value
                problems.extend(Problem(f"{wrong} is no finite number", key=name) for wrong in not_finite(values[name]))
            except ValidationError as invalid:
                problems.extend(problems_of(invalid, name))
    refuse(problems)

    # The class may check its values itself.
    try:
        return config_class(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"options of {owner}: {error}") from error


def misnamed_options(
    given: Iterable[str],
    known: Collection[str],
    required: Iterable[str],
    *,
    owner: str,
    other_names: Iterable[str] = (),
) -> list[Problem]:
    """Return the problems of unknown and of missing required options; see `read_options`."""
    given = list(given)
    choices = {*known, *other_names}
    unknown = [name for name in given if name not in known]
    # An option that was misspelt is not missing too.
    meant = {near for name in unknown for near in nearest_names(name, choices)}
    return [
        *(Problem(f"{owner} has no such option{did_you_mean(x, choices)}", key=x) for x in unknown),
        *(Problem(f"is missing; {owner} needs it", key=name) for name in required if name not in {*given, *meant}),
    ]


def problems_of(invalid: ValidationError, *place: str, choices: Collection[str] = ()) -> Iterator[Problem]:
    """Yield the problems of pydantic's errors within the value at a key, if any is given; see `error_message`."""
    for error in invalid.errors(include_url=False):
        yield Problem(error_message(error, choices), key=".".join([*place, *map(str, error["loc"])]))


@cache
def _adapters(config_class: type) -> dict[str, TypeAdapter[Any]]:
    """Return a checker per option; an option whose type JSON cannot express has none and takes any value."""
    adapters = {}
    for name, hint in option_types(config_class).items():
        try:
            adapters[name] = TypeAdapter(hint)
        except (PydanticUserError, TypeError):
            continue
    return adapters


# Command-line tokens of the old job files, ``["--num_envs", "4", "lift_object", "--object", "cube"]``.

FLAGS = frozenset({"enable_cameras", "headless", "distributed"})
"""Options that take no value, so that a word after them is positional."""

SCALARS = frozenset({"num_envs", "env_spacing", "placement_seed", "seed", "device"})
"""Options that take exactly one value, so that a second word after them is positional."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def parse_tokens(tokens: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split tokens into positional words and options by name; ConfigError lists every malformed option."""
    # An option is ``--name``, ``--name value``, ``--name=value`` or ``--name value value``; hyphens inside a name read
    # as underscores. Without a value it is True, with several values a list. An option takes all words up to the next
    # option, unless it is one of `FLAGS` or `SCALARS`. So positional words come first or after one of those.
    positionals: list[str] = []
    options: dict[str, Any] = {}
    problems, position = [], 0
    are_options = [word.startswith("-") and word != "-" and _DECIMAL.fullmatch(word) is None for word in tokens]
    while position < len(tokens):
        token, is_option = tokens[position], are_options[position]
        position += 1
        if not is_option:
            positionals.append(token)
            continue
        name, equals, value = token.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        words = [value] if equals else []
        limit = 0 if equals or name in FLAGS else 1 if name in SCALARS else len(tokens)
        while len(words) < limit and position < len(tokens) and not are_options[position]:
            words.append(tokens[position])
            position += 1
        if not token.startswith("--"):
            problems.append(Problem(f"'{token}' has one hyphen; options begin with two, --{token[1:]}"))
        elif not re.fullmatch(r"[A-Za-z]\w*", name):
            problems.append(Problem(f"'{token}' names no option"))
        elif name in SCALARS and not words:
            problems.append(Problem(f"--{name} needs a value", key=name))
        elif name in options:
            problems.append(Problem(f"--{name} is given twice", key=name))
        typed: list[Any] = []
        for word in words:
            if word.lower() in {"true", "false"}:
                typed.append(word.lower() == "true")
            elif _INTEGER.fullmatch(word) and len(word) < 300:
                typed.append(int(word))
            else:
                is_decimal = _DECIMAL.fullmatch(word) and math.isfinite(float(word))
                typed.append(float(word) if is_decimal else word)
        options.setdefault(name, True if not typed else typed[0] if len(typed) == 1 else typed)
    refuse(problems)
    return positionals, options


# Find what options name: the sources of a policy or an environment besides this package.

UNKNOWN = "unknown"
"""The identity of content that counts and cannot be known."""

_ENDINGS = ("_path", "_file")
_SECRETS = ("token", "secret", "password", "api_key")
_CHECKPOINTS = ("checkpoint_path", "model_path")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContentSources:
    """The places of everything that determines a policy or an environment. To list them reads nothing.

    Attributes:
        files: Files and directories by their role, such as ``checkpoint_path model_300.pt``.
        modules: Modules that are imported already and whose source counts, with their imports from beside them.
        packages: Import names of installed packages.
        stated: Facts that are known without reading a file, such as the version that another interpreter has.
        unknown: Content that counts and cannot be known here, such as ``server localhost:5555``.
        checkpoint: Name of the checkpoint in tables; None for a policy without one.
    """

    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    modules: Sequence[str] = ()
    packages: Sequence[str] = ()
    stated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unknown: Sequence[str] = ()
    checkpoint: str | None = None


def sources_in_options(options: Mapping[str, Any]) -> ContentSources:
    """Return the files and directories that options ending in ``_path`` or ``_file`` name, those that exist."""
    # A secret is left out: its hash would be written into the output of a run.
    files = {
        f"{name} {Path(value).name}": Path(value)
        for name, value in options.items()
        if name.endswith(_ENDINGS) and not holds_secret(name)
        if isinstance(value, str) and value and os.path.exists(Path(value))  # noqa: PTH110  pathlib raises if it is too long
    }
    named = (options.get(name) for name in _CHECKPOINTS)
    return ContentSources(files=files, checkpoint=next((name for name in named if isinstance(name, str)), None))


def holds_secret(name: str) -> bool:
    """Whether an option holds a secret, by its name; it is never written or sent."""
    return any(word in name.lower() for word in _SECRETS)
