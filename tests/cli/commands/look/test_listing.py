"""Tests of the catalogs as text."""

from dataclasses import dataclass

from isaaclab_arena.cli.commands.listing import catalog_data, catalog_text
from isaaclab_arena.environments.catalog import EMBODIMENTS, ENVIRONMENTS
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.registry import Registry
from tests.fakes import CoinBuilder, ShrugPolicy


def test_an_entry_that_cannot_be_loaded_does_not_hide_the_others():
    registry = Registry("policy", {"broken": "no_such_module:SceneObject"}, "isaaclab_arena.no_such_group")
    registry.register("shrug", ShrugPolicy)

    broken, shrug, *options = catalog_text(registry).splitlines()

    assert broken.startswith("broken  policy 'broken' cannot be loaded: ModuleNotFoundError: No module named")
    assert (
        shrug == "shrug   Does nothing, and remembers how it was called. ``raise_at`` and ``action`` make it misbehave."
    )
    assert [option.strip() for option in options] == ["raise_at = -1", "action = zeros"]


@dataclass
class UnreadableCfg(PolicyCfg):
    model: "ImportedForPyrightOnly" = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    gain: float = 2.0


class UnreadablePolicy(ShrugPolicy):
    """Has an option whose type is not there when the program runs."""

    config_class = UnreadableCfg


def test_options_are_listed_although_a_type_among_them_is_not_there():
    registry = Registry("policy", {}, "isaaclab_arena.no_such_group")
    registry.register("unreadable", UnreadablePolicy)
    assert [line.strip() for line in catalog_text(registry).splitlines()[1:]] == ["model = None", "gain = 2.0"]


def test_an_environment_is_summed_up_by_its_module():
    registry = Registry("environment", {}, "isaaclab_arena.no_such_group")
    registry.register("coin", CoinBuilder())

    assert catalog_text(registry).startswith("coin  Fakes that replace mocks")


def test_environments_of_one_module_are_summed_up_each_by_its_own_words():
    told = catalog_data(ENVIRONMENTS)
    assert len({each["summary"] for each in told}) == len(told)
    text = catalog_text(ENVIRONMENTS)
    assert "close_drawer    Push an open drawer shut.\n" in text
    assert "robosuite:...   Build the tasks of robosuite, " in text


def test_an_empty_catalog_is_an_empty_text():
    assert catalog_text(Registry("policy", {}, "isaaclab_arena.no_such_group")) == ""


def test_names_without_number_are_listed_by_their_pattern():
    registry = Registry("environment", {}, "isaaclab_arena.no_such_group", {"fake": "tests.fakes:named_coin_builder"})

    assert catalog_text(registry).startswith("fake:...  Fakes that replace mocks")


def test_robots_are_summed_up_and_those_of_menagerie_by_their_pattern():
    lines = catalog_text(EMBODIMENTS).splitlines()

    assert "so101          5 joints, gripper 8 cm wide, reaches 0.39 m" in lines
    assert lines[-1].startswith("menagerie:...  Robots of MuJoCo Menagerie")
