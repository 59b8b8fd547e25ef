"""Reading documents for what can be run in them."""

import json
import re
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from isaaclab_arena.cli.main import main

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)
# What a right job file needs that only a reader has: an interpreter, a package.
_OF_A_READER = re.compile(r"is no program that can be run|No module named")


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


def mistakes_in(job_file: Path) -> list[dict[str, Any]]:
    """Return what `isaaclab-arena validate` holds against a job file, beside what only a reader of the document has."""
    printed = StringIO()
    with redirect_stdout(printed):
        main(["validate", "--json", str(job_file)])
    found = json.loads(printed.getvalue())
    assert found["files"] or found["problems"]
    return [problem for problem in found["problems"] if not _OF_A_READER.search(problem["message"])]
