"""Policies that a program passes as objects or functions."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.policy.catalog import (
    lent_policy,
    name_of_lent,
    resolve_policy_class,
    state_hash,
)
from tests.fakes import CoinConfig, CoinEnvironment, ShrugPolicy
from tests.policy.playing import refused


def test_a_policy_is_lent_as_it_is_and_what_cannot_act_is_none():
    policy = ShrugPolicy()
    assert lent_policy(policy).policy is policy
    with pytest.raises(ConfigError, match=r"policy: .*list"):
        lent_policy([])


class Holder:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def act(self, observation: Any) -> Any:
        return observation


def act(observation: Any) -> Any:
    return observation


def scaled(factor: Any) -> Any:
    return lambda observation: observation * factor


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (1.0, 1.0, 1),
        (torch.ones(3), torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (
            torch.ones(2, dtype=torch.bfloat16),
            torch.ones(2, dtype=torch.bfloat16),
            torch.zeros(2, dtype=torch.bfloat16),
        ),
        (np.arange(3), np.arange(3), np.arange(3) + 1),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 1, "b": [3]}),
        (Path("a"), Path("a"), "a"),
        (scaled(2), scaled(2), scaled(3)),
        (scaled(torch.ones(1)), scaled(torch.ones(1)), scaled(torch.zeros(1))),
        (Holder(gain=1).act, Holder(gain=1).act, Holder(gain=2).act),
        (Holder(gain=1), Holder(gain=1, task_description="lift"), Holder(gain=2)),
    ],
)
def test_what_differs_has_another_hash(one, same, other):
    assert state_hash(one) == state_hash(same)
    assert state_hash(one) is not None
    assert state_hash(one) != state_hash(other)


def test_every_parameter_and_every_layer_counts():
    layer = torch.nn.Linear(2, 2)
    network = torch.nn.Sequential(layer, torch.nn.Tanh())
    before = state_hash(Holder(network=network))
    network.train(mode=False)
    assert state_hash(Holder(network=network)) == before
    with torch.no_grad():
        layer.bias[1] += 1
    assert state_hash(Holder(network=network)) != before
    assert state_hash(torch.nn.Sequential(layer, torch.nn.ReLU())) != state_hash(network)


@pytest.mark.parametrize("opaque", [torch.Generator(), np.random.default_rng(), object(), torch.nn.LazyLinear(1)])
def test_what_nobody_can_look_into_has_no_hash(opaque):
    holder = Holder(gain=1)
    vars(holder)["itself"] = holder
    assert state_hash(holder) is not None
    assert state_hash(Holder(held=opaque)) is None
    assert lent_policy(Holder(held=opaque).act).content.stated == {"state in memory": "unknown"}


def test_sources_and_names_are_those_of_the_function_or_class():
    assert name_of_lent(act) == f"{__name__}.act"
    assert name_of_lent(Holder().act) == f"{__name__}.Holder.act"
    assert name_of_lent(Holder()) == f"{__name__}.Holder"
    assert name_of_lent(partial(act)) == "functools.partial"
    for policy in (act, Holder(get_action=act), Holder().act):
        assert __name__ in lent_policy(policy).content.modules


def function_act(observation, checkpoint_path: str, gain: float = 0.5, *, joints: tuple[int, ...] = (0,)):
    """Answers an array, as functions may, that shows what it was asked with."""
    assert checkpoint_path == "network.pt"
    assert joints == (0, 1)
    return np.full((len(observation["policy"]["coin"]), 1), gain, np.float32)


def observe(state, gain: float = 0.5):
    return gain * state


def take_any(observation, *others):
    return observation, others


def test_a_function_acts_with_the_options_of_its_job():
    policy_class = resolve_policy_class(f"{__name__}:function_act")
    assert resolve_policy_class(f"{__name__}.function_act") is policy_class
    policy = policy_class.from_dict({"checkpoint_path": "network.pt", "gain": 0.25, "joints": [0, 1]})
    action = policy.get_action(CoinEnvironment(CoinConfig(), num_envs=3), {"policy": {"coin": torch.zeros(3, 1)}})
    assert np.array_equal(action, np.full((3, 1), 0.25))


def test_options_are_checked_against_the_parameters_of_the_function():
    declared = declared_options(resolve_policy_class(f"{__name__}:function_act"))
    assert declared.names == {"checkpoint_path", "gain", "joints"}
    with refused("gian", "checkpoint_path", "gain"):
        declared.read({"gain": "high", "gian": 1.0}, owner="policy 'function_act'")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"{__name__}:observe", "'observation'"),
        (f"{__name__}:take_any", "'others'"),
        ("isaaclab_arena_openpi.policy.pi0_remote_policy.Pi0RemotePolicy", "policy_type: openpi_remote"),
    ],
)
def test_what_is_no_policy_is_refused_and_isaac_lab_arenas_is_told_by_its_name_here(name, told):
    with pytest.raises(ConfigError, match=told):
        resolve_policy_class(name)
