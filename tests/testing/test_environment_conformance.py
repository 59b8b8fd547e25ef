"""A well-behaved environment passes every rule, and each rule notices an environment that breaks it."""

import dataclasses
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.testing.environment_conformance import EnvironmentConformance
from tests.testing.one_rule import rule, rules
from tests.testing.point import PointEnvironment


class TestPoint(EnvironmentConformance):
    """The rules, as a user's test class inherits them."""

    def make(self, num_envs: int) -> Environment:
        return PointEnvironment(num_envs)


class NoNames(PointEnvironment):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.action_spec = dataclasses.replace(self.action_spec, names=("x",))


class BoundsTheWrongWayRound(PointEnvironment):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.action_spec = ArraySpec(shape=(2,), low=(1.0, 1.0), high=(-1.0, -1.0))


class DrawsFromItsOwnGenerator(PointEnvironment):
    own = np.random.default_rng(0)

    def draw_conditions(self, generator: np.random.Generator):
        del generator
        return super().draw_conditions(self.own)


class ArraysAsConditions(PointEnvironment):
    def draw_conditions(self, generator: np.random.Generator) -> Any:
        return {"point.start": [0.0, float(generator.uniform())]}


class Speechless(PointEnvironment):
    def instruction(self, conditions):
        return ""


class AnotherShape(PointEnvironment):
    def observe(self):
        return {"policy": {"position": self.position[:, :1].clone()}}


class AnotherTerm(PointEnvironment):
    def observe(self):
        return {"policy": {"place": self.position.clone()}}


class DoublePrecision(PointEnvironment):
    def observe(self):
        return {"policy": {"position": self.position.double()}}


class ObservesNaN(PointEnvironment):
    def step(self, action):
        step = super().step(action)
        step.observation["policy"]["position"][1] = torch.nan
        return step


class WithStep(PointEnvironment):
    """Changes one thing of each step."""

    @staticmethod
    def changed(step, action):
        raise NotImplementedError

    def step(self, action):
        return self.changed(super().step(action), action)


class RewardOfOneColumn(WithStep):
    @staticmethod
    def changed(step, action):
        return dataclasses.replace(step, reward=step.reward[:, None])


class NumbersAsMasks(WithStep):
    @staticmethod
    def changed(step, action):
        return dataclasses.replace(step, success=step.terminated.float())


class ClipsInPlace(WithStep):
    @staticmethod
    def changed(step, action):
        action.zero_()
        return step


class PaysForRest(WithStep):
    @staticmethod
    def changed(step, action):
        return dataclasses.replace(step, reward=torch.ones_like(step.reward))


class ResetsByItself(PointEnvironment):
    def step(self, action):
        step = super().step(action)
        over = step.terminated | step.truncated
        self.position[over] = 0.0
        self.clock[over] = 0
        self.running |= over
        return step


class MovesAtRest(PointEnvironment):
    def step(self, action):
        self.position[~self.running] += 1.0
        return super().step(action)


class SumsAllActions(PointEnvironment):
    def step(self, action):
        return super().step(action + 0 * action.sum())


class ResetsAll(PointEnvironment):
    def reset(self, env_ids, conditions):
        self.position[:] = 0.0
        return super().reset(env_ids, conditions)


class RestartsTheClockOfAll(PointEnvironment):
    def reset(self, env_ids, conditions):
        self.clock[:] = 0
        return super().reset(env_ids, conditions)


class DependsOnTheEnvSlot(PointEnvironment):
    def reset(self, env_ids, conditions):
        super().reset(env_ids, conditions)
        self.position[env_ids] += 0.1 * env_ids[:, None]
        return self.observe()


class RemembersTheEpisodeBefore(PointEnvironment):
    push = 0.0

    def reset(self, env_ids, conditions):
        self.push += 0.01
        super().reset(env_ids, conditions)
        self.position[env_ids] += self.push
        return self.observe()


class Endless(PointEnvironment):
    def step(self, action):
        self.clock[:] = 0
        return super().step(action)


class ShowsItsOwnMemory(PointEnvironment):
    def observe(self):
        return {"policy": {"position": self.position}}


class ClosesOnce(PointEnvironment):
    closed = False

    def close(self):
        if self.closed:
            raise AssertionError("closed twice")
        self.closed = True


