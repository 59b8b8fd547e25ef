"""The one rule for paths that people give: a ``~`` in front is a home directory, and all else, ``$`` too, stays."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def expanded(given: Any) -> Any:
    """Return a value with the home directory in place of each ``~`` that begins a text or a path.

    It need not be known which of the texts are paths: no other begins with ``~/``. As in a shell, ``~name`` stays where
    there is no user of that name.

    Args:
        given: A text, a path, or mappings, lists and tuples of them; anything else is returned as it is.
    """
    if isinstance(given, str):
        return os.path.expanduser(given) if given.startswith("~") else given  # noqa: PTH111  pathlib changes other texts
    if isinstance(given, os.PathLike):
        return given_path(os.fspath(given))
    if isinstance(given, Mapping):
        return {name: expanded(value) for name, value in given.items()}
    if type(given) in {list, tuple}:
        return type(given)(expanded(value) for value in given)
    return given


def given_path(path: "str | os.PathLike[str]") -> Path:
    """Return a path with the home directory in place of a ``~`` that begins it."""
    return Path(expanded(os.fspath(path)))


def typed_words(argv: Sequence[str] | None) -> list[str]:
    """Return the words of a command line, `expanded`, also what stands behind the first ``=`` as in ``--output=~/x``.

    Args:
        argv: The words after the program's name; None for those of this process.
    """
    words = sys.argv[1:] if argv is None else argv
    parts = (word.partition("=") for word in words)
    return [f"{expanded(name)}{equals}{expanded(value)}" for name, equals, value in parts]
