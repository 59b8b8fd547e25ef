"""A well-behaved policy passes every rule, and each rule notices a policy that breaks it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.testing.one_rule import rule, rules
from tests.testing.point import SeenPoint


@dataclass(frozen=True)
class StrollCfg(PolicyCfg):
    """Options of `StrollPolicy`."""

    speed: float = 0.5


class StrollPolicy(PolicyBase[StrollCfg]):
    """Strolls by the noise of each episode, slower with every step of it."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True, serves_any_num_envs=True)

    def __init__(self, config: StrollCfg | None = None) -> None:
        super().__init__(config or StrollCfg())
        self.generators: dict[int, np.random.Generator] = {}
        self.ages: dict[int, int] = {}

    def with_own_memory(self):
        return type(self)(self.config)

    def start_episodes(self, env, starts):
        super().start_episodes(env, starts)
        for start in starts:
            self.generators[start.env_id] = start.episode.policy_generator()

    def reset(self, env_ids=None):
        for slot in list(self.ages) if env_ids is None else env_ids.tolist():
            self.ages.pop(slot, None)

    def get_action(self, env, observation):
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env, observation, env_ids):
        action = torch.zeros(env.num_envs, 2)
        for slot, generator in self.generators.items():
            if slot in env_ids:
                age = self.ages[slot] = self.ages.get(slot, 0) + 1
                action[slot] = self.config.speed / age * torch.from_numpy(generator.uniform(-1, 1, 2))
        return action + 0.01 * observation["policy"]["position"]


class TestStroll(PolicyConformance):
    """The rules, as a user's test class inherits them."""

    policy_class = StrollPolicy
    options = {"speed": 0.25}  # noqa: RUF012  as a user writes it

    def make_environment(self, num_envs: int) -> Environment:
        return SeenPoint(num_envs)


class TakesAnything(StrollPolicy):
    @classmethod
    def from_dict(cls, config_dict):
        return cls()


class OneActionOnly(StrollPolicy):
    def get_action(self, env, observation):
        return super().get_action(env, observation)[:1]


class ActsNaN(StrollPolicy):
    def get_action(self, env, observation):
        return super().get_action(env, observation) * torch.nan


class ScalesInPlace(StrollPolicy):
    def get_action(self, env, observation):
        observation["policy"]["position"] *= 2
        return super().get_action(env, observation)


class FinishesAsOne(StrollPolicy):
    def finished(self):
        return torch.tensor(False)


class LengthUnknown(StrollPolicy):
    def has_length(self):
        return True


class NeverForgets(StrollPolicy):
    def reset(self, env_ids=None): ...


class DrawsFromTheProcess(StrollPolicy):
    def get_action(self, env, observation):
        return super().get_action(env, observation) + torch.rand(1)


class DrawsFromTheProcessThatItSeeds(DrawsFromTheProcess):
    def __init__(self, config: StrollCfg | None = None) -> None:
        super().__init__(config)
        torch.manual_seed(0)


class ForgetsAll(StrollPolicy):
    def reset(self, env_ids=None):
        self.ages.clear()


class ForgetsBetweenJobsOnly(StrollPolicy):
    def reset(self, env_ids=None):
        if env_ids is None:
            super().reset()


class FollowsTheCrowd(StrollPolicy):
    def get_action(self, env, observation):
        return super().get_action(env, observation) + observation["policy"]["position"].mean()


class OfOneSize(StrollPolicy):
    size = 0

    def get_action(self, env, observation):
        self.size = self.size or env.num_envs
        return torch.zeros(self.size, 2)


class OneMemoryForAll(StrollPolicy):
    def with_own_memory(self):
        other = type(self)(self.config)
        other.ages = self.ages
        return other


class MovesAllOn(StrollPolicy):
    def act_in_some(self, env, observation, env_ids):
        return super().act_in_some(env, observation, range(env.num_envs))

    def get_action(self, env, observation):
        return super().get_action(env, observation)


class ClosesOnce(StrollPolicy):
    closed = False

    def close(self):
        if self.closed:
            raise AssertionError("closed twice")
        self.closed = True


