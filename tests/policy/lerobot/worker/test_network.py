"""A policy in the worker is loaded with what it needs of LeRobot, and plays what LeRobot's own loop would play."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isaaclab_arena.policy.lerobot_worker import (
    NOTHING,
    EpisodeMemory,
    Network,
    NoiseOfEntries,
    loaded,
    packed,
    surely_loaded,
    unpacked,
)
from tests.policy.lerobot.policies import PICTURE, REMEMBERING, SITE, STATE, saved

SETTINGS = {"threads": torch.get_num_threads(), "deterministic": False}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch) -> Iterator[None]:
    """What stands in for LeRobot, for this test alone."""
    monkeypatch.syspath_prepend(str(SITE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


def actions(directory: Path) -> np.ndarray:
    """Return the three actions of a query about the last two observations of one entry."""
    shown = {PICTURE: np.zeros((1, 2, 6, 8, 3), np.uint8), STATE: np.array([[[1.0] * 6, [3.0] * 6]], np.float32)}
    return Network(str(directory), "cpu", SETTINGS).actions(shown, ["go"], [1])[0]


def test_the_first_action_is_the_one_after_the_last_observation(tmp_path):
    # The fake's processors double states and halve actions; the last observation counts twice, and a letter is 1.
    base = 2 * 1 + 2 * (2 * 3) + len("go")
    expected = np.tanh((base + np.add.outer(range(3), range(5))) / 10) / 2
    assert np.allclose(actions(saved(tmp_path, n_obs_steps=2)), expected, atol=1e-6)


@pytest.mark.parametrize(("step", "further"), [("unnormalizer_processor", [0, 0]), ("delta_action_processor", [1, 2])])
def test_a_saved_step_that_may_remember_is_asked_about_one_action_after_the_other(tmp_path, step, further):
    plain = actions(saved(tmp_path / "plain", n_obs_steps=2))
    directory = saved(tmp_path / "stepped", n_obs_steps=2)
    (directory / "policy_postprocessor.json").write_text(json.dumps({"steps": [{"registry_name": step}]}))
    stepped = actions(directory) - plain
    assert np.allclose(stepped[1:] - stepped[0], np.array(further)[:, None], atol=1e-6)


def state_of(episode: int, step: int) -> np.ndarray:
    return np.full((1, 1, 6), episode + 0.1 * step, np.float32)


def alone(directory: Path, episode: int) -> list[np.ndarray]:
    """Return the actions of LeRobot's own loop in an episode of five steps."""
    policy, before, after = loaded(str(directory), "cpu")
    torch.manual_seed(10 * episode ^ 1)
    policy.reset()
    actions = []
    for step in range(5):
        torch.manual_seed(10 * episode + step)
        shown = {STATE: torch.from_numpy(state_of(episode, step)[:, 0]), PICTURE: torch.zeros(1, 3, 6, 8)}
        with torch.inference_mode():
            actions.append(after(policy.select_action(before({**shown, "task": ["go"]}))).numpy())
    return actions


@pytest.mark.parametrize("kind", REMEMBERING)
def test_episodes_of_a_policy_that_remembers_take_turns_and_each_is_that_of_lerobots_own_loop(tmp_path, kind):
    directory = saved(tmp_path, kind, **REMEMBERING[kind])
    network, memories, actions = Network(str(directory), "cpu", SETTINGS), [NOTHING, NOTHING], ([], [])
    description = network.description()
    assert (description["num_actions"], description["takes_batches"]) == (1, False)
    for step in range(5):
        for episode in (0, 1):
            shown = {PICTURE: np.zeros((1, 1, 6, 8, 3), np.uint8), STATE: state_of(episode, step)}
            action, memories[episode] = network.next_action(shown, ["go"], [10 * episode + step], memories[episode])
            assert len(memories[episode]) <= description["memory_bytes"]
            actions[episode].append(action[:, 0])
    for episode in (0, 1):
        assert np.array_equal(actions[episode], alone(directory, episode))
    assert not np.array_equal(actions[0], actions[1])


