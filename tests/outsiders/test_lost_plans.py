"""A run whose ``run.json`` somebody deleted or damaged."""

import json
import shutil
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from tests.end_to_end.launching import write_jobs
from tests.results.evidence import write_plan
from tests.storage.recovery.crashed_runs import JobOnDisk, begin_attempt, planned, recover

COPY = Path("attempts", "plan.json")
"""Where a run keeps a copy of its plan."""


JOBS = [
    {"name": name, "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_episodes": number}
    for name, number in (("one", 1), ("two", 2))
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the directory of a job file and of its run."""
    directory = tmp_path_factory.mktemp("finished")
    write_jobs(directory / "jobs.json", JOBS)
    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(directory)
        arguments = ["--eval_jobs_config", "jobs.json", "--output_dir", "out", "--seed", "7", "--device", "cpu"]
        assert evaluate(arguments) == 0
    return directory


@pytest.fixture
def output(finished, tmp_path) -> Path:
    """Return a copy of the run."""
    return Path(shutil.copytree(finished / "out", tmp_path / "out"))


@pytest.mark.parametrize("content", [None, b"", b'{"schema_version": 1, "jobs": 3}'])
def test_a_lost_or_damaged_plan_is_brought_back(output, capsys, content):
    path = output / "run.json"
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert main(["recover", str(output)]) == 0
    assert "is there again, with 2 jobs" in capsys.readouterr().out
    assert path.read_bytes() == whole
    assert main(["recover", str(output)]) == 2
    assert "nothing is lost" in capsys.readouterr().err
    if content is not None:
        assert (output / "set_aside" / "run.json").read_bytes() == content


def test_who_asks_for_a_run_without_its_plan_is_told_the_way_out(output, capsys):
    (output / "run.json").unlink()
    assert main(["merge", str(output)]) == 2
    assert "it is lost; isaaclab-arena recover restores it" in capsys.readouterr().err


def test_a_whole_plan_is_left_as_it_is(output, capsys):
    before = (output / "run.json").stat().st_mtime_ns
    assert main(["recover", str(output)]) == 2
    assert "nothing is lost" in capsys.readouterr().err
    assert (output / "run.json").stat().st_mtime_ns == before


def test_where_no_copy_is_what_is_known_and_what_is_missing_is_said(tmp_path, capsys):
    write_plan(tmp_path, planned())
    JobOnDisk(tmp_path).finish(0, 1)
    begin_attempt(tmp_path, 1, recover(tmp_path))
    (tmp_path / "run.json").unlink()
    (tmp_path / COPY).unlink()
    assert main(["recover", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "attempt_1.json: command_line: its command line is of no runner: ''" in told
    assert "1 attempts, and results of 1 jobs (lift) are there" in told
    assert "the options of the jobs, how many episodes each has" in told


@pytest.fixture
def older(finished, tmp_path, monkeypatch) -> Path:
    """Return a copy of both whose run has lost its plan, as one of an earlier version may, and be there."""
    directory = Path(shutil.copytree(finished, tmp_path / "older"))
    (directory / "out" / "run.json").unlink()
    (directory / "out" / COPY).unlink()
    monkeypatch.chdir(directory)
    return directory


def test_the_plan_of_an_older_run_is_made_anew_from_its_first_attempt_and_its_job_file(finished, older, capsys):
    assert main(["recover", "out"]) == 0
    told = capsys.readouterr().out
    assert "out/run.json is there again, with 2 jobs" in told
    assert "made anew from what was typed" in told
    before, after = (json.loads((directory / "out" / "run.json").read_text()) for directory in (finished, older))
    assert after == {**before, "created_at": after["created_at"], "working_directory": str(older)}
    assert (older / "out" / COPY).is_file()
    assert evaluate(["--eval_jobs_config", "jobs.json", "--output_dir", "out", "--resume", "--seed", "7"]) == 0


def test_a_job_file_that_was_changed_since_makes_no_plan(older, capsys):
    write_jobs(older / "jobs.json", [{**job, "num_episodes": 3} for job in JOBS])
    assert main(["recover", "out"]) == 2
    told = capsys.readouterr().err
    assert "jobs.json: is not what the run began with: its jobs have the hash" in told
    assert "(job 'one'); put it back as it was" in told
    assert not (older / "out" / "run.json").exists()


def test_a_job_file_that_is_gone_is_named(older, capsys):
    (older / "jobs.json").rename(older / "other.json")
    assert main(["recover", "out"]) == 2
    told = capsys.readouterr().err
    assert f"what it asked for cannot be read any more, from '{older}': --eval_jobs_config jobs.json" in told
    assert "put the job file back as it was" in told


def test_without_recordings_nothing_shows_that_the_job_file_is_the_same(older, capsys):
    for path in (older / "out").glob("*/dataset_*.hdf5"):
        path.unlink()
    assert main(["recover", "out"]) == 2
    assert "holds no recording that says with which configuration it was made" in capsys.readouterr().err


@pytest.mark.parametrize("instead", ["nothing", "a directory"])
def test_a_first_attempt_that_is_gone_too_is_named(older, capsys, instead):
    path = older / "out" / "attempts" / "attempt_1.json"
    path.unlink()
    if instead == "a directory":
        path.mkdir()
    assert main(["recover", "out"]) == 2
    told = capsys.readouterr().err
    assert "attempt_1.json is missing" in told or "attempt_1.json: is a directory" in told


def test_an_option_that_this_version_does_not_have_is_shown(older, capsys):
    path = older / "out" / "attempts" / "attempt_1.json"
    path.write_text(path.read_text().replace('"--seed"', '"--seeds_of_old"'))
    assert main(["recover", "out"]) == 2
    assert "--seeds_of_old" in capsys.readouterr().err


def test_code_that_a_job_names_can_be_refused(older, capsys):
    write_jobs(older / "jobs.json", [{**job, "policy_type": "my.policy:Policy"} for job in JOBS])
    assert main(["recover", "--no_import", "out"]) == 2
    assert "my.policy" in capsys.readouterr().err
