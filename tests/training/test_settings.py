"""Settings of a training."""

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, refuse
from isaaclab_arena.models.network import ActionScaling
from isaaclab_arena.training import TASKS
from isaaclab_arena.training.config import (
    SETTINGS,
    TrainingConfig,
    TrainOptions,
    default_document,
    document_of,
    merged,
    new_run_directory,
    newest_run,
    overrides_document,
    read_train_options,
    read_training,
    run_to_resume,
    task_document,
    training_config,
    with_chosen_checkpoint,
)
from isaaclab_arena.training.training_run import LATEST, announce, await_announcement


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


def documents_read(document, *words):
    base = merged(default_document(), document)
    return read_training(merged(base, overrides_document(words, base)), task="mine", source="mine.yaml")


def problems(*words, **document) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        documents_read({"environment": "reach", **document}, *words)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("task", TASKS.names())
def test_the_tasks_that_ship_are_complete(task):
    base = merged(default_document(), task_document(task))
    config = read_training(base, task=task, source=task)
    assert config.experiment_name == task
    assert read_training(document_of(config), task=task, source=task) == config


def test_the_file_on_top_decides():
    config = documents_read(merged({"environment": "reach", "num_envs": 8}, {"num_envs": 16, "agent": {"seed": 3}}))
    assert (config.num_envs, config.agent.seed, config.agent.num_steps_per_env) == (16, 3, 24)


def test_another_class_comes_with_its_own_options_only():
    above = {"agent": {"algorithm": {"class_name": "GRPO", "group_size": 4}}}
    below = {"agent": {"algorithm": {"class_name": "PPO", "lam": 0.9}}}
    assert merged(below, above)["agent"]["algorithm"] == {"class_name": "GRPO", "group_size": 4}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("agent.learning_rate=3e-4", {"class_name": "PPO", "learning_rate": 3e-4}),
        ("agent.algorithm.learning_rate=3e-4", {"class_name": "PPO", "learning_rate": 3e-4}),
        ("agent.gamma=1", {"class_name": "PPO", "gamma": 1}),
    ],
)
def test_the_command_line_may_leave_out_parts_of_a_path(word, value):
    assert documents_read({"environment": "reach"}, word).agent.algorithm == value


def test_every_field_can_be_set_on_the_command_line():
    words = (
        "agent.action_scaling=within_bounds",
        "agent.actor.hidden_dims=[32, 32]",
        "env.embodiment=so101",
        "evaluation.interval=0",
        "variations.light.color.enabled=true",
    )
    config = documents_read({"environment": "reach"}, *words)
    assert config.agent.action_scaling is ActionScaling.WITHIN_BOUNDS
    assert config.agent.actor["hidden_dims"] == [32, 32]
    assert config.env == {"embodiment": "so101"}
    assert config.evaluation.interval == 0
    assert config.variations == {"light": {"color": {"enabled": True}}}


def test_words_that_belong_together_may_stand_in_any_order():
    words = ("agent.algorithm.learning_rate=3e-4", "agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4")
    told = {"class_name": "GRPO", "learning_rate": 3e-4, "group_size": 4}
    for order in (words, words[::-1]):
        assert documents_read({"environment": "reach"}, *order).agent.algorithm == told


def test_a_section_without_a_word_says_nothing():
    below = merged(default_document(), {"environment": "reach", "agent": {"seed": 3}})
    assert merged(below, {"agent": None})["agent"]["seed"] == 3


def test_a_path_that_might_mean_two_things_is_refused():
    (problem,) = problems("agent.hidden_dims=[8]")
    assert problem == (
        "agent.hidden_dims: means agent.actor.hidden_dims or agent.critic.hidden_dims; write one of them out"
    )


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("evaluation.intervall=3", "did you mean 'evaluation.interval'?"),
        ("agnet.seed=3", "did you mean 'agent.seed'?"),
        ("reach=", "there is no such key"),
        ("seed", "neither an option nor path=value"),
        ("num_envs=.nan", "no finite number"),
    ],
)
def test_a_word_that_means_nothing_is_told(word, told):
    assert told in problems(word)[0]


