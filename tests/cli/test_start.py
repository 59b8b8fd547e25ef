"""The commands that start something new."""

import json
import re
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.runs import with_defaults
from isaaclab_arena.cli.start import PACKAGES, write_starter
from isaaclab_arena.storage.episodes import read_episode
from tests.documentation.reading import declare_entry_points, typed

# `isaaclab-arena new` writes skeletons that work and whose tests pass.


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("kind", "least"), [("policy", 5), ("task", 5), ("robot", 6)])
def test_what_it_writes_passes_its_test_and_runs_its_job_file_in_its_directory(kind, least, here):
    assert main(["new", kind, "green_thing"]) == 0
    directory = here / "green_thing"
    for path in directory.iterdir():
        assert not re.search("my_?name", path.name + path.read_text(), re.IGNORECASE), "the name of the template"
    if kind == "task":
        declare_entry_points(directory, (directory / "pyproject.toml").read_text())
    # In a place of its own: pytest removes what earlier runs have left in the usual one, which may take minutes.
    tested = typed(f"python -m pytest -q -p no:cacheprovider --basetemp={here / 'temporary'}", directory)
    assert int(re.findall(r"(\d+) passed", tested.stdout)[0]) >= least
    typed("isaaclab-arena run jobs.json --limit 1", directory)


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


def test_job_files_are_written_whose_models_are_here_and_a_file_that_is_there_stays(starter, tmp_path):
    (starter / "jobs" / "paths.json").write_text('["isaaclab_arena/assets", "models/small", "isaaclab_arena/x", 3]')
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "quickstart.json").write_text("{}")
    told = list(write_starter(mine, starter))
    assert {path.name for path in mine.iterdir()} == {"paths.json", "quickstart.json", "small.json", "sweep.yaml"}
    model = str(starter / "models" / "small")
    assert json.loads((mine / "small.json").read_text())["jobs"] == [{"model_path": model}]
    # A path is that of the first root that holds it.
    assets = str(PACKAGES / "isaaclab_arena" / "assets")
    assert json.loads((mine / "paths.json").read_text()) == [assets, model, "isaaclab_arena/x", 3]
    assert told[-1].endswith("small.json, sweep.yaml")
    assert (mine / "quickstart.json").read_text() == "{}"


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


def test_the_expert_is_recorded_with_all_that_it_sees(tmp_path):
    arguments = ["--num_episodes", "1", "--output_dir", str(tmp_path / "out"), "lift_object", "--camera_size", "32"]
    assert main(["collect", *arguments]) == 0
    episode = read_episode(tmp_path / "out" / "lift_object" / "dataset_lift_object.hdf5", 0)
    assert episode.attributes["success"]
    cameras = {name: array.shape[1:] for name, array in episode.arrays.items() if name.startswith("camera_obs/")}
    assert cameras == {f"camera_obs/{camera}_cam_rgb": (32, 32, 3) for camera in ("robot_head", "wrist")}


def test_another_policy_and_other_observations_may_be_asked_for():
    typed = ["--policy-type=mine.Policy", "--record_observations", "state", "lift_object"]
    assert with_defaults(typed) == ["--enable_cameras", *typed]
    usual = ["--enable_cameras", "--policy_type", "scripted", "--record_observations", "all"]
    assert with_defaults(["lift_object"]) == [*usual, "lift_object"]
