"""Settings of a training."""

import dataclasses
import json
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.config.options import wrong_numbers
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, refuse
from isaaclab_arena.models import ActionScaling
from isaaclab_arena.storage.contents import versions
from isaaclab_arena.training import TASKS
from isaaclab_arena.training.config import (
    TrainingConfig,
    TrainOptions,
    default_document,
    document_of,
    merged,
    new_run_directory,
    overrides_document,
    read_train_options,
    read_training,
    run_to_resume,
    task_document,
    training_config,
    training_versions,
    with_chosen_checkpoint,
)
from isaaclab_arena.training.training_run import LATEST, announce, await_announcement


def read(*arguments: object) -> tuple[TrainOptions, str | None, list[str]]:
    return read_train_options([str(argument) for argument in arguments], program="train")


def asked(*arguments: object, world_size: int = 1) -> TrainingConfig:
    return training_config(*read(*arguments), world_size=world_size)


def left_behind(directory: Path, config: TrainingConfig) -> Path:
    """Leave the settings of a run, as one that began does."""
    (directory / "params").mkdir(parents=True)
    (directory / "params" / "train.yaml").write_text(yaml.safe_dump({**document_of(config), "world_size": 2}))
    return directory


def test_env_slots_are_shared_evenly():
    assert asked("cartpole", "--num_envs_total", 64, world_size=4).num_envs == 16


@pytest.mark.parametrize(("total", "nearest"), [(10, "8 or 12"), (3, "4")])
def test_env_slots_that_do_not_divide_are_refused_with_numbers_that_do(total, nearest):
    with pytest.raises(ConfigError, match=f"--num_envs_total: {total} .* over 4 ranks; use {nearest}$"):
        asked("cartpole", "--num_envs_total", total, world_size=4)


def test_the_command_line_is_above_the_users_file_and_that_above_the_task(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_envs: 8\nagent: {seed: 3, max_iterations: 5}\n")
    config = asked("cartpole", "--config", tmp_path / "mine.yaml", "--max_iterations", 7)
    assert (config.num_envs, config.agent.seed, config.agent.max_iterations) == (8, 3, 7)
    assert config.environment == "cartpole"


def test_a_run_that_goes_on_has_as_many_env_slots_in_all_on_another_number_of_ranks(tmp_path):
    before = asked("cartpole", "--num_envs_total", 12, world_size=2)
    directory = left_behind(tmp_path / "run", before)
    assert (before.num_envs, asked("--resume", directory, world_size=3).num_envs) == (6, 4)
    with pytest.raises(ConfigError, match=r"12 .* over 5 ranks; use 10 or 15"):
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
    """Leave a run with checkpoints, which are not read here."""
    if is_ours:
        left_behind(run, asked("cartpole"))
    else:
        run.mkdir(parents=True)
    for number in iterations:
        (run / f"model_{number}.pt").touch()
    return run


def chosen(log_root: Path, line: str) -> tuple[str | None, str | None]:
    """Return the run that is gone on with, and the checkpoint that a new one begins with."""
    options, task, words = read("cartpole", "--log_root", log_root, *line.split())
    options.check()
    options = with_chosen_checkpoint(options, task, words)
    return options.resume, options.load_checkpoint


def test_the_newest_run_that_matches_is_gone_on_with(tmp_path):
    for name in ("2026-01-01_legs", "2026-01-02_legs", "2026-01-03"):
        saved(tmp_path / "cartpole" / name, 0, 50)
    for pattern, name in (("2026-01-01.*", "2026-01-01_legs"), (".*legs", "2026-01-02_legs"), ("2026", "2026-01-03")):
        line = read("cartpole", "--log_root", tmp_path, "--resume", "--load_run", pattern)
        assert run_to_resume(*line) == tmp_path / "cartpole" / name
    for pattern, told in (("x", "matches 'x'"), ("(", r"--load_run: '\('")):
        with pytest.raises(ConfigError, match=told):
            asked("cartpole", "--log_root", tmp_path, "--resume", "--load_run", pattern)


@pytest.mark.parametrize(
    ("line", "resumed", "begun_with"),
    [
        *((f"--resume --load_run 2026 --load_checkpoint {n}", "RUN", None) for n in ("model_100.pt", "100")),
        *((f"--resume --load_run 2026 --load_checkpoint {n}", "RUN", None) for n in ("model_.*.pt", "model_1")),
        *((f"--agent.resume True --agent.load-checkpoint {n}", None, "50") for n in ("model_50.pt", "50", "model_5.*")),
        ("--resume --checkpoint RUN/model_50.pt", None, "50"),
        ("--checkpoint RUN/model_50.pt", None, "50"),
        ("--load_checkpoint RUN", None, "100"),
    ],
)
def test_the_newest_checkpoint_is_gone_on_from_and_an_older_one_begins_a_new_run(tmp_path, line, resumed, begun_with):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 0, 50, 100)
    expected = resumed and str(run), begun_with and str(run / f"model_{begun_with}.pt")
    assert chosen(tmp_path, line.replace("RUN", str(run))) == expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--load_checkpoint nowhere.pt", r"--load_checkpoint: 'nowhere\.pt'"),
        ("--resume RUN --load_checkpoint RUN/model_50.pt", r"--load_checkpoint: '.*model_50\.pt' .* --resume"),
        ("--resume --load_checkpoint model_70.pt", r"'model_70\.pt' .* model_0\.pt, model_50\.pt"),
    ],
)
def test_a_checkpoint_that_cannot_be_chosen_is_told(tmp_path, line, told):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 0, 50)
    with pytest.raises(ConfigError, match=told):
        chosen(tmp_path, line.replace("RUN", str(run)))


