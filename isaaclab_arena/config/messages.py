"""Turn pydantic's errors into this project's messages."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from isaaclab_arena.errors import did_you_mean

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


def error_message(error: ErrorDetails, choices: Collection[str] = ()) -> str:
    """Return what is wrong, in the words of this project's error messages.

    Args:
        error: One entry of pydantic's ``ValidationError.errors()``.
        choices: Keys that would have been accepted, for the suggestion after an unknown one.
    """
    kind = error["type"]
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key{did_you_mean(str(error['loc'][-1]), choices)}"
    context: Mapping[str, Any] = error.get("ctx") or {}
    if kind in _FIXED:
        return _FIXED[kind].format(value=shown(error["input"]), **context)
    message = error["msg"]
    return f"{shown(error['input'])}: {message[:1].lower()}{message[1:]}"


def key_path(error: ErrorDetails) -> str:
    """Return where the error is, as a dotted path such as ``arena_env_args.num_envs``."""
    return ".".join(str(part) for part in error["loc"])


def shown(value: Any) -> str:
    """Return a value as JSON, shortened to what fits into a message."""
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        value = value[:_SHOWN_CHARACTERS]
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:57]}..."
