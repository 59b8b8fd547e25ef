import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.policy.catalog import lent_policy, modules_at_rest
from tests.fakes import ShrugPolicy


def test_a_policy_is_lent_as_it_is():
    policy = ShrugPolicy()
    assert lent_policy(policy).policy is policy


def test_what_cannot_act_is_no_policy():
    with pytest.raises(ConfigError, match="policy: an object of type list is no policy: give a registered name"):
        lent_policy([])


def test_modules_rest_meanwhile_and_are_as_before_even_after_an_error():
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    policy = ShrugPolicy()
    setattr(policy, "network", network)  # noqa: B010  a name that the class does not declare

    def rest_and_fail() -> None:
        with modules_at_rest(policy):
            assert not any(module.training for module in network.modules())
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        rest_and_fail()
    assert [module.training for module in network.modules()] == [True, True, False]
