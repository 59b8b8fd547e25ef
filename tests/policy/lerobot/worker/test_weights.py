"""Weights, values and noise of a policy of LeRobot in its own interpreter."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isaaclab_arena.policy.lerobot_worker import NOTHING, EpisodeMemory, NoiseOfEntries, packed, surely_loaded, unpacked

# A policy is refused to which LeRobot has left weights by chance, and no other.


class Policy(torch.nn.Module):
    """Two layers that share nothing, and a third one that is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.tied = self.first


class Loads:
    """Loads policies from a file in LeRobot's way, and counts them."""

    def __init__(self, file: Path, change: Callable[[Policy], object] = lambda _: None) -> None:
        self.file, self.change, self.count = file, change, 0

    def __call__(self) -> Policy:
        self.count += 1
        policy, saved = Policy(), torch_file(self.file)
        own = policy.state_dict()
        fitting = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
        policy.load_state_dict(fitting, strict=False)
        self.change(policy)
        return policy


def torch_file(file: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file, under LeRobot's names."""
    return {name.removeprefix("model."): value for name, value in load_file(file).items()}


def saved(file: Path, **changes: torch.Tensor | None) -> Path:
    """Return a file with the weights of a policy, where `None` stands for those that it lacks."""
    torch.manual_seed(7)
    weights = {name: value for name, value in Policy().state_dict().items() if not name.startswith("tied")}
    all_of_them = {**weights, **{name.replace("__", "."): value for name, value in changes.items()}}
    save_file({name: value for name, value in all_of_them.items() if value is not None}, file)
    return file


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_policy_with_all_weights_of_its_file_is_loaded_once(tmp_path, prefix):
    file = saved(tmp_path / "weights")
    save_file({prefix + name: value for name, value in torch_file(file).items()}, file)
    load = Loads(file)
    policy = surely_loaded(load, str(file))
    assert torch.equal(policy.second.weight, torch_file(file)["second.weight"])
    assert load.count == 1


def test_weights_in_another_precision_are_those_of_the_file_and_none_need_no_file(tmp_path):
    load = Loads(saved(tmp_path / "weights"), lambda policy: policy.to(torch.bfloat16))
    surely_loaded(load, str(load.file))
    assert load.count == 1
    surely_loaded(torch.nn.Module, "/no/such/file")


@pytest.mark.parametrize("weight", [None, torch.zeros(9, 2)])
def test_weights_that_the_file_lacks_or_has_of_another_shape_are_left_to_chance(tmp_path, weight):
    load = Loads(saved(tmp_path / "weights", second__weight=weight))
    with pytest.raises(ValueError, match=r"LeRobot leaves 1 of 7 weights to chance, .*: second\.weight"):
        surely_loaded(load, str(load.file))


def test_weights_from_elsewhere_are_not_left_to_chance(tmp_path):
    def from_elsewhere(policy: Policy) -> None:
        torch.nn.init.constant_(policy.second.weight, 0.25)

    load = Loads(saved(tmp_path / "weights", second__weight=None), from_elsewhere)
    assert torch.all(surely_loaded(load, str(load.file)).second.weight == 0.25)
    assert load.count == 2


# What a policy remembers comes back as it was, to the last bit.


CPU = torch.device("cpu")


def there_and_back(value: Any) -> Any:
    return unpacked(packed(value) + bytes(5), CPU)


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.1, float("inf"), "Ä", [1, [2.5]], (1, "a"), {"a": (None,), 2: []}, deque([1], 3)]
)
def test_plain_values_and_containers_keep_their_kind(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)
    assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.1),
        torch.tensor([float("nan"), -0.0]),
        torch.tensor([[True, False]]),
        torch.arange(6, dtype=torch.int64).reshape(2, 3),
        torch.full((2, 2), 0.1, dtype=torch.bfloat16),
        torch.empty((0, 4)),
    ],
)
def test_tensors_keep_their_bits(tensor):
    back = there_and_back([tensor])[0]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert packed(back) == packed(tensor)


def test_a_tensor_is_laid_out_as_before_in_memory_of_its_own_and_arrays_come_back_too():
    whole = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (whole[:, 1:], whole.transpose(0, 2), torch.ones(1, 3).expand(2, 3)):
        back = there_and_back(tensor)
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride() or 0 in tensor.stride()
        back += 1
        assert not torch.equal(back, tensor)
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    back = there_and_back({"a": array, "b": torch.ones(2)})
    assert back["a"].dtype == array.dtype
    assert np.array_equal(back["a"], array)
    assert torch.equal(back["b"], torch.ones(2))


