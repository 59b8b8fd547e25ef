import dataclasses

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models.network import ActionScaling
from isaaclab_arena.training import TASKS
from isaaclab_arena.training.config import (
    default_document,
    document_of,
    merged,
    overrides_document,
    read_training,
    task_document,
)


def read(document, *words):
    base = merged(default_document(), document)
    return read_training(merged(base, overrides_document(words, base)), task="mine", source="mine.yaml")


def problems(*words, **document) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read({"environment": "reach", **document}, *words)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("task", TASKS.names())
def test_the_tasks_that_ship_are_complete(task):
    base = merged(default_document(), task_document(task))
    config = read_training(base, task=task, source=task)
    assert config.experiment_name == task
    assert read_training(document_of(config), task=task, source=task) == config


def test_the_file_on_top_decides():
    config = read(merged({"environment": "reach", "num_envs": 8}, {"num_envs": 16, "agent": {"seed": 3}}))
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
    assert read({"environment": "reach"}, word).agent.algorithm == value


def test_every_field_can_be_set_on_the_command_line():
    words = (
        "agent.action_scaling=within_bounds",
        "agent.actor.hidden_dims=[32, 32]",
        "env.embodiment=so101",
        "evaluation.interval=0",
        "variations.light.color.enabled=true",
    )
    config = read({"environment": "reach"}, *words)
    assert config.agent.action_scaling is ActionScaling.WITHIN_BOUNDS
    assert config.agent.actor["hidden_dims"] == [32, 32]
    assert config.env == {"embodiment": "so101"}
    assert config.evaluation.interval == 0
    assert config.variations == {"light": {"color": {"enabled": True}}}


def test_words_that_belong_together_may_stand_in_any_order():
    words = ("agent.algorithm.learning_rate=3e-4", "agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4")
    told = {"class_name": "GRPO", "learning_rate": 3e-4, "group_size": 4}
    for order in (words, words[::-1]):
        assert read({"environment": "reach"}, *order).agent.algorithm == told


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
    config = read({"environment": "reach"})
    assert dataclasses.replace(config, task="") == read_training(
        {**default_document(), "environment": "reach"}, task="", source=""
    )
