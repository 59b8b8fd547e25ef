import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.policy.catalog import resolve_policy_class
from tests.fakes import CoinConfig, CoinEnvironment


def act(observation, checkpoint_path: str, gain: float = 0.5, *, joints: tuple[int, ...] = (0,)):
    """Answers an array, as functions may, that shows what it was asked with."""
    assert checkpoint_path == "network.pt"
    assert joints == (0, 1)
    return np.full((len(observation["policy"]["coin"]), 1), gain, np.float32)


def observe(state, gain: float = 0.5):
    return gain * state


def take_any(observation, *others):
    return observation, others


def test_a_function_acts_with_the_options_of_its_job():
    policy_class = resolve_policy_class(f"{__name__}:act")
    policy = policy_class.from_dict({"checkpoint_path": "network.pt", "gain": 0.25, "joints": [0, 1]})
    action = policy.get_action(CoinEnvironment(CoinConfig(), num_envs=3), {"policy": {"coin": torch.zeros(3, 1)}})
    assert np.array_equal(action, np.full((3, 1), 0.25))


def test_the_same_function_is_always_the_same_class():
    assert resolve_policy_class(f"{__name__}.act") is resolve_policy_class(f"{__name__}:act")


def test_options_are_checked_against_the_parameters_of_the_function():
    declared = declared_options(resolve_policy_class(f"{__name__}:act"))
    with pytest.raises(ConfigError) as refused:
        declared.read({"gain": "high", "gian": 1.0}, owner="policy 'act'")
    assert [(problem.key, problem.message) for problem in refused.value.problems] == [
        ("gian", "policy 'act' has no such option; did you mean 'gain'?"),
        ("checkpoint_path", "is missing; policy 'act' needs it"),
        ("gain", '"high" is not a number'),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("observe", "the first parameter of a function that acts is called 'observation'"),
        ("take_any", "takes 'others' not by one name"),
    ],
)
def test_a_function_that_does_not_say_that_it_is_a_policy_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        resolve_policy_class(f"{__name__}:{name}")
