"""An episode that varies its words is told a paraphrase of its task, and everything else stays as it is."""

from itertools import pairwise

import numpy as np
import pytest

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.catalog import ENVIRONMENTS, OBJECTS
from isaaclab_arena.environments.tasks.two_cubes import PickByColour
from isaaclab_arena.environments.variations.catalogue import word_distance
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.scripted import scripts
from tests.environments.building import ALL_ENVIRONMENTS, build
from tests.environments.variations.varying import build_varied, catalogue_of, conditions_of, fixed

LANGUAGE = AXES["language"]


def told(name: str, level: int, index: int = 0) -> str:
    env = build_varied(name, LANGUAGE.settings(catalogue_of(name), level) if level else {})
    return env.instruction(conditions_of(env, index))


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_every_task_on_the_table_has_a_paraphrase_for_every_level_each_farther_than_the_one_before(name):
    said = [told(name, level) for level in range(EDGE_LEVEL + 1)]
    distances = [word_distance(said[0], each) for each in said]
    assert all(nearer < farther for nearer, farther in pairwise(distances)), distances


@pytest.mark.parametrize("name", ["lift_object", "pick_and_place", "push_to_goal"])
def test_paraphrases_name_the_object_whatever_it_is(name):
    builder = ENVIRONMENTS.get(name)
    for thing in builder.summary().objects:
        words = OBJECTS.get(thing).words
        env = build(name, object=thing)
        paraphrases = env.task.paraphrases_for({})
        assert builder.variations(builder.config_class(object=thing))
        assert all(words in said for said in paraphrases), paraphrases


def test_the_episodes_own_colour_is_in_its_paraphrases_where_the_scripted_policy_looks_for_it():
    env = build_varied("pick_by_colour", {})
    candidates = scripts(env.sizes)["pick_by_colour"].candidates
    for index in range(4):
        conditions = conditions_of(env, index)
        own = [role for role in candidates if role in env.instruction(conditions).split()]
        assert len(own) == 1
        for said in env.task.paraphrases_for(conditions):
            assert [role for role in candidates if role in said.split()] == own


def test_nothing_else_of_an_episode_depends_on_its_words():
    plain, varied = build("pick_by_colour"), build_varied("pick_by_colour", fixed("instruction.paraphrase", 4))
    before, now = conditions_of(plain, 2), conditions_of(varied, 2)
    assert now == {**before, "instruction.paraphrase": 4}
    assert plain.provenance() == varied.provenance()
    assert varied.instruction(now) != varied.instruction(before) == plain.instruction(before)


def test_conditions_without_a_paraphrase_are_told_in_the_tasks_own_words():
    env = build("open_drawer")
    conditions = env.draw_conditions(np.random.default_rng(0))
    assert env.instruction(conditions) == env.task_description == "open the drawer"


def test_a_paraphrase_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="must be 0 to 5, got 6"):
        build_varied("open_drawer", fixed("instruction.paraphrase", 6))


def test_the_words_of_every_draw_are_looked_at_and_not_those_of_one_only():
    class TellsOfBlue(PickByColour):
        def paraphrases_for(self, conditions):
            told = super().paraphrases_for(conditions)
            return [*told, "level 5"] if "blue" in self.instruction_for(conditions) else told

    class TellsOfRed(PickByColour):
        def paraphrases_for(self, conditions):
            told = super().paraphrases_for(conditions)
            return [*told, "level 5"] if "red" in self.instruction_for(conditions) else told

    for task in (TellsOfBlue, TellsOfRed):
        builder = TableTask(config_class=TableOptions, make_task=lambda _, embodiment, task=task: task(embodiment))
        with pytest.raises(ConfigError, match="'level 5' tells more than"):
            builder.variations(TableOptions())
