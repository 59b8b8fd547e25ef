import dataclasses

import pytest

from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.errors import ConfigError, refuse
from isaaclab_arena.training.config import TrainOptions, read_train_options


def read(*arguments: str):
    return read_train_options(arguments, program="train")


def test_a_task_options_and_values_may_come_in_any_order():
    options, task, words = read("velocity_go1", "--num-envs", "64", "agent.seed=3", "--max_iterations=5")
    assert (task, options.num_envs, options.max_iterations, words) == ("velocity_go1", 64, 5, ["agent.seed=3"])


def test_a_command_line_may_be_empty():
    assert read()[1:] == (None, [])


def test_resume_needs_no_directory(tmp_path):
    assert read("--resume", "reach")[:2][1] == "reach"
    assert read("--resume", "reach")[0].resume == ""
    assert read("reach", "--resume", str(tmp_path))[0].resume == str(tmp_path)


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match="--gamma: unknown option"):
        read("reach", "--gamma=3")


def test_one_task_at_a_time():
    with pytest.raises(ConfigError, match="TASK: one task is trained at a time, got reach cartpole"):
        read("reach", "cartpole")


def test_options_that_contradict_each_other_are_refused(tmp_path):
    options, *_ = read("reach", "--num_envs", "4", "--num_envs_total", "0")
    with pytest.raises(ConfigError) as raised:
        options.check()
    assert [str(problem) for problem in raised.value.problems] == [
        "--num_envs_total: give either this or --num_envs",
        "--num_envs_total: must be at least 1, got 0",
    ]
    options, *_ = read("reach", "--resume", str(tmp_path), "--run_directory", "elsewhere")
    with pytest.raises(ConfigError, match="--resume: names"):
        options.check()


def test_a_training_would_refuse_such_numbers_too():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(TrainOptions):
        rate: float = 1.0

    with pytest.raises(ConfigError, match="--rate: nan is no finite number"):
        refuse(wrong_numbers(Later(rate=float("nan"))))
    assert read_train_options(["reach"], program="x")[1] == "reach"
