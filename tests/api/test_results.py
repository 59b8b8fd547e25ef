"""What a program gets: results, comparisons and environments, with the right types."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, assert_type, get_args, get_overloads, get_type_hints

import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from documentation.command_line import help_of, options_of
from isaaclab_arena import Results
from isaaclab_arena.cli.main import main
from isaaclab_arena.environments import SUITES, SuiteTask
from tests.analysis.recorded_runs import write_run
from tests.api.policies import push


@pytest.fixture(scope="module")
def results() -> Results:
    return arena.evaluate(environment="cartpole", policy=push, num_episodes=3, num_envs=2)


def test_data_frames_are_those_of_the_files_and_the_table_is_what_is_shown(results):
    for found, name in ((results.jobs, "results"), (results.episodes, "episodes")):
        pd.testing.assert_frame_equal(found, pd.read_parquet(results.output_dir / f"{name}.parquet"))
    assert "cartpole" in repr(results)
    assert f"results in {results.output_dir}" in repr(results)


def test_who_only_reads_results_loads_neither_torch_nor_a_simulator():
    heavy = "{'torch', 'mujoco', 'h5py'}"
    code = f"import sys, isaaclab_arena as arena; arena.load_results; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_a_job_has_typed_numbers(results):
    job = results.job("cartpole")
    assert job == results.job()
    told = results.jobs.iloc[0]
    assert (job.num_episodes, job.num_planned, job.num_errors) == (3, 3, 0)
    assert job.success_rate == told["success_rate"]
    assert job.interval == (told["success_low"], told["success_high"])
    assert type(job.mean_length) is float
    assert job.mean_length == results.episodes["length"].mean()


def test_saved_results_are_the_same_and_are_never_written_over(results, tmp_path):
    saved = results.save(tmp_path / "kept")
    loaded = arena.load_results(saved)
    pd.testing.assert_frame_equal(loaded.jobs, results.jobs)
    pd.testing.assert_frame_equal(loaded.episodes, results.episodes)
    assert (loaded.complete, loaded.names) == (True, ["cartpole"])
    with pytest.raises(arena.ConfigError, match="is not empty"):
        results.save(saved)
    with pytest.raises(arena.ConfigError, match=r"run\.json"):
        arena.load_results(tmp_path)
    with pytest.raises(arena.ConfigError, match="did you mean 'cartpole'"):
        results.job("cartpol")


def test_a_temporary_run_goes_with_its_results(tmp_path):
    results = arena.evaluate(environment="cartpole", policy=push, num_episodes=1)
    directory = results.output_dir
    assert (directory / "results.csv").is_file()
    del results
    assert not directory.exists()


def test_the_files_of_a_run_of_an_object_can_be_verified_and_its_program_goes_on_with_it(results, capsys):
    assert main(["verify", str(results.output_dir), "--sample", "0"]) == 0
    assert main(["verify", str(results.output_dir)]) == 1
    assert "job 'cartpole' cannot be run again" in capsys.readouterr().out
    assert main(["resume", str(results.output_dir)]) == 2
    assert "resume=True) in Python" in capsys.readouterr().err


class Swings:
    words = "Two tasks of one suite."

    def tasks(self, options: Mapping[str, Any]) -> list[SuiteTask]:
        del options
        return [SuiteTask(label=name, environment=f"gym:{name}") for name in ("CartPole-v1", "Acrobot-v1")]


def test_a_suite_of_a_job_file_is_a_line_of_its_own_in_memory_and_on_disk(tmp_path):
    job = {"name": "mine", "suite": "swings", "policy_type": "zero_action", "num_episodes": 2}
    job["arena_env_args"] = {"max_episode_length": 5, "success_reward_threshold": 5}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    with SUITES.restored_afterwards() as suites:
        suites.register("swings", Swings())
        results = arena.evaluate(tmp_path / "jobs.json", output_dir=tmp_path / "out", num_ranks=1)
    assert results.names == ["mine-CartPole-v1", "mine-Acrobot-v1"]
    [told] = results.suites.to_dict(orient="records")
    assert (told["name"], told["suite"], told["status"], told["tasks"]) == ("mine", "swings", "completed", 2)
    # A pole stands for five steps; each step of the other costs one.
    assert (told["mean_rate"], told["successes"], told["scored"]) == (0.5, 2, 4)
    pd.testing.assert_frame_equal(arena.load_results(tmp_path / "out").suites, results.suites)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "suites.parquet"), results.suites)
    assert "swings" in (tmp_path / "out" / "report.html").read_text()


# Comparisons.


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
    mistakes: list[tuple[list[Path], dict[str, Any], str]] = [
        ([run, run], {"alpha": 2.0}, "alpha: "),
        ([run, run], {"margin": -1.0}, "margin: "),
        ([run], {}, "give two runs"),
        ([run, other], {}, "no job of the same name"),
    ]
    for given, options, argument in mistakes:
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


# A user's ten lines have the right types: pyright reads them in `make check`, and here they run.


def test_ten_lines_of_a_user(tmp_path):
    def stay(observation: dict[str, dict[str, torch.Tensor]]) -> torch.Tensor:
        return torch.zeros(len(next(iter(observation["policy"].values()))), 1)

    results = arena.evaluate(environment="cartpole", policy=stay, num_episodes=2, num_envs=2, seed=0)
    assert_type(results, arena.Results)
    assert_type(results.jobs, pd.DataFrame)
    assert_type(results.episodes, pd.DataFrame)
    assert_type(results.complete, bool)
    job = results.job("cartpole")
    assert_type(job, arena.JobResults)
    assert_type(job.success_rate, float | None)
    assert_type(job.interval, tuple[float, float] | None)
    assert_type(job.num_episodes, int)
    assert_type(results.save(tmp_path / "kept"), Path)
    assert_type(arena.load_results(tmp_path / "kept"), arena.Results)
    comparison = arena.compare(results, tmp_path / "kept")
    assert_type(comparison, arena.Comparison)
    assert_type(comparison.tasks[0].difference, float)
    assert issubclass(arena.ConfigError, arena.ArenaError)


def test_an_option_that_is_not_there_is_a_type_error_and_a_mistake_that_is_told():
    """That the types refuse them is checked by pyright, which complains of a comment that ignores nothing."""
    with pytest.raises(arena.ConfigError, match="deterministc"):
        arena.evaluate("jobs.json", deterministc=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(arena.ConfigError, match="compression"):
        arena.evaluate("jobs.json", compression="lzma")  # pyright: ignore[reportArgumentType]
    with pytest.raises(arena.ConfigError, match="objct"):
        arena.evaluate(environment="lift_object", policy="scripted", objct="can")  # pyright: ignore[reportCallIssue]


def options_of_command(name: str) -> set[str]:
    """Return the options of a command, without those that have no effect."""
    return {
        word
        for option in options_of(help_of(name))
        if "Accepted and ignored" not in option.says
        for word in re.findall(r"--(\w+)", option.name)
    }


def keywords(overload: Callable[..., Any]) -> set[str]:
    """Return the names that its ``**options`` may have."""
    [options] = get_args(get_type_hints(overload)["options"])
    return set(get_type_hints(options))


def test_keywords_are_the_options_of_the_command_line_and_of_the_included_environments(capsys):
    said_otherwise = {"output_dir", "list_variations", "gpu_ids", "nproc_per_node", "launcher", "launcher_log_dir"}
    of_run = (options_of_command("run") & options_of_command("policy")) - said_otherwise - {"help"}
    of_file, of_job = map(keywords, get_overloads(arena.evaluate))
    assert of_file == of_run
    assert main(["list", "environments", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    own = {option["name"] for environment in listed for option in environment["options"]}
    explicit = {"num_episodes", "num_envs", "seed", "enable_cameras"}
    assert of_job == (of_run | own | {"conditions"}) - explicit
