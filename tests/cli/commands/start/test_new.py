"""`isaaclab-arena new` writes skeletons that work and whose tests pass."""

import re
import sys
from pathlib import Path

import pytest

from isaaclab_arena.cli.commands.start import SKELETONS, write_skeleton
from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT, run

COMMAND = [sys.executable, "-m", "isaaclab_arena.cli"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("kind", "least"), [("policy", 5), ("task", 5), ("robot", 6)])
def test_the_test_of_what_it_writes_passes(kind, least, here):
    assert main(["new", kind, "green_thing"]) == 0
    # In a place of its own: pytest removes what earlier runs have left in the usual one, which may take minutes.
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={here / 'temporary'}"]
    finished = run(arguments, directory=here / "green_thing", extra={"PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, finished.stdout
    assert int(re.findall(r"(\d+) passed", finished.stdout)[0]) >= least


@pytest.mark.parametrize("kind", ["policy", "robot"])
def test_the_job_file_of_what_it_writes_runs_in_its_directory(kind, here):
    assert main(["new", kind, "green_thing"]) == 0
    arguments = ["run", "--eval_jobs_config", "jobs.json", "--limit", "1"]
    finished = run([*COMMAND, *arguments], directory=here / "green_thing", extra={"PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, finished.stderr


def test_the_job_file_of_a_task_runs_once_it_is_installed(here):
    assert main(["new", "task", "green_thing"]) == 0
    # What an installation leaves behind: the entry points of the project file.
    [group] = re.findall(
        r'^\[project\.entry-points\."(.+)"\]\n(.+)$', (here / "green_thing/pyproject.toml").read_text(), re.MULTILINE
    )
    info = here / "green_thing" / "green_thing-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: green_thing\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{group[0]}]\n{group[1]}\n".replace('"', ""))
    arguments = ["run", "--eval_jobs_config", "jobs.json", "--limit", "1"]
    finished = run([*COMMAND, *arguments], directory=here / "green_thing", extra={"PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("kind", ["policy", "task", "robot"])
def test_nothing_in_it_has_the_name_of_the_template(kind, tmp_path):
    for path in write_skeleton(kind, "green_thing", tmp_path / "new"):
        assert "my_name" not in path.name
        assert not re.search("my_?name", path.read_text(), re.IGNORECASE)


def test_every_kind_has_a_skeleton_with_a_test_and_a_job_file():
    for kind in ("policy", "task", "robot"):
        names = {path.name for path in (SKELETONS / kind).iterdir()}
        assert {"test_my_name.py.txt", "jobs.json.txt"} <= names


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("policy", "My-Policy", "cannot be the name of a module; use lower case, digits and underscores: my_policy"),
        ("policy", "class", "cannot be the name of a module"),
        ("policy", "scripted", "there is a policy called 'scripted' already"),
        ("task", "reach", "there is a task called 'reach' already"),
        ("task", "torch", "there is a module called 'torch' already"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(kind, name, message, here, capsys):
    assert main(["new", kind, name]) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_what_is_there_already_stays(here, capsys):
    (here / "mine").mkdir()
    assert main(["new", "policy", "mine"]) == 2
    assert "'mine' is there already; nothing was written" in capsys.readouterr().err
    assert list((here / "mine").iterdir()) == []
