"""Policies that need no observation."""

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.catalog import resolve_policy_class
from tests.fakes_environment import ScriptedEnvironment, episodes
from tests.policy.playing import actions_of


def test_zero_action_takes_no_options_and_gives_zeros_for_every_env_slot():
    policy_class = resolve_policy_class("zero_action")
    assert torch.equal(policy_class.from_dict({}).get_action(ScriptedEnvironment(4), {}), torch.zeros(4, 3))
    with pytest.raises(ConfigError, match="gain: ZeroActionPolicy"):
        policy_class.from_dict({"gain": 1})


def actions(num_envs: int, *, seed: int = 7, bounds: ArraySpec | None = None) -> dict[int, torch.Tensor]:
    environment = ScriptedEnvironment(num_envs)
    environment.action_spec = bounds or environment.action_spec
    return actions_of(resolve_policy_class("random_action").from_dict({}), environment, episodes(20, seed=seed))


def test_an_episode_gets_the_same_bits_in_any_env_slot_and_other_ones_than_another_episode_or_seed():
    alone, many, other = actions(1), actions(16), actions(1, seed=8)
    assert len(alone) == 20
    assert all(torch.equal(alone[index], many[index]) for index in alone)
    assert not torch.equal(alone[0][:3], alone[1][:3])
    assert not torch.equal(alone[0][:3], other[0][:3])


def test_an_episode_draws_from_stream_1_of_its_seed_in_order():
    """The bounds of the actions are -1 and 2."""
    stream = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1, 5)))
    action = actions(3)[5]
    expected = -1 + 3 * stream.random((len(action), 3))
    torch.testing.assert_close(action, torch.from_numpy(expected).float())


def test_a_long_episode_never_repeats_its_numbers():
    policy = resolve_policy_class("random_action").from_dict({})
    environment = ScriptedEnvironment(2)
    policy.start_episodes(environment, [])
    assert torch.equal(policy.get_action(environment, {}), torch.zeros(2, 3))
    rollout(environment, policy, episodes(1), [])
    assert len({tuple(policy.get_action(environment, {})[0].tolist()) for _ in range(200)}) == 200


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1, 2, (-1, 2)),
        (None, None, (-1, 1)),
        (-inf, inf, (-1, 1)),
        (0.5, inf, (0.5, 1)),
        (5, inf, (5, 7)),
        (-inf, 0, (-1, 0)),
        (-inf, -5, (-7, -5)),
    ],
)
def test_actions_fill_their_bounds_and_with_one_lie_on_its_right_side(low, high, expected):
    bounds: dict[str, Any] = {} if low is None else {"low": (low,) * 3, "high": (high,) * 3}
    drawn = torch.cat(list(actions(1, bounds=ArraySpec(shape=(3,), **bounds)).values()))
    width = expected[1] - expected[0]
    assert expected[0] <= drawn.min() < drawn.max() <= expected[1]
    assert drawn.max() - drawn.min() > 0.8 * width
    assert abs(float(drawn.mean()) - sum(expected) / 2) < 0.1 * width
