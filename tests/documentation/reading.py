"""Reading documents for what can be run in them."""

import re
import shlex
import sys

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language in a document; those of no language are called by an empty name."""
    return [body for kind, body in _FENCE.findall(text) if kind == language]


def commands_of(text: str) -> list[str]:
    """Return the commands in a document, in order, without comments; a command over several lines is one.

    Args:
        text: A document, whose blocks of ``bash`` hold commands.
    """
    found: list[str] = []
    for body in blocks(text, "bash"):
        is_open = False
        for line in _COMMENT.sub("", body.replace("\\\n", " ")).splitlines():
            if is_open:
                found[-1] += f" {line}"
            elif line.strip():
                found.append(line)
            is_open ^= line.count("'") % 2 == 1
    return [" ".join(command.split()) for command in found]


def as_arguments(line: str) -> list[str]:
    """Return a documented command with this Python in place of the one on the path."""
    words = shlex.split(line)
    programs = {"python": [sys.executable], "isaaclab-arena": [sys.executable, "-m", "isaaclab_arena.cli"]}
    return [*programs[words[0]], *words[1:]]
