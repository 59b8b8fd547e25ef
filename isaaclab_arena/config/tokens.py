"""Command-line tokens of the old job files, ``["--num_envs", "4", "lift_object", "--object", "cube"]``."""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from isaaclab_arena.errors import ConfigError, Problem

FLAGS = frozenset({"enable_cameras", "headless", "distributed"})
"""Options that take no value, so that a word after them is positional."""

SCALARS = frozenset({"num_envs", "env_spacing", "placement_seed", "seed", "device"})
"""Options that take exactly one value, so that a second word after them is positional."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def parse_tokens(
    tokens: Sequence[str], *, flags: Collection[str] = FLAGS, scalars: Collection[str] = SCALARS
) -> tuple[list[str], dict[str, Any]]:
    """Split tokens into positional words and options.

    An option is ``--name``, ``--name value``, ``--name=value`` or ``--name value value``; hyphens inside a name read as
    underscores. Options without a value are True, several values become a list. Every other option takes all words
    up to the next option, so positional words come first or after an option of ``flags`` or ``scalars``.

    Args:
        tokens: What a person would type.
        flags: Names of options that take no value.
        scalars: Names of options that take exactly one value.

    Returns:
        The positional words, and the options' values by name: numbers, booleans or strings.

    Raises:
        ConfigError: With every problem: an option given twice, with one hyphen, without a name or its one value.
    """
    positionals: list[str] = []
    options: dict[str, Any] = {}
    problems, position = [], 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if not _is_option(token):
            positionals.append(token)
            continue
        name, equals, value = token.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        words = [value] if equals else _words_after(tokens, position, name, flags, scalars)
        position += 0 if equals else len(words)
        twice = Problem(f"--{name} is given twice", key=name) if name in options else None
        problem = _problem_with(token, name, words, scalars) or twice
        problems += [problem] if problem else []
        options.setdefault(name, _option_value(words))
    if problems:
        raise ConfigError(problems)
    return positionals, options


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and _DECIMAL.fullmatch(word) is None


def _words_after(
    tokens: Sequence[str], position: int, name: str, flags: Collection[str], scalars: Collection[str]
) -> list[str]:
    limit = 0 if name in flags else 1 if name in scalars else len(tokens)
    words: list[str] = []
    while len(words) < limit and position + len(words) < len(tokens) and not _is_option(tokens[position + len(words)]):
        words.append(tokens[position + len(words)])
    return words


def _problem_with(token: str, name: str, words: list[str], scalars: Collection[str]) -> Problem | None:
    if not token.startswith("--"):
        return Problem(f"'{token}' has one hyphen; options begin with two, --{token[1:]}")
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        return Problem(f"'{token}' names no option")
    if name in scalars and not words:
        return Problem(f"--{name} needs a value", key=name)
    return None


def _option_value(words: list[str]) -> Any:
    if not words:
        return True
    return _typed(words[0]) if len(words) == 1 else [_typed(word) for word in words]


def _typed(word: str) -> Any:
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    if _INTEGER.fullmatch(word) and len(word) < 300:
        return int(word)
    if _DECIMAL.fullmatch(word) and math.isfinite(float(word)):
        return float(word)
    return word
