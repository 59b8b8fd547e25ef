"""Runs that a program compares, and environments that it makes."""

import json

import pytest
import torch

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
    run, other = write_run(tmp_path / "run", {"lift": "sf"}), write_run(tmp_path / "other", {"reach": "sf"})
    for given, options, argument in (
        ([run, run], {"alpha": 2.0}, "alpha: "),
        ([run, run], {"margin": -1.0}, "margin: "),
        ([run], {}, "give two runs"),
        ([run, other], {}, "no job of the same name"),
    ):
        with pytest.raises(arena.ArenaError, match=argument):
            arena.compare(*given, **options)


def test_results_say_where_their_run_is(tmp_path):
    results = arena.load_results(write_run(tmp_path / "run", {"lift": "sf"}))
    assert json.loads(arena.compare(results, results).save(tmp_path)[0].read_text())["verdict"] == "undecided"


# Environments.


def test_a_vector_environment_is_made_with_options_as_in_a_job():
    env = arena.make("lift_object", num_envs=2, object="can", seed=3, device="cpu")
    observation, info = env.reset()
    assert observation in env.observation_space
    assert env.environment.device == torch.device("cpu")
    assert len(info["conditions"]) == env.num_envs == 2
    env.close()
    with pytest.raises(arena.ConfigError, match="did you mean 'cube'"):
        arena.make("lift_object", object="cubee")
