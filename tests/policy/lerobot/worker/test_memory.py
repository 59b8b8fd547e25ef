"""What a policy remembers is found by a trial, and can be put back."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.policy.lerobot_worker import NOTHING, EpisodeMemory

CPU = torch.device("cpu")


class Tracker:
    """Remembers in an object that is no module."""

    def __init__(self) -> None:
        self.scale = float("nan")
        self.reset()

    def reset(self) -> None:
        self.trail: list[float] = []


class Policy(torch.nn.Module):
    """Keeps queues, as LeRobot's policies do, and what a test adds to that."""

    def __init__(
        self, remember: Callable[[Any], object] = lambda _: None, forget: Callable[[Any], object] = lambda _: None
    ) -> None:
        super().__init__()
        self.net = torch.nn.BatchNorm1d(2)
        self.cell: Any = torch.nn.Module()
        self.cell.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.tracker = Tracker()
        self.calls = 0
        self._remember, self._forget = remember, forget
        self.reset()

    def reset(self) -> None:
        self._queues = {"action": deque(maxlen=2)}
        self._forget(self)

    def select_action(self) -> None:
        self.calls += 1
        self.cache = torch.ones(self.calls)
        self._queues["action"].append(float(self.calls))
        self._remember(self)


def found(policy: Policy) -> EpisodeMemory:
    memory = EpisodeMemory(policy)
    policy.select_action()
    memory.find(policy.select_action)
    return memory


def in_buffer() -> Policy:
    return Policy(lambda policy: policy.cell.hidden.add_(1.0), lambda policy: policy.cell.hidden.zero_())


def in_object() -> Policy:
    return Policy(lambda policy: policy.tracker.trail.append(0.5), lambda policy: policy.tracker.reset())


def in_new_attribute() -> Policy:
    def forget(policy: Any) -> None:
        vars(policy).pop("last", None)

    return Policy(lambda policy: setattr(policy, "last", torch.full((1,), float(policy.calls))), forget)


def in_attribute_that_goes() -> Policy:
    return Policy(lambda policy: vars(policy).pop("last", None), lambda policy: setattr(policy, "last", "fresh"))


def from_the_second_action_on() -> Policy:
    def remember(policy: Any) -> None:
        policy.best, policy.age = (policy.calls if policy.age else None), policy.age + 1

    def forget(policy: Any) -> None:
        policy.best, policy.age = None, 0

    return Policy(remember, forget)


def test_queues_and_what_reset_leaves_are_no_memory():
    assert found(Policy()).paths == []


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (in_buffer, [("cell", "hidden")]),
        (in_object, [("", "tracker", "trail")]),
        (in_new_attribute, [("", "last")]),
        (in_attribute_that_goes, [("", "last")]),
        (from_the_second_action_on, [("", "age"), ("", "best")]),
    ],
)
def test_what_an_action_changes_and_reset_sets_back_is_memory(make, paths):
    assert sorted(found(make()).paths) == sorted([*paths, ("", "_queues")])


def told(policy: Any) -> str:
    """Memory of a policy, as text."""
    return str([policy.cell.hidden, policy.tracker.trail, vars(policy).get("last"), policy._queues])


@pytest.mark.parametrize("make", [in_buffer, in_object, in_new_attribute, in_attribute_that_goes])
def test_episodes_take_turns(make):
    policy = make()
    memory = found(policy)
    memory.recall(NOTHING, CPU)
    fresh = told(policy)
    policy.select_action()
    first, words = memory.kept(), told(policy)
    memory.recall(np.zeros(9, np.uint8), CPU)
    assert told(policy) == fresh
    policy.select_action()
    policy.select_action()
    assert told(policy) != words
    memory.recall(np.pad(first, (0, 4)), CPU)
    assert told(policy) == words


def test_what_is_kept_is_not_changed_by_what_follows():
    policy = in_buffer()
    memory = found(policy)
    memory.recall(NOTHING, CPU)
    policy.select_action()
    kept = memory.kept()
    for _ in range(2):
        memory.recall(kept, CPU)
        policy.select_action()
        assert policy.cell.hidden.tolist() == [2.0, 2.0]


def test_a_memory_that_cannot_be_carried_is_refused_by_its_name():
    policy = Policy(
        lambda policy: setattr(policy, "noise", torch.Generator()), lambda policy: setattr(policy, "noise", None)
    )
    memory = found(policy)
    policy.select_action()
    with pytest.raises(TypeError, match="what the policy remembers is in _queues, noise: a Generator is kept"):
        memory.kept()
