"""The oldest releases that are promised to work are those that `make test-floors` installs and runs."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.wheels import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
NIGHTLY: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yaml").read_text())
EXTRAS = set(re.search(r"lowest-direct[^\n]*\n.*'\.\[([\w,]+)\]'", MAKEFILE)[1].split(","))  # pyright: ignore[reportOptionalSubscript]


def project(directory: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / directory / "pyproject.toml").read_text())["project"]


def floors() -> Iterator[tuple[str, Version]]:
    """Yield each package that one of the two projects needs, with the oldest release that it may be."""
    own, of_model = project("."), project("submodules/Isaac-GR00T")
    for text in chain(own["dependencies"], *own["optional-dependencies"].values(), of_model["dependencies"]):
        requirement = Requirement(text)
        (floor,) = (each.version for each in requirement.specifier if each.operator in {">=", "=="})
        yield requirement.name, Version(floor)


def test_all_extras_are_installed_at_their_floors():
    brought_by_dev = {"zstd", "gymnasium"}
    assert EXTRAS | brought_by_dev == set(project(".")["optional-dependencies"])


def test_a_package_that_is_needed_twice_has_one_floor():
    found = dict(floors())
    assert {name: found[name] for name, _ in floors()} == {name: max(floor, found[name]) for name, floor in floors()}


def test_the_nightly_workflow_runs_them():
    (job,) = NIGHTLY["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test-floors"]
    assert NIGHTLY[True]["schedule"]  # YAML 1.1 takes the key "on" for a truth value


def test_each_floor_is_installed_where_the_floors_are_tested():
    """Another package may need a newer release; then the floor was never run, and must be raised."""
    if version("scipy") != f"{dict(floors())['scipy']}.0":
        pytest.skip("make test-floors installs them")
    installed = {name: Version(version(name)).release[: len(floor.release)] for name, floor in floors()}
    assert installed == {name: floor.release for name, floor in floors()}