class LooksWithoutAWord(StrollPolicy):
    traits = PolicyTraits(sees_pictures=False)

    def get_action(self, env, observation):
        return (
            super().get_action(env, observation) + observation["camera_obs"]["eye"].float().mean(dim=(1, 2, 3))[:, None]
        )


class LooksSeldomButOnlyAnnouncesTheFirst(StrollPolicy):
    def pictures_to_see(self, env, starting):
        return starting

    def get_action(self, env, observation):
        action = super().get_action(env, observation)
        for slot, age in self.ages.items():
            if age % 2 == 1:
                action[slot] += observation["camera_obs"]["eye"][slot].float().mean() / 1e4
        return action


BROKEN: list[tuple[str, type[PolicyBase[Any]]]] = [
    ("unknown_options_are_refused", TakesAnything),
    ("actions_fit_the_environment", OneActionOnly),
    ("actions_fit_the_environment", ActsNaN),
    ("observations_stay_as_they_are", ScalesInPlace),
    ("finished_names_env_slots", FinishesAsOne),
    ("a_policy_with_a_length_says_it", LengthUnknown),
    ("an_episode_is_played_alike_after_any_other", NeverForgets),
    ("noise_comes_from_the_episode", DrawsFromTheProcess),
    ("noise_comes_from_the_episode", DrawsFromTheProcessThatItSeeds),
    ("an_episode_leaves_its_neighbours_alone", ForgetsAll),
    ("an_episode_begins_afresh_in_a_used_env_slot", ForgetsBetweenJobsOnly),
    ("env_slots_do_not_influence_each_other", FollowsTheCrowd),
    ("one_object_serves_any_num_envs", OfOneSize),
    ("a_shared_network_has_a_memory_for_each", OneMemoryForAll),
    ("env_slots_that_wait_keep_their_memory", MovesAllOn),
    ("it_announces_the_pictures_that_it_looks_at", LooksWithoutAWord),
    ("it_announces_the_pictures_that_it_looks_at", LooksSeldomButOnlyAnnouncesTheFirst),
    ("closing_twice_is_allowed", ClosesOnce),
]


def of_policies(name: str, of_class: type[PolicyBase[Any]], *, alike: bool = False) -> Callable[[], None]:
    """Return a rule as a test of policies of a class."""
    return rule(PolicyConformance, name, policy_class=of_class, answers_alike=alike, make_environment=SeenPoint)


@pytest.mark.parametrize(("name", "of_class"), BROKEN)
def test_a_broken_rule_is_noticed(name, of_class):
    with pytest.raises(AssertionError):
        of_policies(name, of_class)()


def test_every_rule_has_a_policy_that_breaks_it():
    assert {name for name, _ in BROKEN} == rules(PolicyConformance)


class Plain(StrollPolicy):
    """Promises nothing."""

    traits = PolicyTraits()


@pytest.mark.parametrize(
    "name",
    ["an_episode_is_played_alike_after_any_other", "noise_comes_from_the_episode", "one_object_serves_any_num_envs"],
)
def test_promises_that_are_not_made_are_not_tested(name):
    with pytest.raises(SkipTest, match="does not say that it is"):
        of_policies(name, Plain)()


class PlainAndNeverForgets(Plain):
    def reset(self, env_ids=None): ...


class PlainAndDraws(DrawsFromTheProcess):
    traits = PolicyTraits()


class PlainAndForgetsAll(ForgetsAll):
    traits = PolicyTraits()


class PlainAndFollowsTheCrowd(FollowsTheCrowd):
    traits = PolicyTraits(batch_invariant=True)


@pytest.mark.parametrize(
    ("name", "of_class"),
    [
        ("an_episode_is_played_alike_after_any_other", PlainAndNeverForgets),
        ("noise_comes_from_the_episode", PlainAndDraws),
        ("an_episode_leaves_its_neighbours_alone", PlainAndForgetsAll),
        ("env_slots_do_not_influence_each_other", PlainAndFollowsTheCrowd),
    ],
)
def test_a_policy_whose_server_answers_alike_keeps_the_rules_of_a_reproducible_one(name, of_class):
    with pytest.raises(SkipTest):
        of_policies(name, of_class)()
    with pytest.raises(AssertionError):
        of_policies(name, of_class, alike=True)()
