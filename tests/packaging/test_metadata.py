"""What says to others what this is, how to build it and how to cite it, agrees with what it is."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml

from isaaclab_arena.config.schema import TrackerName
from tests.packaging.wheels import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yaml").read_text())


def steps(instruction: str) -> list[str]:
    """Arguments of each use of an instruction in the Dockerfile, in order."""
    return [" ".join(line.split()) for line in re.findall(rf"^{instruction} (.+)$", DOCKERFILE, re.MULTILINE)]


def python_versions() -> set[str]:
    prefix = "Programming Language :: Python :: 3."
    return {f"3.{name.removeprefix(prefix)}" for name in PROJECT["classifiers"] if name.startswith(prefix)}


def test_the_citation_is_of_this_version_under_this_licence():
    assert (CITATION["version"], CITATION["license"]) == (PROJECT["version"], PROJECT["license"])
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert {"cff-version", "message", "title"} <= set(CITATION)


@pytest.mark.skipif(importlib.util.find_spec("cffconvert") is None, reason="cffconvert is not installed")
def test_the_citation_keeps_its_schema():
    subprocess.run([sys.executable, "-m", "cffconvert", "--validate"], cwd=ROOT, check=True)


def test_links_lead_to_sites_that_encrypt():
    assert PROJECT["urls"]
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())


def test_the_workflow_runs_the_checks_and_tests_that_contributors_run_on_every_python_that_is_named():
    job = WORKFLOW["jobs"]["check"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make check test"]
    assert "`make check test`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert set(job["strategy"]["matrix"]["python"]) == python_versions()
    assert PROJECT["requires-python"] == f">={min(python_versions(), key=lambda version: int(version[2:]))}"


def test_the_gate_of_every_landing_builds_the_site_before_the_tests_look_at_it():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines.index("make check") < lines.index("make docs") < lines.index("make test")


def test_the_workflow_runs_the_tests_of_services_with_their_libraries():
    commands = " ".join(step["run"] for step in WORKFLOW["jobs"]["services"]["steps"] if "run" in step)
    assert f"[{','.join([*TrackerName, 'rerun'])}]" in commands
    assert {*TrackerName, "rerun"} <= set(PROJECT["optional-dependencies"])
    tests = [word for word in commands.split() if word.startswith("tests/")]
    assert tests
    assert all((ROOT / name).exists() for name in tests)


def test_the_workflow_may_only_read():
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_image_is_installed_as_the_readme_says():
    documented = [line.strip() for line in re.findall(r"pip install -c [^`\n]+", (ROOT / "README.md").read_text())]
    installed = re.findall(r"pip install [^&]*[^& ]", " && ".join(steps("RUN")))
    assert installed == documented
    assert len(documented) >= 1


def test_the_image_runs_the_command_as_somebody_without_rights_and_watches_it_with_doctor():
    (user,) = steps("USER")
    assert user not in {"root", "0"}
    (health,) = steps("HEALTHCHECK")
    assert health.endswith('CMD ["isaaclab-arena", "doctor"]')
    assert steps("ENTRYPOINT") == ['["isaaclab-arena"]']
    assert DOCKERFILE.index("\nUSER ") < DOCKERFILE.index("\nCOPY ")


def test_what_the_image_copies_leaves_out_what_git_leaves_out():
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "outputs", "build", "dist"} <= set(ignored)
    assert ".git" not in ignored, "runs say of which revision they are"


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_linter_finds_nothing_in_the_dockerfile():
    finished = subprocess.run(shlex.split("hadolint Dockerfile"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
