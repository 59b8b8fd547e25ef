"""The commands that start something new."""

import json
import re
import sys
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.runs import with_defaults
from isaaclab_arena.cli.start import PACKAGES, SKELETONS, write_skeleton, write_starter
from isaaclab_arena.storage.episodes import read_episode
from tests.end_to_end.launching import ROOT, run

# `isaaclab-arena new` writes skeletons that work and whose tests pass.


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


def assert_its_job_file_runs(directory: Path) -> None:
    arguments = ["run", "--eval_jobs_config", "jobs.json", "--limit", "1"]
    finished = run([*COMMAND, *arguments], directory=directory, extra={"PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("kind", ["policy", "robot"])
def test_the_job_file_of_what_it_writes_runs_in_its_directory(kind, here):
    assert main(["new", kind, "green_thing"]) == 0
    assert_its_job_file_runs(here / "green_thing")


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
    assert_its_job_file_runs(here / "green_thing")


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


# `isaaclab-arena quickstart` writes job files that run from anywhere, and runs the first.


JOB = {"arena_env_args": {"environment": "reach"}, "num_episodes": 1}


@pytest.fixture
def starter(tmp_path) -> Path:
    """A job file whose model is there, one whose model is not, and a YAML file."""
    directory = tmp_path / "starter"
    (directory / "models" / "small").mkdir(parents=True)
    (directory / "jobs").mkdir()
    quick = {"jobs": [{"name": "reach", "policy_type": "zero_action", **JOB}]}
    (directory / "jobs" / "quickstart.json").write_text(json.dumps(quick))
    (directory / "jobs" / "small.json").write_text('{"jobs": [{"model_path": "models/small"}]}')
    (directory / "jobs" / "large.json").write_text('{"jobs": [{"model_path": "models/large"}]}')
    (directory / "jobs" / "sweep.yaml").write_text("jobs: []\n")
    return directory


def test_job_files_are_written_whose_models_are_here(starter, tmp_path):
    told = list(write_starter(tmp_path / "mine", starter))
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "quickstart.json",
        "small.json",
        "sweep.yaml",
    ]
    assert json.loads((tmp_path / "mine" / "small.json").read_text())["jobs"] == [
        {"model_path": str(starter / "models" / "small")}
    ]
    assert told[-1].endswith("small.json, sweep.yaml")


def test_a_file_that_is_there_stays_as_it_is(starter, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "quickstart.json").write_text("{}")
    list(write_starter(tmp_path / "mine", starter))
    assert (tmp_path / "mine" / "quickstart.json").read_text() == "{}"


def test_a_path_is_that_of_the_first_root_that_holds_it(starter, tmp_path):
    (starter / "jobs" / "paths.json").write_text('["isaaclab_arena/assets", "models/small", "isaaclab_arena/x", 3]')
    list(write_starter(tmp_path / "mine", starter))
    located = json.loads((tmp_path / "mine" / "paths.json").read_text())
    there = [str(PACKAGES / "isaaclab_arena" / "assets"), str(starter / "models" / "small")]
    assert located == [*there, "isaaclab_arena/x", 3]


def test_jobs_that_cannot_run_here_are_left_out_with_the_reason(starter, tmp_path):
    jobs = [{"name": "here", "policy_type": "zero_action", **JOB}, {"name": "not", "policy_type": "absent", **JOB}]
    (starter / "jobs" / "quickstart.json").write_text(json.dumps({"jobs": jobs}))
    line, _ = write_starter(tmp_path / "mine", starter)
    assert line.startswith("left out of quickstart.json: not: no policy called 'absent'")
    assert json.loads((tmp_path / "mine" / "quickstart.json").read_text()) == {"jobs": jobs[:1]}


def test_the_first_file_runs_with_the_options_that_follow(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    job = {"name": "reach", "policy_type": "zero_action", **JOB, "num_episodes": 5}
    (tmp_path / "mine" / "quickstart.json").write_text(json.dumps({"jobs": [job]}))
    assert main(["quickstart", "mine", "--limit", "2"]) == 0
    [run] = (tmp_path / "mine" / "outputs").iterdir()
    assert json.loads((run / "results.json").read_text())["jobs"][0]["episodes"] == 2


@pytest.mark.parametrize("words", [["--help"], ["mine", "--help"], ["mine", "--limit", "1", "-h"]])
def test_help_writes_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["quickstart", *words])
    assert "Write job files to begin with" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def test_a_file_is_no_directory_for_it(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["quickstart", str(tmp_path / "mine")]) == 2
    assert "is no directory; name another one" in capsys.readouterr().err


def test_the_expert_is_recorded_with_all_that_it_sees(tmp_path, capsys):
    arguments = ["--num_episodes", "1", "--output_dir", str(tmp_path / "out"), "lift_object", "--camera_size", "32"]
    assert main(["collect", *arguments]) == 0
    dataset = tmp_path / "out" / "lift_object" / "dataset_lift_object.hdf5"
    episode = read_episode(dataset, 0)
    assert episode.attributes["success"]
    cameras = {name: array.shape[1:] for name, array in episode.arrays.items() if name.startswith("camera_obs/")}
    assert cameras == {f"camera_obs/{camera}_cam_rgb": (32, 32, 3) for camera in ("robot_head", "wrist")}


def test_another_policy_and_other_observations_may_be_asked_for():
    typed = ["--policy-type=mine.Policy", "--record_observations", "state", "lift_object"]
    assert with_defaults(typed) == ["--enable_cameras", *typed]
    assert with_defaults(["lift_object"]) == [
        "--enable_cameras",
        *("--policy_type", "scripted"),
        *("--record_observations", "all"),
        "lift_object",
    ]


def test_its_help_names_the_command_and_its_expert(capsys):
    with pytest.raises(SystemExit):
        main(["collect", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("usage: isaaclab-arena collect")
    assert "(default: scripted)" in out
