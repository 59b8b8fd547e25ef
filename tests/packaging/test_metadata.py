"""What says to others what this is, how to build it and how to cite it, agrees with what it is."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from isaaclab_arena.config.schema import TrackerName
from tests.end_to_end.launching import ROOT

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
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())
    if importlib.util.find_spec("cffconvert"):
        subprocess.run([sys.executable, "-m", "cffconvert", "--validate"], cwd=ROOT, check=True)


def test_the_workflow_runs_the_checks_and_tests_that_contributors_run_on_every_python_that_is_named():
    assert WORKFLOW["permissions"] == {"contents": "read"}
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
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "outputs", "build", "dist"} <= set(ignored)
    assert ".git" not in ignored, "runs say of which revision they are"
    if shutil.which("hadolint"):
        subprocess.run(["hadolint", "Dockerfile"], cwd=ROOT, check=True)


# The oldest releases that are promised to work, which `make test-floors` installs and runs.


def floors() -> Iterator[tuple[str, Version]]:
    """Yield each package that one of the two projects needs, with the oldest release that it may be."""
    of_model = tomllib.loads((ROOT / "submodules/Isaac-GR00T/pyproject.toml").read_text())["project"]
    for text in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values(), of_model["dependencies"]):
        requirement = Requirement(text)
        (floor,) = (each.version for each in requirement.specifier if each.operator in {">=", "=="})
        yield requirement.name, Version(floor)


def test_all_extras_are_installed_at_their_floors():
    installed = re.search(r"lowest-direct[^\n]*\n.*'\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert installed
    brought_by_dev = {"zstd", "gymnasium"}
    assert {*installed[1].split(","), *brought_by_dev} == set(PROJECT["optional-dependencies"])


def test_a_package_that_is_needed_twice_has_one_floor():
    found = dict(floors())
    assert {name: found[name] for name, _ in floors()} == {name: max(floor, found[name]) for name, floor in floors()}


def test_the_nightly_workflow_runs_them():
    nightly: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yaml").read_text())
    (job,) = nightly["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test-floors"]
    assert nightly[True]["schedule"]  # YAML 1.1 takes the key "on" for a truth value


def test_each_floor_is_installed_where_the_floors_are_tested():
    """Another package may need a newer release; then the floor was never run, and must be raised."""
    if version("scipy") != f"{dict(floors())['scipy']}.0":
        pytest.skip("make test-floors installs them")
    installed = {name: Version(version(name)).release[: len(floor.release)] for name, floor in floors()}
    assert installed == {name: floor.release for name, floor in floors()}