def drawn(*seeds: int) -> torch.Tensor:
    size = len(seeds)
    with NoiseOfEntries(seeds):
        first = torch.randn((size, 4))
        parts = [
            first,
            torch.randn(size, 4, dtype=torch.float64),
            torch.randn(size=(size, 4), device="cpu"),
            torch.randn_like(first),
            torch.rand(size, 4),
            torch.rand_like(first),
            torch.normal(0.0, 2.0, (size, 4)),
            torch.normal(mean=1.0, std=0.1, size=(size, 4)),
            torch.normal(first, 1.0),
        ]
        assert parts[1].dtype == torch.float64
    return torch.cat(parts, dim=1)


def test_noise_follows_from_the_seed_of_an_entry_alone_and_leaves_the_generator_of_the_process_alone():
    state = torch.get_rng_state()
    alone = torch.cat([drawn(seed) for seed in (3, 1, 2)])
    assert torch.equal(drawn(3, 1, 2), alone)
    assert torch.equal(drawn(2, 3, 1), alone[[2, 0, 1]])
    assert len(set(alone[0].tolist())) == alone.shape[1]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(3, 2),
        lambda: torch.randn(()),
        lambda: torch.randint(0, 4, (2, 3)),
        lambda: torch.zeros(2, 3).normal_(),
        lambda: torch.multinomial(torch.ones(2, 3), 1),
    ],
)
def test_what_cannot_be_told_by_entries_is_refused(draw):
    with pytest.raises(RuntimeError, match="the policy draws"), NoiseOfEntries([1, 2]):
        draw()


# What a policy remembers is found by a trial, and can be put back.


class Tracker:
    """Remembers in an object that is no module."""

    def __init__(self) -> None:
        self.scale = float("nan")
        self.reset()

    def reset(self) -> None:
        self.trail: list[float] = []


class MemoryPolicy(torch.nn.Module):
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


def found(policy: MemoryPolicy) -> EpisodeMemory:
    memory = EpisodeMemory(policy)
    policy.select_action()
    memory.find(policy.select_action)
    return memory


def in_buffer() -> MemoryPolicy:
    return MemoryPolicy(lambda policy: policy.cell.hidden.add_(1.0), lambda policy: policy.cell.hidden.zero_())


def in_object() -> MemoryPolicy:
    return MemoryPolicy(lambda policy: policy.tracker.trail.append(0.5), lambda policy: policy.tracker.reset())


def in_attribute_that_goes() -> MemoryPolicy:
    return MemoryPolicy(lambda policy: vars(policy).pop("last", None), lambda policy: setattr(policy, "last", "fresh"))


def from_the_second_action_on() -> MemoryPolicy:
    def remember(policy: Any) -> None:
        policy.best, policy.age = (policy.calls if policy.age else None), policy.age + 1

    def forget(policy: Any) -> None:
        policy.best, policy.age = None, 0

    return MemoryPolicy(remember, forget)


def test_queues_and_what_reset_leaves_are_no_memory():
    assert found(MemoryPolicy()).paths == []


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (in_buffer, [("cell", "hidden")]),
        (in_object, [("", "tracker", "trail")]),
        (in_attribute_that_goes, [("", "last")]),
        (from_the_second_action_on, [("", "age"), ("", "best")]),
    ],
)
def test_what_an_action_changes_and_reset_sets_back_is_memory(make, paths):
    assert sorted(found(make()).paths) == sorted([*paths, ("", "_queues")])


def told(policy: Any) -> str:
    """Memory of a policy, as text."""
    return str([policy.cell.hidden, policy.tracker.trail, vars(policy).get("last"), policy._queues])


@pytest.mark.parametrize("make", [in_buffer, in_object, in_attribute_that_goes])
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


def test_a_memory_that_cannot_be_carried_is_refused_by_its_name():
    policy = MemoryPolicy(
        lambda policy: setattr(policy, "noise", torch.Generator()), lambda policy: setattr(policy, "noise", None)
    )
    memory = found(policy)
    policy.select_action()
    with pytest.raises(TypeError, match="_queues, noise: a Generator"):
        memory.kept()
