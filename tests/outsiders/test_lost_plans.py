"""A run whose ``run.json`` somebody deleted or damaged."""

import shutil
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from tests.end_to_end.launching import write_jobs

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


def test_where_no_copy_is_the_way_out_is_said(output, capsys):
    (output / "run.json").unlink()
    (output / COPY).unlink()
    assert main(["recover", str(output)]) == 2
    told = capsys.readouterr().err
    assert "plan.json: is missing too" in told
    assert "recordings can still be replayed" in told
