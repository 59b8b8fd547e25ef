"""Running a document as its reader does: saves files under the names that they begin with, types commands in order."""

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.documentation.reading import as_arguments
from tests.end_to_end.launching import ROOT, patience_s, run

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w/.]+\.(?:py|yaml|toml|json))\n")


@dataclass(frozen=True)
class Step:
    """What the reader of a document does next.

    Attributes:
        file: Name of a file to save; empty for a command.
        text: Its content, or the command.
    """

    file: str
    text: str


def steps_of(text: str) -> list[Step]:
    """Return what a document has its reader do, in order."""
    steps: list[Step] = []
    for language, body in _BLOCK.findall(text):
        if match := _FILE_NAME.match(body):
            steps.append(Step(match[1], body))
        elif language == "bash":
            steps += [Step("", line) for line in body.splitlines()]
    return steps


def follow(step: Step, directory: Path) -> None:
    """Do what a document says, in a directory; a command has to end well."""
    if step.file:
        (directory / step.file).parent.mkdir(parents=True, exist_ok=True)
        (directory / step.file).write_text(step.text)
    elif step.text.startswith("pip install"):
        declare_entry_points(directory)
    else:
        finished = typed(step.text, directory)
        assert finished.returncode == 0, f"{step.text}\n{finished.stdout}\n{finished.stderr}"


def typed(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Return how a command ended that was typed in a directory."""
    path = {"PYTHONPATH": f"{ROOT}:{directory}"}
    return run(as_arguments(line), timeout_s=patience_s(200), directory=directory, extra=path)


def declare_entry_points(directory: Path) -> None:
    """Write what ``pip install --editable .`` leaves behind, without a network."""
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    info = directory / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
