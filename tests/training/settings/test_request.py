from pathlib import Path

import pytest
import yaml

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.config import (
    TrainingConfig,
    document_of,
    read_train_options,
    run_to_resume,
    training_config,
    with_chosen_checkpoint,
)


def asked(*arguments: object, world_size: int = 1) -> TrainingConfig:
    options, task, words = read_train_options([str(argument) for argument in arguments], program="train")
    return training_config(options, task, words, world_size=world_size)


def left_behind(directory: Path, config: TrainingConfig) -> Path:
    """Leave the settings of a run, as one that began does."""
    (directory / "params").mkdir(parents=True)
    (directory / "params" / "train.yaml").write_text(yaml.safe_dump({**document_of(config), "world_size": 2}))
    return directory


def test_env_slots_are_shared_evenly():
    assert asked("cartpole", "--num_envs_total", 64, world_size=4).num_envs == 16


@pytest.mark.parametrize(("total", "nearest"), [(10, "8 or 12"), (3, "4")])
def test_env_slots_that_do_not_divide_are_refused_with_numbers_that_do(total, nearest):
    with pytest.raises(
        ConfigError, match=f"--num_envs_total: {total} env slots do not divide over 4 ranks; use {nearest}$"
    ):
        asked("cartpole", "--num_envs_total", total, world_size=4)


def test_the_command_line_is_above_the_users_file_and_that_above_the_task(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_envs: 8\nagent: {seed: 3, max_iterations: 5}\n")
    config = asked("cartpole", "--config", tmp_path / "mine.yaml", "--max_iterations", 7)
    assert (config.num_envs, config.agent.seed, config.agent.max_iterations) == (8, 3, 7)
    assert config.environment == "cartpole"


def test_a_run_that_goes_on_has_as_many_env_slots_in_all_on_another_number_of_ranks(tmp_path):
    before = asked("cartpole", "--num_envs_total", 12, world_size=2)
    assert before.num_envs == 6
    directory = left_behind(tmp_path / "run", before)
    assert asked("--resume", directory, world_size=3).num_envs == 4
    with pytest.raises(ConfigError, match="12 env slots do not divide over 5 ranks; use 10 or 15"):
        asked("--resume", directory, world_size=5)
    for words in (("--num_envs", 7), ("num_envs=7",)):
        assert asked("--resume", directory, *words, world_size=3).num_envs == 7


def test_a_run_that_goes_on_is_evaluated_with_the_same_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = asked("cartpole", "--eval_jobs_config", "jobs.json")
    assert before.evaluation.eval_jobs_config == str(tmp_path / "jobs.json")
    directory = left_behind(tmp_path / "run", before)
    monkeypatch.chdir("/")
    assert asked("--resume", directory) == before
    assert asked("--resume", directory, "evaluation.eval_jobs_config=null").evaluation.eval_jobs_config is None


def saved(run: Path, *iterations: int, is_ours: bool = True) -> Path:
    """Leave a run with checkpoints, which nobody reads here."""
    if is_ours:
        left_behind(run, asked("cartpole"))
    else:
        run.mkdir(parents=True)
    for number in iterations:
        (run / f"model_{number}.pt").touch()
    return run


def chosen(log_root: Path, line: str) -> tuple[str | None, str | None]:
    """Return the run that is gone on with, and the checkpoint that a new one begins with."""
    options, task, words = read_train_options(["cartpole", "--log_root", str(log_root), *line.split()], program="train")
    options.check()
    options = with_chosen_checkpoint(options, task, words)
    return options.resume, options.load_checkpoint


def test_the_newest_run_that_matches_is_gone_on_with(tmp_path):
    for name in ("2026-01-01_legs", "2026-01-02_legs", "2026-01-03"):
        saved(tmp_path / "cartpole" / name, 0, 50)
    for pattern, name in (("2026-01-01.*", "2026-01-01_legs"), (".*legs", "2026-01-02_legs"), ("2026", "2026-01-03")):
        options, task, words = read_train_options(
            ["cartpole", "--log_root", str(tmp_path), "--resume", "--load_run", pattern], program="train"
        )
        assert run_to_resume(options, task, words) == tmp_path / "cartpole" / name
    with pytest.raises(ConfigError, match=r"no run in .* whose name matches 'x' to go on with"):
        asked("cartpole", "--log_root", tmp_path, "--resume", "--load_run", "x")
    with pytest.raises(ConfigError, match=r"--load_run: '\(' is no regular expression"):
        asked("cartpole", "--log_root", tmp_path, "--resume", "--load_run", "(")


@pytest.mark.parametrize("name", ["model_100.pt", "100", "model_.*.pt", "model_1"])
def test_the_newest_checkpoint_of_a_run_is_gone_on_from(tmp_path, name):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 0, 50, 100)
    assert chosen(tmp_path, f"--resume --load_run 2026 --load_checkpoint {name}") == (str(run), None)


@pytest.mark.parametrize("name", ["model_50.pt", "50", "model_5.*"])
def test_an_older_checkpoint_begins_a_new_run(tmp_path, name):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 0, 50, 100)
    assert chosen(tmp_path, f"--agent.resume True --agent.load-checkpoint {name}") == (None, str(run / "model_50.pt"))


def test_a_run_of_another_trainer_can_be_begun_with_and_not_gone_on_with(tmp_path):
    ours = saved(tmp_path / "cartpole" / "2026-01-01", 50)
    theirs = saved(tmp_path / "cartpole" / "2026-01-02", 50, is_ours=False)
    assert chosen(tmp_path, "--resume --checkpoint model_.*.pt") == (None, str(theirs / "model_50.pt"))
    options, task, words = read_train_options(["cartpole", "--log_root", str(tmp_path), "--resume"], program="train")
    assert run_to_resume(options, task, words) == ours
    with pytest.raises(
        ConfigError, match=r"holds no training run: .*; --load_checkpoint begins a new run with the wei"
    ):
        asked("cartpole", "--resume", theirs)


def test_a_checkpoint_may_be_a_file_or_the_directory_of_a_run(tmp_path):
    run = saved(tmp_path / "elsewhere", 50, is_ours=False)
    assert chosen(tmp_path, f"--load_checkpoint {run}") == (None, str(run / "model_50.pt"))
    assert chosen(tmp_path, f"--checkpoint {run / 'model_50.pt'}") == (None, str(run / "model_50.pt"))
    with pytest.raises(ConfigError, match=r"--load_checkpoint: 'nowhere\.pt' does not exist"):
        chosen(tmp_path, "--load_checkpoint nowhere.pt")


def test_a_file_to_begin_with_and_a_directory_to_go_on_with_are_two_things(tmp_path):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 50)
    with pytest.raises(
        ConfigError, match=r"--load_checkpoint: '.*model_50\.pt' begins a new run, and --resume goes on"
    ):
        chosen(tmp_path, f"--resume {run} --load_checkpoint {run / 'model_50.pt'}")
    assert chosen(tmp_path, f"--resume --checkpoint {run / 'model_50.pt'}") == (None, str(run / "model_50.pt"))


def test_a_checkpoint_that_a_run_does_not_have_is_refused_with_those_that_it_has(tmp_path):
    saved(tmp_path / "cartpole" / "2026-01-01", 0, 50)
    with pytest.raises(
        ConfigError, match=r"there is no 'model_70\.pt' in .*; its checkpoints are model_0\.pt, model_50\.pt"
    ):
        chosen(tmp_path, "--resume --load_checkpoint model_70.pt")