@pytest.mark.parametrize("kind", ["act", "diffusion", "tdmpc"])
def test_a_policy_that_keeps_observations_and_actions_alone_remembers_nothing(tmp_path, kind):
    description = Network(str(saved(tmp_path, kind, n_obs_steps=2)), "cpu", SETTINGS).description()
    assert (description["num_actions"], description["memory_bytes"]) == (3, 0)


@pytest.mark.parametrize("misbehaviour", [None, "tell size"])
def test_instructions_of_several_lengths_are_asked_about_in_calls_of_one_size(tmp_path, misbehaviour):
    directory = saved(tmp_path, "diffusion", misbehaviour=misbehaviour)
    (directory / "policy_preprocessor.json").write_text(
        '{"steps": [{"registry_name": "device_processor"}, {"registry_name": "tokenizer_processor"}]}'
    )
    shown = {PICTURE: np.zeros((3, 1, 6, 8, 3), np.uint8), STATE: np.arange(18, dtype=np.float32).reshape(3, 1, 6)}
    network = Network(str(directory), "cpu", SETTINGS)
    network.description()
    alike = network.actions(shown, ["lift", "drop", "hold"], [1, 2, 3])
    mixed = network.actions(shown, ["lift", "put it down", "hold"], [1, 2, 3])
    assert np.array_equal(mixed[[0, 2]], alike[[0, 2]])
    if misbehaviour is None:
        assert not np.array_equal(mixed[1], alike[1])
    else:
        assert np.all(mixed == 3)


# Weights, values, noise and memory of a policy of LeRobot in its own interpreter.


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

    def __init__(
        self, file: Path, prefix: str = "", change: Callable[[Policy], object] = lambda _: None, **changes: Any
    ) -> None:
        torch.manual_seed(7)
        weights = {name: value for name, value in Policy().state_dict().items() if not name.startswith("tied")}
        weights |= {name.replace("__", "."): value for name, value in changes.items()}
        save_file({prefix + name: value for name, value in weights.items() if value is not None}, file)
        self.file, self.change, self.count = str(file), change, 0

    def saved(self) -> dict[str, torch.Tensor]:
        return {name.removeprefix("model."): value for name, value in load_file(self.file).items()}

    def __call__(self) -> Policy:
        self.count += 1
        policy = Policy()
        own = policy.state_dict()
        saved = {name: value for name, value in self.saved().items() if own[name].shape == value.shape}
        policy.load_state_dict(saved, strict=False)
        self.change(policy)
        return policy


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_policy_with_all_weights_of_its_file_is_loaded_once_in_whichever_precision(tmp_path, prefix):
    load = Loads(tmp_path / "weights", prefix)
    assert torch.equal(surely_loaded(load, load.file).second.weight, load.saved()["second.weight"])
    assert load.count == 1
    load = Loads(tmp_path / "weights", prefix, lambda policy: policy.to(torch.bfloat16))
    surely_loaded(load, load.file)
    assert load.count == 1
    surely_loaded(torch.nn.Module, "/no/such/file")


@pytest.mark.parametrize("weight", [None, torch.zeros(9, 2)])
def test_weights_that_the_file_lacks_or_has_of_another_shape_are_left_to_chance(tmp_path, weight):
    load = Loads(tmp_path / "weights", second__weight=weight)
    with pytest.raises(ValueError, match=r"1 of 7.*: second\.weight"):
        surely_loaded(load, load.file)


def test_weights_from_elsewhere_are_not_left_to_chance(tmp_path):
    def from_elsewhere(policy: Policy) -> None:
        torch.nn.init.constant_(policy.second.weight, 0.25)

    load = Loads(tmp_path / "weights", change=from_elsewhere, second__weight=None)
    assert torch.all(surely_loaded(load, load.file).second.weight == 0.25)
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


