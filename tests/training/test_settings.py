"""Settings of a training."""

import threading
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError
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
    with pytest.raises(ConfigError, match=f"--num_envs_total: {total} .* use {nearest}$"):
        asked("cartpole", "--num_envs_total", total, world_size=4)


def test_the_command_line_is_above_the_users_file_and_that_above_the_task(tmp_path):
    (tmp_path / "mine.yaml").write_text("num_envs: 8\nagent: {seed: 3, max_iterations: 5}\nevaluation:\n")
    config = asked("cartpole", "--config", tmp_path / "mine.yaml", "--max_iterations", 7)
    assert (config.num_envs, config.agent.seed, config.agent.max_iterations) == (8, 3, 7)
    assert (config.environment, config.evaluation) == ("cartpole", asked("cartpole").evaluation)


def test_a_run_that_goes_on_has_as_many_env_slots_in_all_on_another_number_of_ranks(tmp_path):
    before = asked("cartpole", "--num_envs_total", 12, world_size=2)
    directory = left_behind(tmp_path / "run", before)
    assert (before.num_envs, asked("--resume", directory, world_size=3).num_envs) == (6, 4)
    with pytest.raises(ConfigError, match=r"12 .* 10 or 15"):
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
    options, task, words = read("--log_root", log_root, *line.split())
    options.check()
    options = with_chosen_checkpoint(options, task or "cartpole", words)
    return options.resume, options.load_checkpoint


def test_the_newest_run_that_matches_and_has_a_checkpoint_is_gone_on_with(tmp_path):
    with pytest.raises(ConfigError, match=r"--resume: .*cartpole"):
        run_to_resume(*read("cartpole", "--log_root", tmp_path, "--resume"))
    for name in ("2026-01-01_legs", "2026-01-02_legs", "2026-01-03"):
        saved(tmp_path / "cartpole" / name, 0, 50)
    saved(tmp_path / "cartpole" / "2026-01-04")
    for pattern, name in (("2026-01-01.*", "2026-01-01_legs"), (".*legs", "2026-01-02_legs"), ("2026", "2026-01-03")):
        line = read("cartpole", "--log_root", tmp_path, "--resume", "--load_run", pattern)
        assert run_to_resume(*line) == tmp_path / "cartpole" / name
    directory = new_run_directory(tmp_path, "reach", "fast")
    assert (directory.parent, directory.name[-5:]) == (tmp_path / "reach", "_fast")


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


def test_a_run_of_another_trainer_can_be_begun_with_and_not_gone_on_with(tmp_path):
    ours = saved(tmp_path / "cartpole" / "2026-01-01", 50)
    theirs = saved(tmp_path / "cartpole" / "2026-01-02", 50, is_ours=False)
    assert chosen(tmp_path, "--resume --checkpoint model_.*.pt") == (None, str(theirs / "model_50.pt"))
    assert run_to_resume(*read("cartpole", "--log_root", tmp_path, "--resume")) == ours
    with pytest.raises(ConfigError, match="--load_checkpoint"):
        asked("cartpole", "--resume", theirs)


def test_task_options_and_values_may_come_in_any_order_or_not_at_all(tmp_path):
    options, task, words = read("velocity_go1", "--num-envs", "64", "agent.seed=3", "--max_iterations=5")
    assert (task, options.num_envs, options.max_iterations, words) == ("velocity_go1", 64, 5, ["agent.seed=3"])
    assert read()[1:] == (None, [])
    options, task, _ = read("--resume", "reach")
    assert (options.resume, task) == ("", "reach")
    assert read("reach", "--resume", tmp_path)[0].resume == str(tmp_path)


REFUSED = [
    ("reach --gamma=3", "--gamma: unknown"),
    ("reach cartpole", "TASK: .* got reach cartpole"),
    ("reach --num_envs 4 --num_envs_total 5", "--num_envs_total: .*--num_envs"),
    ("reach --num_envs_total 0", "--num_envs_total: .*got 0"),
    ("reach --resume RUN --run_directory elsewhere", "--resume: names"),
    ("cartpole --load_checkpoint nowhere.pt", r"--load_checkpoint: 'nowhere\.pt'"),
    ("cartpole --resume RUN --load_checkpoint RUN/model_50.pt", r"--load_checkpoint: '.*model_50\.pt' .* --resume"),
    ("cartpole --resume --load_checkpoint model_70.pt", r"'model_70\.pt' .* model_0\.pt, model_50\.pt"),
    ("cartpole --resume --load_run x --load_checkpoint 50", "matches 'x'"),
    ("cartpole --resume --load_run ( --load_checkpoint 50", r"--load_run: '\('"),
]


@pytest.mark.parametrize(("line", "told"), REFUSED)
def test_a_line_that_makes_no_sense_is_refused(line, told, tmp_path):
    run = saved(tmp_path / "cartpole" / "2026-01-01", 0, 50)
    with pytest.raises(ConfigError, match=told):
        chosen(tmp_path, line.replace("RUN", str(run)))


def documents_read(*words: str, **document: object) -> TrainingConfig:
    base = merged(default_document(), {"environment": "reach", **document})
    return read_training(merged(base, overrides_document(words, base)), task="mine", source="mine.yaml")


@pytest.mark.parametrize("task", TASKS.names())
def test_the_tasks_that_ship_are_complete(task):
    config = read_training(merged(default_document(), task_document(task)), task=task, source=task)
    assert config.experiment_name == task
    assert read_training(document_of(config), task=task, source=task) == config


