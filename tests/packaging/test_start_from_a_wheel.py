"""The five pages of Start, typed word by word into a shell, in an empty directory, from a wheel that pip installs.

It needs a package index. torch is held to the version that is tested, so that pip takes the build of that version.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.documentation.story import Step, steps_of
from tests.packaging.wheels import ROOT, built_wheel

PAGES = ("install", "first_run", "my_policy", "my_task", "read_the_results")
TORCH = "torch==2.13.0"


def shell_for(directory: Path, wheels: Path) -> dict[str, str]:
    """Return the variables of a shell whose pip finds the wheel, and in which nothing of this checkout is."""
    (directory / "constraints.txt").write_text(f"{TORCH}\n")
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    found = " ".join(filter(None, [os.environ.get("PIP_FIND_LINKS"), str(wheels)]))
    constrained = {"PIP_FIND_LINKS": found, "PIP_CONSTRAINT": str(directory / "constraints.txt")}
    return {**settings, **constrained, "PATH": os.environ["PATH"], "HOME": str(directory)}


def do(step: Step, directory: Path, shell: dict[str, str]) -> None:
    """Save a file, or type a command into a shell that is in the environment once there is one."""
    if step.file:
        (directory / step.file).write_text(step.text)
        return
    activated = "test -f .venv/bin/activate && source .venv/bin/activate\n"
    typed = ["bash", "-c", activated + step.text]
    finished = subprocess.run(typed, cwd=directory, env=shell, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{step.text}\n{finished.stdout[-4000:]}\n{finished.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_start_says_can_be_typed_into_an_empty_directory(tmp_path):
    for name in ("wheel", "home", "empty"):
        (tmp_path / name).mkdir()
    built_wheel(tmp_path / "wheel")
    shell = shell_for(tmp_path / "home", tmp_path / "wheel")
    steps = [step for page in PAGES for step in steps_of((ROOT / "docs" / "start" / f"{page}.md").read_text())]
    assert steps[2].text == "pip install isaaclab-arena-mujoco"
    for step in steps:
        do(step, tmp_path / "empty", shell)
    installed = (tmp_path / "empty" / ".venv").glob("lib/python*/site-packages/isaaclab_arena/__init__.py")
    assert len(list(installed)) == 1
