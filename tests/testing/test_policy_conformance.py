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


# Methods and promises in which a policy differs from one that keeps the rules.


def acts(change: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """Let actions be what is made of the policy's own, of what it sees, and of itself."""

    def get_action(self, env, observation):
        return change(StrollPolicy.get_action(self, env, observation), observation, self)

    return {"get_action": get_action}


def looks_at(env_ids: Callable[[StrollPolicy], list[int]]) -> dict[str, Any]:
    """Let actions of some env slots depend on their pictures."""

    def change(action, observation, policy):
        for slot in env_ids(policy):
            action[slot] += observation["camera_obs"]["eye"][slot].float().mean() / 1e4
        return action

    return acts(change)


def of_one_size(action: torch.Tensor, _: Any, policy: Any) -> torch.Tensor:
    policy.size = getattr(policy, "size", len(action))
    return torch.zeros(policy.size, 2)


def one_memory_for_all(self):
    other = type(self)(self.config)
    other.ages = self.ages
    return other


def moves_all_on(self, env, observation, env_ids):
    return StrollPolicy.act_in_some(self, env, observation, range(env.num_envs))


def seeds_the_process(self, config=None):
    StrollPolicy.__init__(self, config)
    torch.manual_seed(0)


def closes_once(self):
    assert not hasattr(self, "closed")
    self.closed = True


NEVER_FORGETS = {"reset": lambda self, env_ids=None: None}
FORGETS_ALL = {"reset": lambda self, env_ids=None: self.ages.clear()}
DRAWS_FROM_THE_PROCESS = acts(lambda action, seen, _: action + torch.rand(1))
FOLLOWS_THE_CROWD = acts(lambda action, seen, _: action + seen["policy"]["position"].mean())
FAULTS: dict[str, list[dict[str, Any]]] = {
    "unknown_options_are_refused": [{"from_dict": classmethod(lambda cls, config_dict: cls())}],
    "actions_fit_the_environment": [
        acts(lambda action, seen, _: action[:1]),
        acts(lambda action, seen, _: action * torch.nan),
    ],
    "observations_stay_as_they_are": [acts(lambda action, seen, _: action + seen["policy"]["position"].mul_(2))],
    "finished_names_env_slots": [{"finished": lambda self: torch.tensor(False)}],
    "a_policy_with_a_length_says_it": [{"has_length": lambda self: True}],
    "an_episode_is_played_alike_after_any_other": [NEVER_FORGETS],
    "noise_comes_from_the_episode": [DRAWS_FROM_THE_PROCESS, {**DRAWS_FROM_THE_PROCESS, "__init__": seeds_the_process}],
    "an_episode_leaves_its_neighbours_alone": [FORGETS_ALL],
    "an_episode_begins_afresh_in_a_used_env_slot": [
        {"reset": lambda self, env_ids=None: self.ages.clear() if env_ids is None else None}
    ],
    "env_slots_do_not_influence_each_other": [FOLLOWS_THE_CROWD],
    "one_object_serves_any_num_envs": [acts(of_one_size)],
    "a_shared_network_has_a_memory_for_each": [{"with_own_memory": one_memory_for_all}],
    "env_slots_that_wait_keep_their_memory": [{"act_in_some": moves_all_on, **acts(lambda action, *_: action)}],
    "it_announces_the_pictures_that_it_looks_at": [
        {"traits": PolicyTraits(sees_pictures=False), **looks_at(lambda policy: list(policy.ages))},
        {
            "pictures_to_see": lambda self, env, starting: starting,
            **looks_at(lambda policy: [slot for slot, age in policy.ages.items() if age % 2 == 1]),
        },
    ],
    "closing_twice_is_allowed": [{"close": closes_once}],
}


def of_policies(name: str, attributes: dict[str, Any], *, alike: bool = False) -> Callable[[], None]:
    """Return a rule as a test of policies that differ in some attributes."""
    of_class = type("Broken", (StrollPolicy,), attributes)
    return rule(PolicyConformance, name, policy_class=of_class, answers_alike=alike, make_environment=SeenPoint)


@pytest.mark.parametrize(
    ("name", "attributes"), [(name, attributes) for name, faults in FAULTS.items() for attributes in faults]
)
def test_a_broken_rule_is_noticed(name, attributes):
    with pytest.raises(AssertionError):
        of_policies(name, attributes)()


def test_every_rule_has_a_policy_that_breaks_it():
    assert set(FAULTS) == rules(PolicyConformance)


@pytest.mark.parametrize(
    ("name", "attributes", "traits"),
    [
        ("an_episode_is_played_alike_after_any_other", NEVER_FORGETS, PolicyTraits()),
        ("noise_comes_from_the_episode", DRAWS_FROM_THE_PROCESS, PolicyTraits()),
        ("an_episode_leaves_its_neighbours_alone", FORGETS_ALL, PolicyTraits()),
        ("env_slots_do_not_influence_each_other", FOLLOWS_THE_CROWD, PolicyTraits(batch_invariant=True)),
    ],
)
def test_promises_that_are_not_made_are_tested_only_where_a_server_answers_alike(name, attributes, traits):
    attributes = {**attributes, "traits": traits}
    with pytest.raises(SkipTest):
        of_policies(name, attributes)()
    with pytest.raises(AssertionError):
        of_policies(name, attributes, alike=True)()