def test_a_run_of_another_trainer_can_be_begun_with_and_not_gone_on_with(tmp_path):
    ours = saved(tmp_path / "cartpole" / "2026-01-01", 50)
    theirs = saved(tmp_path / "cartpole" / "2026-01-02", 50, is_ours=False)
    assert chosen(tmp_path, "--resume --checkpoint model_.*.pt") == (None, str(theirs / "model_50.pt"))
    assert run_to_resume(*read("cartpole", "--log_root", tmp_path, "--resume")) == ours
    with pytest.raises(ConfigError, match=r"no training run: .*--load_checkpoint"):
        asked("cartpole", "--resume", theirs)


def test_task_options_and_values_may_come_in_any_order_or_not_at_all(tmp_path):
    options, task, words = read("velocity_go1", "--num-envs", "64", "agent.seed=3", "--max_iterations=5")
    assert (task, options.num_envs, options.max_iterations, words) == ("velocity_go1", 64, 5, ["agent.seed=3"])
    assert read()[1:] == (None, [])
    options, task, _ = read("--resume", "reach")
    assert (options.resume, task) == ("", "reach")
    assert read("reach", "--resume", tmp_path)[0].resume == str(tmp_path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("reach --gamma=3", "--gamma: unknown"),
        ("reach cartpole", "TASK: .* got reach cartpole"),
        ("reach --num_envs 4 --num_envs_total 5", "--num_envs_total: .*--num_envs"),
        ("reach --num_envs_total 0", "--num_envs_total: .*got 0"),
        ("reach --resume DIR --run_directory elsewhere", "--resume: names"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(line, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        read(*line.replace("DIR", str(tmp_path)).split())[0].check()


def test_a_training_would_refuse_such_numbers_too():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(TrainOptions):
        rate: float = 1.0

    with pytest.raises(ConfigError, match="--rate: nan"):
        refuse(wrong_numbers(Later(rate=float("nan"))))


def documents_read(*words: str, **document: object) -> TrainingConfig:
    base = merged(default_document(), {"environment": "reach", **document})
    return read_training(merged(base, overrides_document(words, base)), task="mine", source="mine.yaml")


def problems(*words: str, **document: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        documents_read(*words, **document)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("task", TASKS.names())
def test_the_tasks_that_ship_are_complete(task):
    config = read_training(merged(default_document(), task_document(task)), task=task, source=task)
    assert config.experiment_name == task
    assert read_training(document_of(config), task=task, source=task) == config


def test_the_file_on_top_decides_and_a_section_without_a_word_says_nothing():
    below = {**default_document(), "environment": "reach", "num_envs": 8}
    document = merged(merged(below, {"num_envs": 16, "agent": {"seed": 3}}), {"agent": None})
    config = read_training(document, task="", source="")
    assert (config.num_envs, config.agent.seed, config.agent.num_steps_per_env) == (16, 3, 24)


def test_another_class_comes_with_its_own_options_only():
    above = {"agent": {"algorithm": {"class_name": "GRPO", "group_size": 4}}}
    below = {"agent": {"algorithm": {"class_name": "PPO", "lam": 0.9}}}
    assert merged(below, above)["agent"]["algorithm"] == {"class_name": "GRPO", "group_size": 4}


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        (["agent.learning_rate=3e-4"], {"class_name": "PPO", "learning_rate": 3e-4}),
        (["agent.algorithm.learning_rate=3e-4"], {"class_name": "PPO", "learning_rate": 3e-4}),
        (["agent.gamma=1"], {"class_name": "PPO", "gamma": 1}),
        (["agent.algorithm.class_name=GRPO", "agent.group_size=4"], {"class_name": "GRPO", "group_size": 4}),
        (["agent.algorithm.group_size=4", "agent.algorithm.class_name=GRPO"], {"class_name": "GRPO", "group_size": 4}),
    ],
)
def test_words_may_leave_out_parts_of_a_path_and_stand_in_any_order(words, algorithm):
    assert documents_read(*words).agent.algorithm == algorithm


def test_every_field_can_be_set_on_the_command_line():
    config = documents_read(
        "agent.action_scaling=within_bounds",
        "agent.actor.hidden_dims=[32, 32]",
        "env.embodiment=so101",
        "evaluation.interval=0",
        "variations.light.color.enabled=true",
    )
    assert (config.agent.action_scaling, config.evaluation.interval) == (ActionScaling.WITHIN_BOUNDS, 0)
    assert config.agent.actor["hidden_dims"] == [32, 32]
    assert config.env == {"embodiment": "so101"}
    assert config.variations == {"light": {"color": {"enabled": True}}}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("evaluation.intervall=3", "did you mean 'evaluation.interval'?"),
        ("agnet.seed=3", "did you mean 'agent.seed'?"),
        ("agent.hidden_dims=[8]", "agent.actor.hidden_dims or agent.critic.hidden_dims"),
        ("reach=", "no such key"),
        ("seed", "path=value"),
        ("num_envs=.nan", "no finite number"),
    ],
)
def test_a_word_that_means_nothing_or_two_things_is_told(word, told):
    assert told in problems(word)[0]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"agent": 3}, ["agent: must be a mapping"]),
        ({"agent": {"num_steps_per_env": "many", "sed": 1}}, ["'seed'?", "agent.num_steps_per_env"]),
        ({"num_envs": 0, "evaluation": {"num_episodes": 0}}, ["yaml: num_envs: ", "yaml: evaluation.num_episodes: "]),
    ],
)
def test_all_problems_are_told_at_once(document, told):
    found = problems(**document)
    assert len(found) == len(told)
    assert all(any(word in problem for problem in found) for word in told), found


# Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory ask for the same training.


def others_asked(line: str) -> TrainingConfig:
    return asked("cartpole", *line.split())


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
    config = asked(*line.split())
    assert (config.task, config.num_envs) == ("cartpole", 4)
    assert (config.agent.max_iterations, config.agent.seed) == (2, 7)
    assert (config.agent.run_name, config.agent.logger) == ("me", "none")


def test_every_setting_can_be_written_as_mjlab_writes_it():
    line = "--agent.algorithm.learning-rate 3e-4 --agent.actor.hidden-dims (32,16) --agent.clip-actions None"
    line = f"{line} --agent.experiment-name 2024 --agent.run-name 007 --agent.save-interval 10"
    config = others_asked(f"{line} --enable-nan-guard True --env.start hanging")
    agent = config.agent
    assert (agent.algorithm["learning_rate"], agent.actor["hidden_dims"]) == (3e-4, [32, 16])
    assert (agent.clip_actions, agent.save_interval, agent.check_for_nan) == (None, 10, True)
    assert (config.experiment_name, agent.run_name) == ("2024", "007"), "names may look like numbers"
    assert config.env["start"] == "hanging"


@pytest.mark.parametrize(("word", "episodes"), [("", 1), (" True", 1), ("=true", 1), (" False", 0)])
def test_video_films_an_episode_of_each_evaluation(word, episodes):
    assert others_asked(f"--video{word}").evaluation.video_episodes == episodes


