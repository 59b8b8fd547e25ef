"""`isaaclab-arena quickstart` writes job files that run from anywhere, and runs the first."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.cli.commands.start import PACKAGES, write_starter
from isaaclab_arena.cli.main import main

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


def test_a_file_is_no_directory_for_it(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["quickstart", str(tmp_path / "mine")]) == 2
    assert "is no directory; name another one" in capsys.readouterr().err