def test_all_problems_are_told_at_once():
    found = problems(num_envs=0, agent={"num_steps_per_env": "many", "sed": 1}, evaluation={"num_episodes": 0})
    assert any("agent.num_steps_per_env" in problem for problem in found)
    assert any("agent.sed" in problem and "did you mean 'seed'?" in problem for problem in found)
    found = problems(num_envs=0, evaluation={"num_episodes": 0})
    assert found == [
        "mine.yaml: num_envs: must be at least 1, got 0",
        "mine.yaml: evaluation.num_episodes: must be at least 1, got 0",
    ]


def test_a_section_has_to_be_a_mapping():
    assert problems(agent=3) == ["agent: must be a mapping, got 3"]


def test_nothing_but_the_environment_has_to_be_said():
    config = documents_read({"environment": "reach"})
    assert dataclasses.replace(config, task="") == read_training(
        {**default_document(), "environment": "reach"}, task="", source=""
    )


# Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory ask for the same training.


def others_read(line: str) -> tuple[TrainOptions, str | None, list[str]]:
    return read_train_options(line.split(), program="train")


def others_asked(line: str) -> TrainingConfig:
    options, task, words = others_read(line)
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
    config = others_asked(line)
    assert (config.task, config.num_envs) == ("cartpole", 4)
    assert (config.agent.max_iterations, config.agent.seed) == (2, 7)
    assert (config.agent.run_name, config.agent.logger) == ("me", "none")


def test_every_setting_of_the_agent_can_be_written_as_mjlab_writes_it():
    line = "cartpole --agent.algorithm.learning-rate 3e-4 --agent.actor.hidden-dims (32,16) --agent.clip-actions None"
    config = others_asked(f"{line} --agent.experiment-name 2024 --agent.save-interval 10 --enable-nan-guard True")
    assert config.agent.algorithm["learning_rate"] == 3e-4
    assert config.agent.actor["hidden_dims"] == [32, 16]
    assert config.agent.clip_actions is None
    assert config.experiment_name == "2024"
    assert config.agent.save_interval == 10
    assert config.agent.check_for_nan


def test_an_option_of_the_environment_may_have_the_dashes_of_an_option():
    assert others_asked("cartpole --env.start hanging").env["start"] == "hanging"


def test_a_name_that_looks_like_a_number_is_a_name():
    assert others_asked("cartpole --agent.run-name 007").agent.run_name == "007"


@pytest.mark.parametrize(("word", "episodes"), [("", 1), (" True", 1), ("=true", 1), (" False", 0)])
def test_video_films_an_episode_of_each_evaluation(word, episodes):
    assert others_asked(f"cartpole --video{word}").evaluation.video_episodes == episodes


def test_gpus_and_the_launchers_logs_are_named_as_in_mjlab():
    options, task, _ = others_read("cartpole --gpu-ids 0 1 --torchrunx-log-dir logs/ranks")
    assert (options.gpu_ids, options.launcher_log_dir, task) == ("0 1", "logs/ranks", "cartpole")
    assert others_read("cartpole --torchrunx-log-dir=")[0].launcher_log_dir == ""
    assert read_train_options(["cartpole", "--gpu-ids", "[0, 1]"], program="train")[0].gpu_ids == "[0, 1]"


@pytest.mark.parametrize("line", ["--agent.resume True", "--agent.resume=true", "--resume True", "--resume"])
def test_a_truth_resumes_the_newest_run(line):
    options, task, words = others_read(f"cartpole {line}")
    assert (options.resume, task, words) == ("", "cartpole", [])


@pytest.mark.parametrize("line", ["--agent.resume False", "--resume=False"])
def test_an_untruth_resumes_nothing(line):
    assert others_read(f"cartpole {line}")[0].resume is None


