import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.catalog import resolve_policy_class
from tests.fakes_environment import ScriptedEnvironment


def test_actions_are_zeros_for_every_env_slot():
    policy = resolve_policy_class("zero_action").from_dict({})
    assert torch.equal(policy.get_action(ScriptedEnvironment(4), {}), torch.zeros(4, 3))


def test_it_takes_no_options():
    with pytest.raises(ConfigError, match="gain: ZeroActionPolicy has no such option"):
        resolve_policy_class("zero_action").from_dict({"gain": 1})
