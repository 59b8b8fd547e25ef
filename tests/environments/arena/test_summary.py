import pytest

from isaaclab_arena.cli.commands.listing import catalog_text
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.policy.scripted import TASKS
from tests.environments.building import ALL_ENVIRONMENTS


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_every_environment_says_what_it_asks_for_and_when_it_is_solved(name):
    summary = ENVIRONMENTS.get(name).summary()
    assert summary.instruction
    assert summary.success.startswith("Solved when ")
    assert summary.episode_length * 0.05 == pytest.approx(summary.episode_s)
    assert "panda" in summary.embodiments


def test_only_objects_that_work_are_named():
    assert {"plate", "bin"}.isdisjoint(ENVIRONMENTS.get("lift_object").summary().objects)
    assert {"plate", "bin", "cube"} <= set(ENVIRONMENTS.get("push_to_goal").summary().objects)
    assert ENVIRONMENTS.get("reach").summary().objects == ()


def test_the_list_shows_instruction_success_length_and_robots():
    text = catalog_text(ENVIRONMENTS)
    assert 'told     "press the red button"' in text
    assert "success  Solved when the hand has held the button down at its stop" in text
    assert "episode  at most 160 steps, 8 s" in text


def test_every_environment_has_a_plan():
    assert set(ALL_ENVIRONMENTS) == set(TASKS)
