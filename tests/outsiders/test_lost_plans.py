"""A run whose ``run.json`` somebody deleted or damaged."""

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.storage.run_plan import plan_copy_path, read_run_plan, write_run_plan
from tests.storage.crashed_runs import JobOnDisk, begin_attempt, plan, recover


@pytest.fixture
def output(tmp_path):
    write_run_plan(tmp_path, plan())
    JobOnDisk(tmp_path).finish(0, 1)
    begin_attempt(tmp_path, 1, recover(tmp_path))
    return tmp_path


@pytest.mark.parametrize("content", [None, b"", b'{"schema_version": 1, "jobs": 3}'])
def test_a_lost_or_damaged_plan_is_brought_back(output, capsys, content):
    path = output / "run.json"
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert main(["recover", str(output)]) == 0
    assert "is there again, with 1 job" in capsys.readouterr().out
    assert path.read_bytes() == whole
    assert read_run_plan(output) == plan()
    if content is not None:
        assert (output / "set_aside" / "run.json").read_bytes() == content


def test_who_asks_for_a_run_without_its_plan_is_told_the_way_out(output, capsys):
    (output / "run.json").unlink()
    assert main(["merge", str(output)]) == 2
    assert "it is lost; isaaclab-arena recover brings it back" in capsys.readouterr().err


def test_a_whole_plan_is_left_as_it_is(output, capsys):
    before = (output / "run.json").stat().st_mtime_ns
    assert main(["recover", str(output)]) == 2
    assert "nothing is lost" in capsys.readouterr().err
    assert (output / "run.json").stat().st_mtime_ns == before


def test_where_no_copy_is_what_is_known_and_what_is_missing_is_said(output, capsys):
    (output / "run.json").unlink()
    plan_copy_path(output).unlink()
    assert main(["recover", str(output)]) == 2
    told = capsys.readouterr().err
    assert "1 attempts, and results of 1 jobs (lift) are there" in told
    assert "the options of the jobs, how many episodes each has" in told
