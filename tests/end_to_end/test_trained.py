"""A job file that evaluates trained checkpoints, as a user runs it."""

import sys
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, job, jobs_table, run, same_tables, write_jobs
from tests.policy.checkpoints import write_checkpoint

# Whatever a rank may have loaded when it has evaluated both jobs.
EVALUATE_AND_TELL = """
import sys
from isaaclab_arena.evaluation.eval_runner import main
code = main(sys.argv[1:])
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(code)
"""


def evaluating(*options: dict) -> list[dict]:
    return [job("reach", "rsl_rl", 2, name=f"job{index}", options=each) for index, each in enumerate(options)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A directory with two trainings and a job file, beside what one process makes of it."""
    directory = tmp_path_factory.mktemp("trained")
    sizes = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}
    write_checkpoint(directory / "logs" / "reach", name="model_9.pt", **sizes)
    write_checkpoint(directory / "logs" / "reach", name="model_10.pt", seed=6, **sizes)
    write_checkpoint(directory / "logs" / "recurrent", name="model_best.pt", recurrent=True, **sizes)
    older = {"checkpoint_path": "logs/reach", "checkpoint": 9, "stochastic": True}
    recurrent = {"checkpoint_path": "logs/recurrent/model_best.pt"}
    write_jobs(directory / "jobs.json", evaluating({"checkpoint_path": "logs/reach"}, older, recurrent))
    arguments = [sys.executable, "-c", EVALUATE_AND_TELL, "--eval_jobs_config", "jobs.json", "--output_dir", "one"]
    finished = run(arguments, directory=directory)
    assert finished.returncode == 0, finished.stderr
    (directory / "loaded.txt").write_text(finished.stdout.rpartition("loaded:")[2])
    return directory


@pytest.mark.slow
def test_every_checkpoint_of_the_file_is_evaluated(trained):
    table = jobs_table(trained / "one")
    assert list(table["status"]) == ["completed"] * 3
    assert list(table["episodes"]) == [2, 2, 2]
    assert set(table["reproducible"]) == {"bitwise"}
    assert "logs/reach/model_10.pt (SHA-256 " in (trained / "one" / "logs" / "rank0.log").read_text()


def test_evaluating_a_checkpoint_loads_nothing_of_the_library_that_trained_it(trained):
    loaded = set((trained / "loaded.txt").read_text().split())
    assert {"torch", "isaaclab_arena"} <= loaded
    assert not {"rsl_rl", "tensordict", "tensorboard", "git", "onnxruntime"} & loaded


def test_two_ranks_give_the_table_of_one(trained):
    arguments = command("--eval_jobs_config", "jobs.json", "--output_dir", "two", ranks=2)
    finished = run(arguments, directory=trained, timeout_s=200)
    assert finished.returncode == 0, finished.stderr
    assert same_tables(trained / "one", trained / "two")


def test_a_checkpoint_that_is_not_there_or_for_another_robot_is_refused_before_anything_starts(trained):
    write_checkpoint(trained / "logs" / "dog", num_inputs=48, num_actions=12)
    for name, message in (
        ("nowhere", "job 'job0': policy_config_dict.checkpoint_path: 'logs/nowhere' does not exist"),
        ("dog", "job 'job0': policy_config_dict.checkpoint_path: logs/dog/model_1.pt: the network takes 48 numbers"),
    ):
        path = write_jobs(trained / f"{name}.json", evaluating({"checkpoint_path": f"logs/{name}"}))
        finished = run(command("--eval_jobs_config", path, "--output_dir", name), directory=trained)
        assert finished.returncode == 2
        assert message in finished.stderr
        assert not (trained / name).exists()