@pytest.mark.parametrize(
    "line",
    [
        "cartpole --agent.resume True --agent.load-run 2026-01.* --agent.load-checkpoint model_50.pt",
        "--task cartpole --resume --load_run 2026-01.* --checkpoint model_50.pt",
    ],
)
def test_run_and_checkpoint_are_named_as_anywhere(line):
    options, task, _ = others_read(line)
    assert (options.resume, options.load_run, options.load_checkpoint) == ("", "2026-01.*", "model_50.pt")
    assert task == "cartpole"


def test_a_project_goes_to_the_log_writer_that_is_named():
    for line in ("--logger wandb --log_project_name legs", "--agent.logger wandb --agent.wandb-project legs"):
        assert others_asked(f"cartpole {line}").agent.logger == {"class_name": "wandb", "project_name": "legs"}
    with pytest.raises(ConfigError, match="names the project 'legs' of a log writer; add --logger wandb"):
        others_asked("cartpole --log_project_name legs")


def test_options_of_other_trainers_without_effect_are_accepted():
    """EmbodiChain starts ranks with torchrun and says so again; Isaac Sim is told to open no window."""
    plain = others_asked("cartpole --num_envs 4")
    assert others_asked("cartpole --num_envs 4 --distributed --headless --agent.upload-model False") == plain


def test_a_run_can_be_given_a_name(tmp_path):
    directory = new_run_directory(tmp_path, "reach", "fast")
    assert directory.parent == tmp_path / "reach"
    assert directory.name.endswith("_fast")


def test_the_newest_run_is_the_one_that_began_last(tmp_path):
    for stamp in ("2026-11-20_10-00-00", "2026-11-21_09-00-00"):
        settings = tmp_path / "reach" / stamp / SETTINGS
        settings.parent.mkdir(parents=True)
        settings.touch()
        (tmp_path / "reach" / stamp / "model_0.pt").touch()
    # One that failed before its first checkpoint.
    failed = tmp_path / "reach" / "2026-11-22_00-00-00" / SETTINGS
    failed.parent.mkdir(parents=True)
    failed.touch()
    assert newest_run(tmp_path, "reach").name == "2026-11-21_09-00-00"


def test_there_has_to_be_a_run_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume: there is no run in .*reach to go on with"):
        newest_run(tmp_path, "reach")


def test_ranks_wait_for_a_slow_rank_zero(tmp_path):
    def slowly() -> None:
        time.sleep(0.3)
        announce(tmp_path, "now", tmp_path)

    writer = threading.Thread(target=slowly)
    writer.start()
    assert await_announcement(tmp_path, "now", timeout_s=60) == tmp_path
    writer.join()


def test_what_an_older_run_left_is_not_taken_for_this_one(tmp_path):
    announce(tmp_path, "before", tmp_path)
    with pytest.raises(DistributedError, match="it is that of another run; all ranks need the same --log_root"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_rank_that_sees_no_word_says_what_it_waited_for(tmp_path):
    with pytest.raises(DistributedError, match=r"waited 0.1 s for rank 0 .*\.latest_run, and there is none"):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_a_word_that_is_half_written_is_waited_for(tmp_path):
    (tmp_path / LATEST).write_text(json.dumps({"launch": "now"})[:5], encoding="utf-8")
    with pytest.raises(DistributedError):
        await_announcement(tmp_path, "now", timeout_s=0.1)


def test_ranks_of_many_starts_one_after_the_other_never_meet_in_the_directory_of_another(tmp_path):
    for number in range(50):
        directory = new_run_directory(tmp_path, "reach", "")
        launch = f"start {number}"
        writer = threading.Thread(target=announce, args=(tmp_path, launch, directory))
        writer.start()
        assert await_announcement(tmp_path, launch, timeout_s=60) == directory
        writer.join()
