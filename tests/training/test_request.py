from pathlib import Path

import pytest
import yaml

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.config import TrainingConfig
from isaaclab_arena.training.documents import document_of
from isaaclab_arena.training.options import read_train_options
from isaaclab_arena.training.request import rows_of_a_rank, training_config


def asked(*arguments: object, world_size: int = 1) -> TrainingConfig:
    options, task, words = read_train_options([str(argument) for argument in arguments], program="train")
    return training_config(options, task, words, world_size=world_size)


def left_behind(folder: Path, config: TrainingConfig) -> Path:
    """Leave the settings of a run, as one that began does."""
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "train.yaml").write_text(yaml.safe_dump({**document_of(config), "world_size": 2}))
    return folder


def test_rows_are_shared_evenly():
    assert rows_of_a_rank(64, 4) == 16


@pytest.mark.parametrize(("total", "nearest"), [(10, "8 or 12"), (3, "4")])
def test_rows_that_do_not_divide_are_refused_with_numbers_that_do(total, nearest):
    with pytest.raises(ConfigError, match=f"--num_envs_total: {total} rows do not divide over 4 ranks; use {nearest}$"):
        rows_of_a_rank(total, 4)


def test_the_command_line_is_above_the_users_file_and_that_above_the_task(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_envs: 8\nagent: {seed: 3, max_iterations: 5}\n")
    config = asked("cartpole", "--config", tmp_path / "mine.yaml", "--max_iterations", 7)
    assert (config.num_envs, config.agent.seed, config.agent.max_iterations) == (8, 3, 7)
    assert config.environment == "cartpole"


def test_a_run_that_goes_on_has_as_many_rows_in_all_on_another_number_of_ranks(tmp_path):
    before = asked("cartpole", "--num_envs_total", 12, world_size=2)
    assert before.num_envs == 6
    folder = left_behind(tmp_path / "run", before)
    assert asked("--resume", folder, world_size=3).num_envs == 4
    with pytest.raises(ConfigError, match="12 rows do not divide over 5 ranks; use 10 or 15"):
        asked("--resume", folder, world_size=5)
    for words in (("--num_envs", 7), ("num_envs=7",)):
        assert asked("--resume", folder, *words, world_size=3).num_envs == 7


def test_a_run_that_goes_on_is_evaluated_with_the_same_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = asked("cartpole", "--eval_jobs_config", "jobs.json")
    assert before.evaluation.eval_jobs_config == str(tmp_path / "jobs.json")
    folder = left_behind(tmp_path / "run", before)
    monkeypatch.chdir("/")
    assert asked("--resume", folder) == before
    assert asked("--resume", folder, "evaluation.eval_jobs_config=null").evaluation.eval_jobs_config is None
