"""Convert between frozen dataclasses and the JSON files of a run: plain values, no bare NaN."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from isaaclab_arena.errors import ConfigError, DamagedFileError, Problem
from isaaclab_arena.storage.atomic import read_whole

Value = TypeVar("Value")


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict of its fields, for the JSON encoder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in _fields(type(value))}
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


_fields: Callable[[Any], tuple[dataclasses.Field[Any], ...]] = cache(dataclasses.fields)
_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_as_dict)
_flat_encoder: Callable[[str], json.JSONEncoder] = cache(
    lambda between: json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(between, ": "))
)
# JSON itself escapes only control characters below a space. These also affect a terminal, or end a line.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def plain(value: Any) -> Any:
    """Return a value in JSON's types: mappings as dicts, sequences as lists, NaN and infinity as None."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _as_dict(value)
    elif isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else str(value)


def json_line(value: Any) -> str:
    """Return a value as one line of strict JSON."""
    try:
        # Most values are plain already, and the encoder detects that faster than `plain`.
        line = _LINE.encode(value)
    except (TypeError, ValueError):
        line = _LINE.encode(plain(value))
    return _harmless(line)


def json_text(value: Any) -> str:
    """Return a value as indented strict JSON."""
    return _harmless(_indented(plain(value), "\n")) + "\n"


def _indented(value: Any, margin: str) -> str:
    """Return the same as `json.dumps(indent=2)` for plain values, in a third of the time."""
    if not isinstance(value, dict | list) or not value:
        return _LINE.encode(value)
    # Python's fast encoder cannot indent. But a flat list or dict has only a separator between its values.
    inner = f"{margin}  "
    parts = value.values() if isinstance(value, dict) else value
    if not any(isinstance(part, dict | list) for part in parts):
        line = _flat_encoder(f",{inner}").encode(value)
        return f"{line[0]}{inner}{line[1:-1]}{margin}{line[-1]}"
    if isinstance(value, list):
        return f"[{inner}" + f",{inner}".join(_indented(part, inner) for part in value) + f"{margin}]"
    items = (f"{_LINE.encode(key)}: {_indented(part, inner)}" for key, part in value.items())
    return f"{{{inner}" + f",{inner}".join(items) + f"{margin}}}"


def _harmless(text: str) -> str:
    """Return equal JSON without terminal control characters and lone surrogates, which UTF-8 cannot encode."""
    if text.isascii() and "\x7f" not in text:
        return text
    escaped = _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", escaped)


_cached_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def adapter(value_type: type[Value]) -> TypeAdapter[Value]:
    """Return the validator of a dataclass for JSON, cached per type."""
    return _cached_adapter(value_type)


def read_json(path: Path) -> Any:
    """Return the value in a run's JSON file; see `read_whole`. DamagedFileError if it is not valid JSON."""
    content = read_whole(path)
    if not content:
        raise DamagedFileError(f"cannot read {path}: is empty")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"cannot read {path}: is not valid JSON: {error}") from error


def read_versioned(path: Path, value_type: type[Value], schema_version: int) -> Value:
    """Read a dataclass with a ``schema_version`` from a JSON file. ConfigError if damaged or of another version."""
    try:
        document = read_json(path)
    except DamagedFileError as error:
        raise ConfigError(Problem(str(error).removeprefix(f"cannot read {path}: "), file=str(path))) from error
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found is None:
        raise ConfigError(Problem("was not written by this program: it has no schema_version", file=str(path)))
    if found != schema_version:
        message = f"has schema version {found}; this program reads version {schema_version}"
        raise ConfigError(Problem(message, file=str(path)))
    try:
        return adapter(value_type).validate_python(document)
    except ValidationError as error:
        problems = [
            Problem(details["msg"], file=str(path), key=".".join(str(part) for part in details["loc"]))
            for details in error.errors()
        ]
        raise ConfigError(problems) from error
