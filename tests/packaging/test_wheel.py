"""The wheel holds what it needs to work where this checkout is not."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.wheels import ROOT, built_wheel, installed_wheel

MAX_BYTES = 15_000_000
STARTER = "isaaclab_arena/assets/starter"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def tracked(*pathspecs: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *pathspecs], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def test_it_holds_every_module_and_every_file_of_its_packages(contents):
    files = tracked("arena_wire", "isaaclab_arena", "isaaclab_arena_gr00t")
    packages = {name for name in files if (ROOT / name).is_file()}
    assert packages - contents == set()


def test_it_holds_nothing_else(contents):
    tops = {name.partition("/")[0] for name in contents}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "arena_wire", "eval_runner.py", "isaaclab_arena", "isaaclab_arena_gr00t",
    }  # fmt: skip


def test_it_is_small(wheel):
    assert wheel.stat().st_size <= MAX_BYTES


@pytest.mark.parametrize("name", ["quickstart.json", "trained.json"])
def test_it_holds_the_models_of_the_jobs_that_come_along(contents, name):
    text = (ROOT / "jobs" / name).read_text()
    models = set(re.findall(r'"(models/\w+)"', text))
    assert models
    weights = {path for path in contents if path.endswith((".pt", ".safetensors"))}
    for model in models:
        assert any(path.startswith(f"{STARTER}/{model}/") for path in weights), model


def test_there_is_one_copy_of_the_jobs_and_the_models_in_the_repository():
    assert (ROOT / STARTER / "jobs").resolve() == ROOT / "jobs"
    assert (ROOT / STARTER / "models").resolve() == ROOT / "models"


@pytest.mark.slow
def test_it_works_in_a_clean_environment_outside_the_repository(wheel, tmp_path):
    programs = installed_wheel(wheel, tmp_path / "venv")

    def run(*arguments: str, directory: Path = tmp_path) -> str:
        command = [str(programs / "isaaclab-arena"), *arguments]
        finished = subprocess.run(
            command, cwd=directory, env={"PATH": str(programs)}, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    told = run("quickstart", "--limit", "1", "--output_dir", "first")
    assert re.search("left out of quickstart.json: colour-gr00t: .*the package gr00t cannot be imported", told), told
    jobs = json.loads((tmp_path / "first" / "results.json").read_text())["jobs"]
    assert [job["status"] for job in jobs] == ["completed"] * 8
    assert str(tmp_path / "venv") in (tmp_path / "arena_quickstart" / "trained.json").read_text()
    run("run", "--eval_jobs_config", "arena_quickstart/trained.json", "--limit", "1", "--no_dataset")
    run("new", "policy", "my_policy")
    run("run", "--eval_jobs_config", "jobs.json", "--limit", "1", directory=tmp_path / "my_policy")
    assert "lift_object" in run("list", "environments")
    assert "gr00t_closedloop" in run("list", "policies")


def test_the_source_archive_of_the_small_model_holds_what_reads_its_messages(tmp_path):
    model = tmp_path / "submodules" / "Isaac-GR00T"
    shutil.copytree(ROOT / "arena_wire", tmp_path / "arena_wire")
    shutil.copytree(
        ROOT / "submodules" / "Isaac-GR00T", model, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info", "tests")
    )
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=model, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        files = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert {f"arena_wire/{path.name}" for path in (ROOT / "arena_wire").glob("*.py")} <= files
