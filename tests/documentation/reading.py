"""Reading documents for what can be run in them, and doing what they say as their reader does."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT, patience_s, run

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)
_FILE_NAME = re.compile(r"# ([\w/.]+\.(?:py|yaml|toml|json))\n")
# What a right job file needs that only a reader has: an interpreter, a package, files.
_OF_A_READER = re.compile("is no program that can be run|No module named|there is no such file|is (no|not a) directory")


@dataclass(frozen=True)
class Step:
    """A file to save, with its text, or a command to type, which names no file."""

    file: str
    text: str

    def __str__(self) -> str:
        return self.file or self.text


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language in a document; those of no language are called by an empty name."""
    return [body for kind, body in _FENCE.findall(text) if kind == language]


def steps_of(text: str) -> list[Step]:
    """Return the files and commands of a document in order; a command over several lines is one, without comments."""
    steps: list[Step] = []
    for language, body in _FENCE.findall(text):
        if match := _FILE_NAME.match(body):
            steps.append(Step(match[1], body))
        elif language == "bash":
            found: list[str] = []
            is_open = False
            for line in _COMMENT.sub("", body.replace("\\\n", " ")).splitlines():
                if is_open:
                    found[-1] += f" {line}"
                elif line.strip():
                    found.append(line)
                is_open ^= line.count("'") % 2 == 1
            steps += [Step("", " ".join(line.split())) for line in found]
    return steps


def commands_of(text: str) -> list[str]:
    """Return the commands in a document, in order."""
    return [step.text for step in steps_of(text) if not step.file]


def as_arguments(line: str) -> list[str]:
    """Return a documented command with this Python in place of the one on the path."""
    words = shlex.split(line)
    programs = {"python": [sys.executable], "isaaclab-arena": [sys.executable, "-m", "isaaclab_arena.cli"]}
    return [*programs[words[0]], *words[1:]]


def typed(line: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the result of a command that was typed in a directory; it has to succeed."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'submodules' / 'Isaac-GR00T'}:{directory}", **variables}
    finished = run(as_arguments(line), timeout_s=patience_s(200), directory=directory, extra=path)
    assert finished.returncode == 0, f"{line}\n{finished.stdout}\n{finished.stderr}"
    return finished


def follow(step: Step, directory: Path) -> str:
    """Do what a document says, in a directory; return what a command prints."""
    if step.file:
        (directory / step.file).parent.mkdir(parents=True, exist_ok=True)
        (directory / step.file).write_text(step.text)
        return ""
    if step.text.startswith("pip install"):
        declare_entry_points(directory, (directory / "pyproject.toml").read_text())
        return ""
    return typed(step.text, directory).stdout


def declare_entry_points(directory: Path, pyproject: str) -> None:
    """Write what installing a package with this project file leaves behind, without a network."""
    project = {"name": "my-package", "version": "1.0", **tomllib.loads(pyproject)["project"]}
    info = directory / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def mistakes_in(job_file: Path) -> list[dict[str, Any]]:
    """Return the problems that `isaaclab-arena validate` finds in a job file, without files that only a reader has."""
    printed = StringIO()
    with redirect_stdout(printed):
        main(["validate", "--json", str(job_file)])
    found = json.loads(printed.getvalue())
    assert found["files"] or found["problems"]
    return [problem for problem in found["problems"] if not _OF_A_READER.search(problem["message"])]
