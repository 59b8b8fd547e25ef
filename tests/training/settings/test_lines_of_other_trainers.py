"""Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory ask for the same training."""

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.config import TrainingConfig, TrainOptions, read_train_options, training_config


def read(line: str) -> tuple[TrainOptions, str | None, list[str]]:
    return read_train_options(line.split(), program="train")


def asked(line: str) -> TrainingConfig:
    options, task, words = read(line)
    return training_config(options, task, words, world_size=1)


@pytest.mark.parametrize(
    "line",
    [
        "cartpole --agent.max-iterations 2 --env.scene.num-envs 4 --agent.seed 7 --run-name me --agent.logger none",
        "cartpole --agent.max_iterations=2 --env.scene.num_envs=4 --seed=7 --agent.run_name=me --agent.logger=none",
        "cartpole env.scene.num_envs=4 agent.max_iterations=2 agent.seed=7 agent.run_name=me agent.logger=none",
        "--task cartpole --num_envs 4 --max_iterations 2 --seed 7 --run_name me --logger none --headless",
        "--task=cartpole --num-envs=4 --max-iterations=2 --seed=7 --run-name=me --logger=none --headless True",
    ],
)
def test_the_line_of_any_trainer_asks_for_the_same(line):
    config = asked(line)
    assert (config.task, config.num_envs) == ("cartpole", 4)
    assert (config.agent.max_iterations, config.agent.seed) == (2, 7)
    assert (config.agent.run_name, config.agent.logger) == ("me", "none")


def test_every_setting_of_the_agent_can_be_written_as_mjlab_writes_it():
    line = "cartpole --agent.algorithm.learning-rate 3e-4 --agent.actor.hidden-dims (32,16) --agent.clip-actions None"
    config = asked(f"{line} --agent.experiment-name 2024 --agent.save-interval 10 --enable-nan-guard True")
    assert config.agent.algorithm["learning_rate"] == 3e-4
    assert config.agent.actor["hidden_dims"] == [32, 16]
    assert config.agent.clip_actions is None
    assert config.experiment_name == "2024"
    assert config.agent.save_interval == 10
    assert config.agent.check_for_nan


def test_an_option_of_the_environment_may_have_the_dashes_of_an_option():
    assert asked("cartpole --env.start hanging").env["start"] == "hanging"


def test_a_name_that_looks_like_a_number_is_a_name():
    assert asked("cartpole --agent.run-name 007").agent.run_name == "007"


@pytest.mark.parametrize(("word", "episodes"), [("", 1), (" True", 1), ("=true", 1), (" False", 0)])
def test_video_films_an_episode_of_each_evaluation(word, episodes):
    assert asked(f"cartpole --video{word}").evaluation.video_episodes == episodes


def test_gpus_and_the_launchers_logs_are_named_as_in_mjlab():
    options, task, _ = read("cartpole --gpu-ids 0 1 --torchrunx-log-dir logs/ranks")
    assert (options.gpu_ids, options.launcher_log_dir, task) == ("0 1", "logs/ranks", "cartpole")
    assert read("cartpole --torchrunx-log-dir=")[0].launcher_log_dir == ""
    assert read_train_options(["cartpole", "--gpu-ids", "[0, 1]"], program="train")[0].gpu_ids == "[0, 1]"


@pytest.mark.parametrize("line", ["--agent.resume True", "--agent.resume=true", "--resume True", "--resume"])
def test_a_truth_resumes_the_newest_run(line):
    options, task, words = read(f"cartpole {line}")
    assert (options.resume, task, words) == ("", "cartpole", [])


@pytest.mark.parametrize("line", ["--agent.resume False", "--resume=False"])
def test_an_untruth_resumes_nothing(line):
    assert read(f"cartpole {line}")[0].resume is None


@pytest.mark.parametrize(
    "line",
    [
        "cartpole --agent.resume True --agent.load-run 2026-01.* --agent.load-checkpoint model_50.pt",
        "--task cartpole --resume --load_run 2026-01.* --checkpoint model_50.pt",
    ],
)
def test_run_and_checkpoint_are_named_as_anywhere(line):
    options, task, _ = read(line)
    assert (options.resume, options.load_run, options.load_checkpoint) == ("", "2026-01.*", "model_50.pt")
    assert task == "cartpole"


def test_a_project_goes_to_the_log_writer_that_is_named():
    for line in ("--logger wandb --log_project_name legs", "--agent.logger wandb --agent.wandb-project legs"):
        assert asked(f"cartpole {line}").agent.logger == {"class_name": "wandb", "project_name": "legs"}
    with pytest.raises(ConfigError, match="names the project 'legs' of a log writer; add --logger wandb"):
        asked("cartpole --log_project_name legs")


def test_options_of_other_trainers_without_effect_are_accepted():
    """EmbodiChain starts ranks with torchrun and says so again; Isaac Sim is told to open no window."""
    plain = asked("cartpole --num_envs 4")
    assert asked("cartpole --num_envs 4 --distributed --headless --agent.upload-model False") == plain
