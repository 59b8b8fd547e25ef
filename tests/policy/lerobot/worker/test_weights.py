"""A policy is refused to which LeRobot has left weights by chance, and no other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from isaaclab_arena.policy.lerobot_worker import surely_loaded


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


def test_weights_in_another_precision_are_those_of_the_file(tmp_path):
    load = Loads(saved(tmp_path / "weights"), lambda policy: policy.to(torch.bfloat16))
    surely_loaded(load, str(load.file))
    assert load.count == 1


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


def test_a_policy_without_weights_needs_no_file():
    surely_loaded(torch.nn.Module, "/no/such/file")
