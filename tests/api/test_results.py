import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

import isaaclab_arena as arena
from isaaclab_arena import Results
from isaaclab_arena.cli.main import main
from isaaclab_arena.environments import SUITES, SuiteTask
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