def test_another_class_comes_with_its_own_options_only():
    above = {"agent": {"algorithm": {"class_name": "GRPO", "group_size": 4}}}
    below = {"agent": {"algorithm": {"class_name": "PPO", "lam": 0.9}}}
    assert merged(below, above)["agent"]["algorithm"] == {"class_name": "GRPO", "group_size": 4}


def others_asked(line: str) -> TrainingConfig:
    return asked("cartpole", *line.split())


@pytest.mark.parametrize(
    "line",
    [
        "cartpole --agent.max-iterations 2 --env.scene.num-envs 4 --agent.seed 7 --run-name me --agent.logger none",
        "cartpole env.scene.num_envs=4 agent.max_iterations=2 agent.seed=7 agent.run_name=me agent.logger=none",
        "--task=cartpole --num-envs=4 --max_iterations 2 --seed=7 --agent.run_name=me --logger none --headless True",
    ],
)
def test_the_line_of_any_trainer_asks_for_the_same(line):
    config = asked(*line.split())
    assert (config.task, config.num_envs) == ("cartpole", 4)
    assert (config.agent.max_iterations, config.agent.seed) == (2, 7)
    assert (config.agent.run_name, config.agent.logger) == ("me", "none")


def test_every_setting_can_be_written_as_mjlab_writes_it_or_as_a_path():
    line = "--agent.algorithm.learning-rate 3e-4 --agent.actor.hidden-dims (32,16) --agent.clip-actions None"
    line = f"{line} --agent.experiment-name 2024 --agent.run-name 007 --agent.save-interval 10"
    config = others_asked(f"{line} --enable-nan-guard True env.start=hanging variations.light.color.enabled=true")
    agent = config.agent
    assert (agent.algorithm["learning_rate"], agent.actor["hidden_dims"]) == (3e-4, [32, 16])
    assert (agent.clip_actions, agent.save_interval, agent.check_for_nan) == (None, 10, True)
    assert (config.experiment_name, agent.run_name) == ("2024", "007"), "names may look like numbers"
    assert (config.env["start"], config.variations) == ("hanging", {"light": {"color": {"enabled": True}}})


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        (["agent.learning_rate=3e-4"], {"class_name": "PPO", "learning_rate": 3e-4}),
        (["agent.algorithm.learning_rate=3e-4"], {"class_name": "PPO", "learning_rate": 3e-4}),
        (["agent.gamma=1"], {"class_name": "PPO", "gamma": 1}),
        (["agent.group_size=4", "agent.algorithm.class_name=GRPO"], {"class_name": "GRPO", "group_size": 4}),
    ],
)
def test_words_may_leave_out_parts_of_a_path_and_stand_in_any_order(words, algorithm):
    assert documents_read(*words).agent.algorithm == algorithm


@pytest.mark.parametrize(
    ("words", "document", "told"),
    [
        ("evaluation.intervall=3", {}, ["did you mean 'evaluation.interval'?"]),
        ("agnet.seed=3", {}, ["did you mean 'agent.seed'?"]),
        ("agent.hidden_dims=[8]", {}, ["agent.actor.hidden_dims or agent.critic.hidden_dims"]),
        ("reach=", {}, ["no such key"]),
        ("seed", {}, ["path=value"]),
        ("num_envs=.nan", {}, ["no finite number"]),
        ("", {"agent": 3}, ["agent: must be"]),
        ("", {"agent": {"num_steps_per_env": "many", "sed": 1}}, ["'seed'?", "agent.num_steps_per_env"]),
        ("", {"num_envs": 0, "evaluation": {"num_episodes": 0}}, ["yaml: num_envs", "yaml: evaluation.num_epis"]),
    ],
)
def test_all_settings_that_mean_nothing_are_told_at_once(words, document, told):
    with pytest.raises(ConfigError) as raised:
        documents_read(*words.split(), **document)
    found = [str(problem) for problem in raised.value.problems]
    assert len(found) == len(told)
    assert all(any(word in problem for problem in found) for word in told), found


# Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory ask for the same training.


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


def test_options_of_other_trainers_mean_here_what_they_mean_there_or_nothing():
    for word, episodes in (("", 1), (" True", 1), ("=true", 1), (" False", 0)):
        assert others_asked(f"--video{word}").evaluation.video_episodes == episodes
    for line in ("--logger wandb --log_project_name legs", "--agent.logger wandb --agent.wandb-project legs"):
        assert others_asked(line).agent.logger == {"class_name": "wandb", "project_name": "legs"}
    with pytest.raises(ConfigError, match=r"'legs' .* --logger wandb"):
        others_asked("--log_project_name legs")
    assert others_asked("--distributed --headless --agent.upload-model False") == others_asked("")
    options, task, _ = read("cartpole", "--gpu-ids", "0", "1", "--torchrunx-log-dir", "logs/ranks")
    assert (options.gpu_ids, options.launcher_log_dir, task) == ("0 1", "logs/ranks", "cartpole")
    assert read("cartpole", "--torchrunx-log-dir=")[0].launcher_log_dir == ""


def test_what_an_older_run_left_is_not_taken_for_this_one(tmp_path):
    announce(tmp_path, "before", tmp_path)
    with pytest.raises(DistributedError, match="--log_root"):
        await_announcement(tmp_path, "now", timeout_s=0.05)


def test_a_rank_that_sees_no_word_says_what_it_waited_for(tmp_path):
    with pytest.raises(DistributedError, match=r"0.05 s .*\.latest_run"):
        await_announcement(tmp_path, "now", timeout_s=0.05)
    (tmp_path / LATEST).write_text('{"lau')
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
