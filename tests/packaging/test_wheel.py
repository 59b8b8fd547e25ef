"""The wheel holds what it needs to work where this checkout is not."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.documentation.reading import steps_of
from tests.end_to_end.launching import ROOT

MAX_BYTES = 15_000_000
STARTER = "isaaclab_arena/assets/starter"


def tracked(*pathspecs: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *pathspecs], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def built_wheel(directory: Path) -> Path:
    """Build the wheel from the files that git knows, without a network, in a directory that gets a copy of them too."""
    packages = ("arena_wire", "isaaclab_arena", "jobs/", "models/")
    wanted = ("pyproject.toml", "README.md", "LICENSE", "eval_runner.py", *packages)
    for name in tracked():
        if name.startswith(wanted):
            target = directory / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    arguments = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", str(directory)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *arguments, str(directory / "sources")], check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def installed_wheel(wheel: Path, directory: Path) -> Path:
    """Install a wheel into a new virtual environment, with the packages that it needs from this one; return its bin."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    python = directory / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    # Python does not read the .pth files there, so nothing that is installed as editable comes along.
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return directory / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def test_it_holds_every_module_and_file_of_its_packages_the_jobs_their_models_and_nothing_else(wheel):
    assert wheel.stat().st_size <= MAX_BYTES
    contents = set(zipfile.ZipFile(wheel).namelist())
    packages = {"arena_wire", "isaaclab_arena", "isaaclab_arena_gr00t"}
    assert {name for name in tracked(*packages) if (ROOT / name).is_file()} <= contents
    tops = {name.partition("/")[0] for name in contents}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*packages, "eval_runner.py"}
    for job_file in ("quickstart", "trained"):
        models = set(re.findall(r'"(models/\w+)"', (ROOT / "jobs" / f"{job_file}.json").read_text()))
        assert models
        weights = [path for path in contents if path.endswith((".pt", ".safetensors"))]
        for model in models:
            assert any(path.startswith(f"{STARTER}/{model}/") for path in weights), model
    # There is one copy of them in the repository.
    for name in ("jobs", "models"):
        assert (ROOT / STARTER / name).resolve() == ROOT / name


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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_start_says_can_be_typed_into_an_empty_directory(wheel, tmp_path):
    """From a wheel that pip installs. It needs a package index; torch is held to the version that is tested."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    found = " ".join(filter(None, [os.environ.get("PIP_FIND_LINKS"), str(wheel.parent)]))
    constrained = {"PIP_FIND_LINKS": found, "PIP_CONSTRAINT": str(tmp_path / "constraints.txt")}
    # A shell in which nothing of this checkout is, in the environment once there is one.
    shell = {**settings, **constrained, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    activated = "test -f .venv/bin/activate && source .venv/bin/activate\n"
    pages = ("install", "first_run", "my_policy", "my_task", "read_the_results")
    steps = [step for page in pages for step in steps_of((ROOT / "docs" / "start" / f"{page}.md").read_text())]
    assert steps[2].text == "pip install isaaclab-arena-mujoco"
    for step in steps:
        if step.file:
            (tmp_path / "empty" / step.file).write_text(step.text)
            continue
        line = ["bash", "-c", activated + step.text]
        done = subprocess.run(line, cwd=tmp_path / "empty", env=shell, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{step}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    installed = (tmp_path / "empty" / ".venv").glob("lib/python*/site-packages/isaaclab_arena/__init__.py")
    assert len(list(installed)) == 1
