"""Policies that need no observation."""

from math import inf

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.catalog import resolve_policy_class
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes


def test_actions_are_zeros_for_every_env_slot():
    policy = resolve_policy_class("zero_action").from_dict({})
    assert torch.equal(policy.get_action(ScriptedEnvironment(4), {}), torch.zeros(4, 3))


def test_it_takes_no_options():
    with pytest.raises(ConfigError, match="gain: ZeroActionPolicy has no such option"):
        resolve_policy_class("zero_action").from_dict({"gain": 1})


def actions(num_envs: int, *, max_length: int = 8, seed: int = 7) -> dict[int, torch.Tensor]:
    log = ActionLog()
    environment = ScriptedEnvironment(num_envs)
    environment.max_episode_length = max_length
    rollout(environment, resolve_policy_class("random_action").from_dict({}), episodes(20, seed=seed), [log])
    return log.actions


def test_an_episode_gets_the_same_bits_in_any_env_slot_of_any_batch():
    alone, few, many = actions(1), actions(4), actions(16)
    assert len(alone) == 20
    assert all(torch.equal(alone[index], few[index]) for index in alone)
    assert all(torch.equal(alone[index], many[index]) for index in alone)


def test_episodes_and_seeds_differ():
    first, other = actions(4), actions(4, seed=8)
    assert not torch.equal(first[0][:3], first[1][:3])
    assert not torch.equal(first[0][:3], other[0][:3])


def test_an_episode_draws_from_stream_1_of_its_seed_in_order():
    """The bounds of the actions are -1 and 2."""
    stream = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1, 5)))
    action = actions(3)[5]
    expected = -1 + 3 * stream.random((len(action), 3))
    torch.testing.assert_close(action, torch.from_numpy(expected).float())


def test_actions_fill_the_bounds_evenly():
    drawn = torch.cat(list(actions(4).values()))
    assert drawn.min() >= -1
    assert drawn.max() <= 2
    assert abs(float(drawn.mean()) - 0.5) < 0.15


def test_a_long_episode_never_repeats_its_numbers():
    policy = resolve_policy_class("random_action").from_dict({})
    environment = ScriptedEnvironment(2)
    policy.start_episodes(environment, [])
    assert torch.equal(policy.get_action(environment, {}), torch.zeros(2, 3))
    rollout(environment, policy, episodes(1), [])
    assert len({tuple(policy.get_action(environment, {})[0].tolist()) for _ in range(200)}) == 200


def test_without_bounds_actions_lie_between_minus_one_and_one():
    environment = ScriptedEnvironment(1)
    environment.action_spec = ArraySpec(shape=(3,))
    log = ActionLog()
    rollout(environment, resolve_policy_class("random_action").from_dict({}), episodes(20), [log])
    drawn = torch.cat(list(log.actions.values()))
    assert -1 <= drawn.min() < -0.5
    assert 0.5 < drawn.max() <= 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-inf, inf, (-1, 1)),
        (0.5, inf, (0.5, 1)),
        (5, inf, (5, 7)),
        (-inf, 0, (-1, 0)),
        (-inf, -5, (-7, -5)),
    ],
)
def test_with_one_bound_actions_lie_on_its_right_side(low, high, expected):
    environment = ScriptedEnvironment(1)
    environment.action_spec = ArraySpec(shape=(3,), low=(low,) * 3, high=(high,) * 3)
    log = ActionLog()
    rollout(environment, resolve_policy_class("random_action").from_dict({}), episodes(20), [log])
    drawn = torch.cat(list(log.actions.values()))
    assert expected[0] <= drawn.min() < drawn.max() <= expected[1]
    assert drawn.max() - drawn.min() > 0.8 * (expected[1] - expected[0])