WHOLE = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.1),
        torch.tensor([float("nan"), -0.0]),
        torch.tensor([[True, False]]),
        torch.arange(6, dtype=torch.int64).reshape(2, 3),
        torch.full((2, 2), 0.1, dtype=torch.bfloat16),
        torch.empty((0, 4)),
        WHOLE[:, 1:],
        WHOLE.transpose(0, 2),
        torch.ones(1, 3).expand(2, 3),
    ],
)
def test_tensors_keep_their_bits_and_lie_as_before_in_memory_of_their_own(tensor):
    back = there_and_back([tensor])[0]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert packed(back.contiguous()) == packed(tensor.contiguous())
    assert back.stride() == tensor.stride() or 0 in tensor.stride()
    back.fill_(1)


def test_arrays_come_back_too():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    back = there_and_back({"a": array})["a"]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


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


class Tracker:
    """Remembers in an object that is no module."""

    def __init__(self) -> None:
        self.scale, self.trail = float("nan"), []


def found(policy: MemoryPolicy) -> EpisodeMemory:
    memory = EpisodeMemory(policy)
    policy.select_action()
    memory.find(policy.select_action)
    return memory


def later(policy: Any) -> None:
    policy.best, policy.age = (policy.calls if policy.age else None), policy.age + 1


def put(**values: Any) -> Callable[[Any], object]:
    return lambda policy: vars(policy).update(values)


# What an action changes, what a reset sets back, and where the memory is found.
MEMORIES: dict[str, tuple[Callable[[Any], object], Callable[[Any], object], list[tuple[str, ...]]]] = {
    "buffer": (
        lambda policy: policy.cell.hidden.add_(1.0),
        lambda policy: policy.cell.hidden.zero_(),
        [("cell", "hidden")],
    ),
    "object": (
        lambda policy: policy.tracker.trail.append(0.5),
        lambda policy: policy.tracker.trail.clear(),
        [("", "tracker", "trail")],
    ),
    "new attribute": (
        lambda policy: put(last=torch.full((1,), float(policy.calls)))(policy),
        lambda policy: vars(policy).pop("last", None),
        [("", "last")],
    ),
    "attribute that goes": (lambda policy: vars(policy).pop("last", None), put(last="fresh"), [("", "last")]),
    "from the second action on": (later, put(best=None, age=0), [("", "age"), ("", "best")]),
}


def test_queues_and_what_reset_leaves_are_no_memory():
    assert found(MemoryPolicy()).paths == []


@pytest.mark.parametrize(("remember", "forget", "paths"), MEMORIES.values(), ids=MEMORIES)
def test_what_an_action_changes_and_reset_sets_back_is_memory_and_episodes_take_turns(remember, forget, paths):
    policy: Any = MemoryPolicy(remember, forget)
    memory = found(policy)
    assert sorted(memory.paths) == sorted([*paths, ("", "_queues")])

    def told() -> str:
        held = vars(policy)
        names = ("last", "best", "age", "_queues")
        return str([policy.cell.hidden, policy.tracker.trail, *(held.get(name) for name in names)])

    memory.recall(NOTHING, CPU)
    fresh = told()
    policy.select_action()
    first, words = memory.kept(), told()
    memory.recall(np.zeros(9, np.uint8), CPU)
    assert told() == fresh
    policy.select_action()
    policy.select_action()
    assert told() != words
    # What is kept is not changed by what follows.
    for _ in range(2):
        memory.recall(np.pad(first, (0, 4)), CPU)
        assert told() == words
        policy.select_action()


def test_a_memory_that_cannot_be_carried_is_refused_by_its_name():
    policy = MemoryPolicy(put(noise=torch.Generator()), put(noise=None))
    memory = found(policy)
    policy.select_action()
    with pytest.raises(TypeError, match="noise: a Generator"):
        memory.kept()
