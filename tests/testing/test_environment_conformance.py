"""A well-behaved environment passes every rule, and each rule notices an environment that breaks it."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand, EnvironmentConformance, PictureConformance
from tests.fakes_environment import ScriptedEnvironment
from tests.testing.one_rule import rule, rules
from tests.testing.point import PointEnvironment as Point

OWN_GENERATOR = np.random.default_rng(0)


class Sparing(DrawnOnDemand):
    """Draws what is announced."""

    def __init__(self, num_envs):
        super().__init__(ScriptedEnvironment(num_envs, endings=["timeout"], cameras=True))


class TestPoint(EnvironmentConformance):
    """The rules, as a user's test class inherits them."""

    def make(self, num_envs: int) -> Environment:
        return Point(num_envs)


class TestSparing(PictureConformance):
    """The rules, of an environment that leaves pictures out."""

    def make(self, num_envs: int) -> Environment:
        return Sparing(num_envs)


# Methods in which an environment differs from one that keeps the rules.


def acts(spec: ArraySpec) -> dict[str, Any]:
    def begin(self, num_envs):
        Point.__init__(self, num_envs)
        self.action_spec = spec

    return {"__init__": begin}


def shows(terms: Callable[[Point], dict[str, torch.Tensor]]) -> dict[str, Any]:
    return {"observe": lambda self: {"policy": terms(self)}}


def returns(**changes: Callable[[Step], torch.Tensor]) -> dict[str, Any]:
    def step(self, action):
        step = Point.step(self, action)
        return dataclasses.replace(step, **{name: change(step) for name, change in changes.items()})

    return {"step": step}


def does(before: Callable[[Point], object]) -> dict[str, Any]:
    def step(self, action):
        before(self)
        return Point.step(self, action)

    return {"step": step}


def begins(after: Callable[[Point, torch.Tensor], object]) -> dict[str, Any]:
    def reset(self, env_ids, conditions):
        Point.reset(self, env_ids, conditions)
        after(self, env_ids)
        return self.observe()

    return {"reset": reset}


def resets_by_itself(self, action):
    step = Point.step(self, action)
    over = step.terminated | step.truncated
    self.position[over] = 0.0
    self.clock[over] = 0
    self.running |= over
    return step


def remembers_the_episode_before(self, env_ids):
    self.push = getattr(self, "push", 0.0) + 0.01
    self.position[env_ids] += self.push


def observes_nan(self, action):
    step = Point.step(self, action)
    step.observation["policy"]["position"][1] = torch.nan
    return step


def closes_once(self):
    assert not hasattr(self, "closed")
    self.closed = True


def state_of(position: Callable[[Point], torch.Tensor]) -> dict[str, Any]:
    return {"state": lambda self: {"rigid_object": {"point": {"root_pose": position(self)}}}}


def snapshot_of(**kept: Callable[[Point], torch.Tensor]) -> dict[str, Any]:
    return {"snapshot": lambda self: {name: value(self) for name, value in kept.items()}}


def draws_the_moment_in_which_it_is_asked(self, env_ids, cameras):
    return [lambda slot=slot: {VIEWPORT: self.film([slot], cameras)[VIEWPORT][0]} for slot in env_ids]


def shows_pictures(change: Callable[[Any, Any], Any]) -> dict[str, Any]:
    def step(self, action):
        step = Sparing.step(self, action)
        pictures = {**step.observation, "camera_obs": change(self, step.observation["camera_obs"])}
        return dataclasses.replace(step, observation=pictures)

    return {"step": step}


def drawn_on_demand_otherwise(self, pictures):
    return {name: shown + 1 if isinstance(shown, torch.Tensor) else shown for name, shown in pictures.items()}


def earlier_pictures(self, pictures):
    return {name: kept.clone() for name, kept in self._kept.items()}


