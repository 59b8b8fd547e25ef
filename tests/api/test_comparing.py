import json

import pytest

import isaaclab_arena as arena
from isaaclab_arena.cli.main import main
from tests.analysis.recorded_runs import write_run


def test_a_program_gets_what_the_command_writes(tmp_path):
    old = write_run(tmp_path / "old", {"lift": "f" * 8, "reach": "sfsfsfsf"})
    new = write_run(tmp_path / "new", {"lift": "s" * 8, "reach": "ssfssfsf"})
    comparison = arena.compare(old, str(new))
    assert main(["compare", str(old), str(new)]) == 0
    for path in comparison.save(tmp_path / "said"):
        assert path.read_bytes() == (new / path.name).read_bytes()
    assert (comparison.verdict, comparison.tasks[0].difference) == ("better", 1.0)
    assert str(comparison) == (new / "comparison.md").read_text()


def test_jobs_of_one_run_are_compared_with_a_named_one_or_the_best(tmp_path):
    run = write_run(tmp_path / "run", {"a": "ffffffff", "b": "ssssssss"})
    assert arena.compare(run, baseline="a").verdict == "better"
    assert arena.compare(run, baseline="best").report.choice is not None


def test_jobs_of_other_names_and_a_margin_may_be_asked_for(tmp_path):
    old, new = write_run(tmp_path / "old", {"a": "s" * 99}), write_run(tmp_path / "new", {"b": "s" * 99})
    assert arena.compare(old, new, names={"a": "b"}, margin=0.05).verdict == "no worse"
    unfinished = write_run(tmp_path / "unfinished", {"b": "s" * 98 + "-"})
    assert arena.compare(old, unfinished, names={"a": "b"}, partial=True).tasks[0].counts.total == 98


def test_mistakes_name_the_argument(tmp_path):
    run = write_run(tmp_path / "run", {"lift": "sf"})
    with pytest.raises(arena.ConfigError, match=r"alpha: must be between 0 and 1, got 2"):
        arena.compare(run, run, alpha=2.0)
    with pytest.raises(arena.ConfigError, match=r"margin: must be between 0 and 1, got -1"):
        arena.compare(run, run, margin=-1.0)
    with pytest.raises(arena.ConfigError, match=r"give two runs, .* or one run and its job that is the baseline"):
        arena.compare(run)
    other = write_run(tmp_path / "other", {"reach": "sf"})
    with pytest.raises(arena.ArenaError, match="have no job of the same name"):
        arena.compare(run, other)


def test_results_say_where_their_run_is(tmp_path):
    run = write_run(tmp_path / "run", {"lift": "sf"})
    results = arena.load_results(run)
    assert json.loads(arena.compare(results, results).save(tmp_path)[0].read_text())["verdict"] == "undecided"