def test_gpus_and_the_launchers_logs_are_named_as_in_mjlab():
    options, task, _ = read("cartpole", "--gpu-ids", "0", "1", "--torchrunx-log-dir", "logs/ranks")
    assert (options.gpu_ids, options.launcher_log_dir, task) == ("0 1", "logs/ranks", "cartpole")
    options, *_ = read("cartpole", "--gpu-ids", "[0, 1]", "--torchrunx-log-dir=")
    assert (options.gpu_ids, options.launcher_log_dir) == ("[0, 1]", "")


@pytest.mark.parametrize(
    ("line", "resumed", "run", "checkpoint"),
    [
        *((line, "", None, None) for line in ("--agent.resume True", "--agent.resume=true", "--resume True")),
        *((line, None, None, None) for line in ("--agent.resume False", "--resume=False")),
        ("--agent.resume True --agent.load-run 2026-01.* --agent.load-checkpoint 50", "", "2026-01.*", "50"),
        ("--resume --load_run 2026-01.* --checkpoint 50", "", "2026-01.*", "50"),
    ],
)
def test_a_run_to_go_on_with_and_its_checkpoint_are_named_as_anywhere(line, resumed, run, checkpoint):
    options, task, words = read("--task", "cartpole", *line.split())
    assert (options.resume, options.load_run, options.load_checkpoint) == (resumed, run, checkpoint)
    assert (task, words) == ("cartpole", [])


def test_a_project_goes_to_the_log_writer_that_is_named():
    for line in ("--logger wandb --log_project_name legs", "--agent.logger wandb --agent.wandb-project legs"):
        assert others_asked(line).agent.logger == {"class_name": "wandb", "project_name": "legs"}
    with pytest.raises(ConfigError, match=r"'legs' .* --logger wandb"):
        others_asked("--log_project_name legs")


def test_options_of_other_trainers_without_effect_are_accepted():
    """EmbodiChain starts ranks with torchrun and says so again; Isaac Sim is told to open no window."""
    assert others_asked("--distributed --headless --agent.upload-model False") == others_asked("")


def test_the_newest_run_is_the_one_that_began_last_and_has_a_checkpoint(tmp_path):
    line = read("reach", "--log_root", tmp_path, "--resume")
    with pytest.raises(ConfigError, match=r"--resume: .*reach"):
        run_to_resume(*line)
    for stamp in ("2026-11-20_10-00-00", "2026-11-21_09-00-00"):
        saved(tmp_path / "reach" / stamp, 0)
    saved(tmp_path / "reach" / "2026-11-22_00-00-00")
    assert run_to_resume(*line).name == "2026-11-21_09-00-00"
    directory = new_run_directory(tmp_path, "reach", "fast")
    assert directory.parent == tmp_path / "reach"
    assert directory.name.endswith("_fast")


def test_ranks_wait_for_a_slow_rank_zero(tmp_path):
    def slowly() -> None:
        time.sleep(0.05)
        announce(tmp_path, "now", tmp_path)

    writer = threading.Thread(target=slowly)
    writer.start()
    assert await_announcement(tmp_path, "now", timeout_s=60) == tmp_path
    writer.join()


def test_what_an_older_run_left_is_not_taken_for_this_one(tmp_path):
    announce(tmp_path, "before", tmp_path)
    with pytest.raises(DistributedError, match=r"another run.* --log_root"):
        await_announcement(tmp_path, "now", timeout_s=0.05)


def test_a_rank_that_sees_no_word_says_what_it_waited_for(tmp_path):
    with pytest.raises(DistributedError, match=r"0.05 s for rank 0 .*\.latest_run"):
        await_announcement(tmp_path, "now", timeout_s=0.05)
    (tmp_path / LATEST).write_text(json.dumps({"launch": "now"})[:5], encoding="utf-8")
    with pytest.raises(DistributedError):
        await_announcement(tmp_path, "now", timeout_s=0.05)


def test_ranks_of_many_starts_one_after_the_other_never_meet_in_the_directory_of_another(tmp_path):
    for number in range(10):
        directory = new_run_directory(tmp_path, "reach", "")
        writer = threading.Thread(target=announce, args=(tmp_path, f"start {number}", directory))
        writer.start()
        assert await_announcement(tmp_path, f"start {number}", timeout_s=60) == directory
        writer.join()


def test_the_versions_of_a_training_are_those_of_an_evaluation_and_those_of_its_learner():
    learner = {package: metadata.version(package) for package in ("rsl-rl-lib", "tensordict")}
    assert not learner.keys() & versions().keys()
    assert training_versions() == versions() | learner