FAULTS: dict[str, list[dict[str, Any]]] = {
    "specs_describe_the_environment": [
        acts(ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0), names=("x",))),
        acts(ArraySpec(shape=(2,), low=(1.0, 1.0), high=(-1.0, -1.0))),
    ],
    "conditions_follow_from_the_generator_alone": [
        {"draw_conditions": lambda self, generator: Point.draw_conditions(self, OWN_GENERATOR)}
    ],
    "conditions_survive_a_json_file": [
        {"draw_conditions": lambda self, generator: {"point.start": [0.0, float(generator.uniform())]}}
    ],
    "instructions_are_words": [{"instruction": lambda self, conditions: ""}],
    "observations_are_as_specified": [
        shows(lambda point: {"position": point.position[:, :1].clone()}),
        shows(lambda point: {"place": point.position.clone()}),
        shows(lambda point: {"position": point.position.double()}),
        {"step": observes_nan},
    ],
    "steps_have_the_shapes_of_the_contract": [
        returns(reward=lambda step: step.reward[:, None]),
        returns(success=lambda step: step.terminated.float()),
    ],
    "a_step_leaves_the_action_as_it_is": [{"step": lambda self, action: Point.step(self, action.zero_())}],
    "env_slots_rest_until_they_are_reset": [
        returns(reward=lambda step: torch.ones_like(step.reward)),
        {"step": resets_by_itself},
        does(lambda point: point.position.add_(~point.running[:, None])),
    ],
    "actions_of_resting_env_slots_are_ignored": [
        {"step": lambda self, action: Point.step(self, action + 0 * action.sum())}
    ],
    "a_reset_leaves_other_env_slots_untouched": [
        begins(lambda point, env_ids: point.position.add_(1.0)),
        begins(lambda point, env_ids: point.clock.zero_()),
    ],
    "an_episode_follows_from_its_conditions_and_actions": [
        begins(lambda point, env_ids: point.position.add_(0.1 * torch.arange(point.num_envs)[:, None])),
        begins(remembers_the_episode_before),
    ],
    "the_time_limit_truncates": [does(lambda point: point.clock.zero_())],
    "returned_tensors_stay_as_they_are": [shows(lambda point: {"position": point.position})],
    "closing_twice_is_allowed": [{"close": closes_once}],
    "a_recorded_state_has_all_env_slots_and_stays_as_it_is": [
        state_of(lambda point: point.position),
        state_of(lambda point: point.position[:1].clone()),
    ],
    "the_parts_of_a_state_make_the_state": [{"state_of": lambda self, parts: Point.state_of(self, parts + 1.0)}],
    "a_recorded_episode_starts_again_exactly": [
        {
            **begins(lambda point, env_ids: point.position.add_(torch.rand(point.num_envs, 2))),
            "restore": lambda self, env_ids, conditions, states: self.reset(env_ids, conditions),
        }
    ],
    "a_snapshot_brings_everything_back": [
        snapshot_of(position=lambda point: point.position.clone(), running=lambda point: point.running.clone()),
        snapshot_of(
            position=lambda point: point.position,
            running=lambda point: point.running.clone(),
            clock=lambda point: point.clock.clone(),
        ),
    ],
    "films_are_pictures_and_change_nothing": [
        {"film": lambda self, env_ids, cameras: {VIEWPORT: Point.film(self, env_ids, cameras)[VIEWPORT] / 255.0}},
        {"film": lambda self, env_ids, cameras: Point.film(self, env_ids, [VIEWPORT])},
        {"film_later": draws_the_moment_in_which_it_is_asked},
    ],
    "pictures_on_demand_are_those_that_are_always_drawn": [
        shows_pictures(earlier_pictures),
        shows_pictures(drawn_on_demand_otherwise),
        {"draw_pictures_of": lambda self, env_ids: Sparing.draw_pictures_of(self, [])},
    ],
}  # fmt: skip
ALL = [(name, methods) for name, faults in FAULTS.items() for methods in faults]


@pytest.mark.parametrize(("name", "methods"), ALL)
def test_a_broken_rule_is_noticed(name, methods):
    base = Sparing if name.startswith("pictures") else Point
    with pytest.raises(AssertionError):
        rule(EnvironmentConformance, name, make=type("Broken", (base,), methods))()


def test_every_rule_has_an_environment_that_breaks_it():
    assert set(FAULTS) == rules(EnvironmentConformance) | rules(PictureConformance)


class Bare(Environment):
    """An environment that offers nothing but the contract."""

    def __init__(self, num_envs):
        vars(self).update(vars(Point(num_envs)))

    draw_conditions = Point.draw_conditions
    reset = Point.reset
    step = Point.step
    observe = Point.observe


@pytest.mark.parametrize("name", [name for name in FAULTS if any(word in name for word in ("state", "pictures"))])
def test_rules_of_what_is_not_offered_are_skipped(name):
    with pytest.raises(SkipTest):
        rule(EnvironmentConformance, name, make=Bare)()
