"""Reading documents for what can be run in them."""

import re
import shlex
import sys

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language in a document; those of no language are called by an empty name."""
    return [body for kind, body in _FENCE.findall(text) if kind == language]


def as_arguments(line: str) -> list[str]:
    """Return a documented command with this Python in place of the one on the path."""
    words = shlex.split(line)
    programs = {"python": [sys.executable], "isaaclab-arena": [sys.executable, "-m", "isaaclab_arena.cli"]}
    return [*programs[words[0]], *words[1:]]