class StateIsAView(PointEnvironment):
    def state(self):
        return {"rigid_object": {"point": {"root_pose": self.position}}}


class StateOfOneEnvSlot(PointEnvironment):
    def state(self):
        return {"rigid_object": {"point": {"root_pose": self.position[:1].clone()}}}


class PartsMakeSomethingElse(PointEnvironment):
    def state_of(self, parts):
        return super().state_of(parts + 1.0)


class RestoresTheConditionsAlone(PointEnvironment):
    def reset(self, env_ids, conditions):
        super().reset(env_ids, conditions)
        self.position[env_ids] += torch.rand(len(env_ids), 2)
        return self.observe()

    def restore(self, env_ids, conditions, states):
        return self.reset(env_ids, conditions)


class ForgetsTheClock(PointEnvironment):
    def snapshot(self):
        return {"position": self.position.clone(), "running": self.running.clone()}


class SnapshotIsAView(PointEnvironment):
    def snapshot(self):
        return {**(super().snapshot() or {}), "position": self.position}


BROKEN: list[tuple[str, type[PointEnvironment]]] = [
    ("specs_describe_the_environment", NoNames),
    ("specs_describe_the_environment", BoundsTheWrongWayRound),
    ("conditions_follow_from_the_generator_alone", DrawsFromItsOwnGenerator),
    ("conditions_survive_a_json_file", ArraysAsConditions),
    ("instructions_are_words", Speechless),
    ("observations_are_as_specified", AnotherShape),
    ("observations_are_as_specified", AnotherTerm),
    ("observations_are_as_specified", DoublePrecision),
    ("observations_are_as_specified", ObservesNaN),
    ("steps_have_the_shapes_of_the_contract", RewardOfOneColumn),
    ("steps_have_the_shapes_of_the_contract", NumbersAsMasks),
    ("a_step_leaves_the_action_as_it_is", ClipsInPlace),
    ("env_slots_rest_until_they_are_reset", PaysForRest),
    ("env_slots_rest_until_they_are_reset", ResetsByItself),
    ("env_slots_rest_until_they_are_reset", MovesAtRest),
    ("actions_of_resting_env_slots_are_ignored", SumsAllActions),
    ("a_reset_leaves_other_env_slots_untouched", ResetsAll),
    ("a_reset_leaves_other_env_slots_untouched", RestartsTheClockOfAll),
    ("an_episode_follows_from_its_conditions_and_actions", DependsOnTheEnvSlot),
    ("an_episode_follows_from_its_conditions_and_actions", RemembersTheEpisodeBefore),
    ("the_time_limit_truncates", Endless),
    ("returned_tensors_stay_as_they_are", ShowsItsOwnMemory),
    ("closing_twice_is_allowed", ClosesOnce),
    ("a_recorded_state_has_all_env_slots_and_stays_as_it_is", StateIsAView),
    ("a_recorded_state_has_all_env_slots_and_stays_as_it_is", StateOfOneEnvSlot),
    ("the_parts_of_a_state_make_the_state", PartsMakeSomethingElse),
    ("a_recorded_episode_starts_again_exactly", RestoresTheConditionsAlone),
    ("a_snapshot_brings_everything_back", ForgetsTheClock),
    ("a_snapshot_brings_everything_back", SnapshotIsAView),
]


@pytest.mark.parametrize(("name", "environment_class"), BROKEN)
def test_a_broken_rule_is_noticed(name, environment_class):
    with pytest.raises(AssertionError):
        rule(EnvironmentConformance, name, make=environment_class)()


def test_every_rule_has_an_environment_that_breaks_it():
    assert {name for name, _ in BROKEN} == rules(EnvironmentConformance)


class Bare(Environment):
    """An environment that offers nothing but the contract."""

    def __init__(self, num_envs):
        vars(self).update(vars(PointEnvironment(num_envs)))

    draw_conditions = PointEnvironment.draw_conditions
    reset = PointEnvironment.reset
    step = PointEnvironment.step
    observe = PointEnvironment.observe


@pytest.mark.parametrize("name", [name for name, _ in dict(BROKEN).items() if "state" in name])
def test_rules_of_what_is_not_offered_are_skipped(name):
    with pytest.raises(SkipTest, match="is not"):
        rule(EnvironmentConformance, name, make=Bare)()
