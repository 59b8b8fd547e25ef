"""An environment that shows what it should passes the rules of pictures, and each rule notices one that does not."""

from unittest import SkipTest

import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand, EnvironmentConformance, PictureConformance
from tests.fakes_environment import ScriptedEnvironment
from tests.testing.one_rule import rule, rules
from tests.testing.point import PointEnvironment


class Sparing(DrawnOnDemand):
    """Draws what is announced."""

    def __init__(self, num_envs):
        super().__init__(ScriptedEnvironment(num_envs, endings=["timeout"], cameras=True))


class TestSparing(PictureConformance):
    """The rules, of an environment that leaves pictures out."""

    def make(self, num_envs: int) -> Environment:
        return Sparing(num_envs)


class ShowsAnEarlierPicture(Sparing):
    def step(self, action):
        step = super().step(action)
        pictures = {name: kept.clone() for name, kept in self._kept.items()}
        return type(step)(**{**vars(step), "observation": {**step.observation, "camera_obs": pictures}})


class LeavesOutWhatWasAnnounced(Sparing):
    def draw_pictures_of(self, env_ids):
        super().draw_pictures_of([])


class DrawsAnotherPictureOnDemand(Sparing):
    def step(self, action):
        everything = self._drawn.announced is None
        step = super().step(action)
        front = step.observation["camera_obs"]["front"]
        changed = front if everything or not isinstance(front, torch.Tensor) else front + 1
        return type(step)(**{**vars(step), "observation": {**step.observation, "camera_obs": {"front": changed}}})


class FilmsInFloats(PointEnvironment):
    def film(self, env_ids, cameras):
        return {name: picture / 255.0 for name, picture in super().film(env_ids, cameras).items()}


class FilmsAnything(PointEnvironment):
    def film(self, env_ids, cameras):
        return super().film(env_ids, [VIEWPORT])


class DrawsTheMomentInWhichItIsAsked(PointEnvironment):
    def film_later(self, env_ids, cameras):
        return [lambda slot=slot: {VIEWPORT: self.film([slot], cameras)[VIEWPORT][0]} for slot in env_ids]


BROKEN: list[tuple[str, type[Environment]]] = [
    ("pictures_on_demand_are_those_that_are_always_drawn", ShowsAnEarlierPicture),
    ("pictures_on_demand_are_those_that_are_always_drawn", LeavesOutWhatWasAnnounced),
    ("pictures_on_demand_are_those_that_are_always_drawn", DrawsAnotherPictureOnDemand),
    ("films_are_pictures_and_change_nothing", FilmsInFloats),
    ("films_are_pictures_and_change_nothing", FilmsAnything),
    ("films_are_pictures_and_change_nothing", DrawsTheMomentInWhichItIsAsked),
]


@pytest.mark.parametrize(("name", "environment_class"), BROKEN)
def test_a_broken_rule_is_noticed(name, environment_class):
    with pytest.raises(AssertionError):
        rule(EnvironmentConformance, name, make=environment_class)()


def test_every_rule_has_an_environment_that_breaks_it():
    assert {name for name, _ in BROKEN} == rules(PictureConformance)


@pytest.mark.parametrize("name", sorted(rules(PictureConformance)))
def test_rules_of_what_is_not_offered_are_skipped(name):
    with pytest.raises(SkipTest, match=r"is not|has no"):
        rule(EnvironmentConformance, name, make=ScriptedEnvironment)()
