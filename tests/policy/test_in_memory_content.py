from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.policy.catalog import lent_policy, name_of_lent, state_hash


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
        (torch.ones(2, 3), torch.ones(2, 3), torch.ones(3, 2)),
        (torch.tensor(True), torch.tensor(True), torch.tensor(False)),
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
    assert state_hash(Holder(held=opaque)) is None
    assert lent_policy(Holder(held=opaque).act).content.stated == {"state in memory": "unknown"}


def test_what_holds_itself_has_a_hash():
    holder = Holder(gain=1)
    vars(holder)["itself"] = holder
    assert state_hash(holder) == state_hash(holder)


def test_sources_and_names_are_those_of_the_function_or_class():
    assert name_of_lent(act) == f"{__name__}.act"
    assert name_of_lent(Holder().act) == f"{__name__}.Holder.act"
    assert name_of_lent(Holder()) == f"{__name__}.Holder"
    assert name_of_lent(partial(act)) == "functools.partial"
    for policy in (act, Holder(get_action=act), Holder().act):
        assert __name__ in lent_policy(policy).content.modules
