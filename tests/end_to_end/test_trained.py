"""A job file that evaluates trained checkpoints, as a user runs it."""

import json
import sys
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, jobs_table, run, same_tables, write_jobs
from tests.policy.checkpoints import write_checkpoint

REACH = {"environment": "reach", "num_envs": 2}
# Whatever a rank may have loaded when it has evaluated both jobs.
EVALUATE_AND_TELL = """
import sys
from isaaclab_arena.evaluation.eval_runner import main
code = main(sys.argv[1:])
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A directory with two trainings and a job file, beside what one process makes of it."""
    directory = tmp_path_factory.mktemp("trained")
    sizes = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}
    write_checkpoint(directory / "logs" / "reach", name="model_9.pt", **sizes)
    write_checkpoint(directory / "logs" / "reach", name="model_10.pt", seed=6, **sizes)
    write_checkpoint(directory / "logs" / "recurrent", name="model_best.pt", recurrent=True, **sizes)
    options = [
        {"checkpoint_path": "logs/reach"},
        {"checkpoint_path": "logs/reach", "checkpoint": 9, "stochastic": True},
        {"checkpoint_path": "logs/recurrent/model_best.pt"},
    ]
    jobs = [
        {"name": f"job{index}", "arena_env_args": REACH, "policy_type": "rsl_rl", "policy_config_dict": each,
         "num_episodes": 2}
        for index, each in enumerate(options)
    ]  # fmt: skip
    write_jobs(directory / "jobs.json", jobs)
    arguments = [sys.executable, "-c", EVALUATE_AND_TELL, "--eval_jobs_config", "jobs.json", "--output_dir", "one"]
    finished = run(arguments, directory=directory)
    assert finished.returncode == 0, finished.stderr
    (directory / "loaded.txt").write_text(finished.stdout.rpartition("loaded:")[2])
    return directory


def test_every_checkpoint_of_the_file_is_evaluated(trained):
    table = jobs_table(trained / "one")
    assert list(table["status"]) == ["completed"] * 3
    assert list(table["episodes"]) == [2, 2, 2]
    assert set(table["reproducible"]) == {"bitwise"}


def test_evaluating_a_checkpoint_loads_nothing_of_the_library_that_trained_it(trained):
    loaded = set((trained / "loaded.txt").read_text().split())
    assert {"torch", "isaaclab_arena"} <= loaded
    assert not {"rsl_rl", "tensordict", "tensorboard", "git", "onnxruntime"} & loaded


def test_two_ranks_give_the_table_of_one(trained):
    arguments = command("--eval_jobs_config", "jobs.json", "--output_dir", "two", ranks=2)
    finished = run(arguments, directory=trained, timeout_s=200)
    assert finished.returncode == 0, finished.stderr
    assert same_tables(trained / "one", trained / "two")


def test_a_log_says_which_file_was_evaluated(trained):
    log = (trained / "one" / "logs" / "rank0.log").read_text()
    assert "logs/reach/model_10.pt (SHA-256 " in log


def test_validation_finds_a_checkpoint_that_is_not_there(trained):
    jobs = json.loads((trained / "jobs.json").read_text())["jobs"]
    jobs[0]["policy_config_dict"]["checkpoint_path"] = "logs/nowhere"
    path = write_jobs(trained / "wrong.json", jobs)
    finished = run([sys.executable, "-m", "isaaclab_arena.cli", "validate", str(path)], directory=trained)
    assert finished.returncode == 2
    assert "job 'job0': policy_config_dict.checkpoint_path: 'logs/nowhere' does not exist" in finished.stderr


def test_a_checkpoint_for_another_robot_is_refused_before_anything_starts(trained):
    write_checkpoint(trained / "logs" / "dog", num_inputs=48, num_actions=12)
    job = {"name": "dog", "arena_env_args": REACH, "policy_type": "rsl_rl", "num_episodes": 2,
           "policy_config_dict": {"checkpoint_path": "logs/dog"}}  # fmt: skip
    path = write_jobs(trained / "dog.json", [job])
    finished = run(command("--eval_jobs_config", path, "--output_dir", "dog"), directory=trained)
    assert finished.returncode == 2
    assert (
        "job 'dog': policy_config_dict.checkpoint_path: logs/dog/model_1.pt: the network takes 48 numbers, this "
        in (finished.stderr)
    )
    assert not (trained / "dog").exists()
