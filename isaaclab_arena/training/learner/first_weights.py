"""Begins a training with the weights of a checkpoint of this trainer, mjlab or Isaac Lab."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.rsl_rl_checkpoint import actor_state, critic_state, moments_by_name, read_checkpoint
from isaaclab_arena.training.learner.agent import networks_of

_STD, _LOG_STD = "distribution.std_param", "distribution.log_std_param"
_NORMALIZER, _TOLD_OF_DISTRIBUTION = "obs_normalizer.", "distribution."
_KEPT_BY_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
_TAKEN = frozenset(
    {
        *("actor_state_dict", "critic_state_dict", "model_state_dict", "student_state_dict", "optimizer_state_dict"),
        *("obs_norm_state_dict", "critic_obs_norm_state_dict", "privileged_obs_norm_state_dict", "iter", "infos"),
    }
)

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """What training began with.

    Attributes:
        file: The checkpoint.
        iterations: Iterations that it was trained for, None where it does not say.
        taken: What was taken of it.
        begun_anew: What was not, each with the reason.
    """

    file: str
    iterations: int | None
    taken: tuple[str, ...]
    begun_anew: tuple[str, ...]

    def __str__(self) -> str:
        trained = "" if self.iterations is None else f" (iteration {self.iterations})"
        anew = f"; {', '.join(self.begun_anew)}" if self.begun_anew else ""
        return f"training begins with {' and '.join(self.taken)} of {self.file}{trained}{anew}"


def begin_with(algorithm: Any, path: Path) -> FirstWeights:
    """Give an algorithm the weights and the optimiser's state of a checkpoint, and return what was taken.

    The actor has to fit. A critic that does not begins anew, and so does the optimiser, unless it is Adam as the
    checkpoint's and both networks fit. The learning rate stays that which is asked for.

    Args:
        algorithm: rsl_rl's algorithm, as it was built.
        path: A checkpoint of rsl_rl, from version 2 on.

    Raises:
        ConfigError: If it is no such checkpoint, or the actor does not fit; sizes are named with both numbers.
    """
    checkpoint = read_checkpoint(path)
    networks = networks_of(algorithm)
    taken, anew = ["the actor"], []
    learned = {**algorithm.save(), "actor_state_dict": _actor(checkpoint, networks["actor"], path)}
    # The policy that training begins with is this one.
    learned.pop("reference_state_dict", None)
    if "critic" in networks:
        critic = _critic(checkpoint, networks["critic"], path)
        if isinstance(critic, str):
            anew.append(f"the critic begins anew: {critic}")
        else:
            taken.append("the critic")
            learned["critic_state_dict"] = critic
    moments = None if anew else _moments(algorithm.optimizer, networks, moments_by_name(checkpoint))
    if moments is None:
        anew.append("the optimiser begins anew")
    else:
        taken.append("the optimiser")
        learned["optimizer_state_dict"] = {**learned["optimizer_state_dict"], "state": moments}
    algorithm.load(learned, None, strict=True)
    others = sorted(str(key) for key in checkpoint if key not in _TAKEN)
    anew += [f"not taken: {', '.join(others)}"] if others else []
    iterations = checkpoint["iter"] if isinstance(checkpoint.get("iter"), int) else None
    return FirstWeights(file=str(path), iterations=iterations, taken=tuple(taken), begun_anew=tuple(anew))


def _actor(checkpoint: Mapping[str, Any], network: nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint's actor as a network has them."""
    problems, actor = _fitted(actor_state(checkpoint, path), network, "actor")
    if problems:
        raise ConfigError([Problem(f"its actor {problem}", file=str(path)) for problem in problems])
    return actor


def _critic(checkpoint: Mapping[str, Any], network: nn.Module, path: Path) -> dict[str, torch.Tensor] | str:
    """Return the tensors of a checkpoint's critic as a network has them, or why they are not taken."""
    found = critic_state(checkpoint, path)
    if found is None:
        return "the file holds none"
    problems, critic = _fitted(found, network, "critic")
    return f"its critic {' and '.join(problems)}" if problems else critic


def _fitted(state: State, network: nn.Module, role: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Return why a network's tensors do not fit another one, and the tensors as that one has them."""
    wanted = network.state_dict()
    fitted = dict(state)
    if _STD in fitted and _LOG_STD in wanted:
        fitted[_LOG_STD] = fitted.pop(_STD).log()
    elif _LOG_STD in fitted and _STD in wanted:
        fitted[_STD] = fitted.pop(_LOG_STD).exp()
    return list(_misfits(fitted, wanted, role)), fitted


def _misfits(state: State, wanted: State, role: str) -> Iterator[str]:
    has, wants = (any(name.startswith(_NORMALIZER) for name in each) for each in (state, wanted))
    if has != wants:
        way_out = f"use agent.{role}.obs_normalization={str(has).lower()}"
        yield f"has {'a' if has else 'no'} normaliser of observations; {way_out}"
    told = list(_misfits_of_layers(_layers(state), _layers(wanted), role))
    yield from told
    # What layers are too many or too few has been told, and tensors of theirs would only repeat it.
    left_out = (_NORMALIZER, "mlp.", _TOLD_OF_DISTRIBUTION) if told else (_NORMALIZER,)
    shapes, needed = (
        {name: tuple(tensor.shape) for name, tensor in each.items() if not name.startswith(left_out)}
        for each in (state, wanted)
    )
    for name in sorted({*shapes, *needed}):
        if shapes.get(name) != needed.get(name):
            found = f"has '{name}' of {_in_words(shapes[name])}" if name in shapes else f"has no '{name}'"
            yield f"{found}, and {_in_words(needed[name]) if name in needed else 'none'} is needed"
    if not told and any(
        state[name].shape != tensor.shape for name, tensor in wanted.items() if name in state and name not in needed
    ):
        yield "has a normaliser for another number of observations"
    if not all(tensor.isfinite().all() for tensor in state.values() if tensor.is_floating_point()):
        yield "holds NaN or infinity"


def _misfits_of_layers(layers: list[int], wanted: list[int], role: str) -> Iterator[str]:
    if not layers or not wanted:
        return
    if layers[0] != wanted[0]:
        yield f"sees {layers[0]} numbers, and {wanted[0]} are shown here"
    if layers[1:-1] != wanted[1:-1]:
        yield (
            f"has hidden layers of {layers[1:-1]}, and those here are {wanted[1:-1]}; "
            f"use agent.{role}.hidden_dims={layers[1:-1]}"
        )
    if layers[-1] != wanted[-1]:
        yield f"gives {layers[-1]} numbers, and {wanted[-1]} are needed here"


def _layers(state: State) -> list[int]:
    """Return the sizes of a perceptron, from what it sees to what it gives; nothing for a network with more to it."""
    if any(not name.startswith((_NORMALIZER, "mlp.", _TOLD_OF_DISTRIBUTION)) for name in state):
        return []
    weights = {name: tensor for name, tensor in state.items() if name.startswith("mlp.") and name.endswith(".weight")}
    if not weights or any(tensor.ndim != 2 or not name.split(".")[1].isdecimal() for name, tensor in weights.items()):
        return []
    ordered = [weights[name] for name in sorted(weights, key=lambda name: int(name.split(".")[1]))]
    return [ordered[0].shape[1], *(weight.shape[0] for weight in ordered)]


def _in_words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _moments(
    optimizer: torch.optim.Optimizer,
    networks: Mapping[str, nn.Module],
    found: Mapping[tuple[str, str], Mapping[str, Any]],
) -> dict[int, dict[str, torch.Tensor]] | None:
    """Return what Adam keeps of each weight by its place in an optimiser, None where that does not fit."""
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return None
    names = {
        id(parameter): (role, name)
        for role, network in networks.items()
        for name, parameter in network.named_parameters()
    }
    moments = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, parameter in enumerate(parameters):
        kept = found.get(names.get(id(parameter), ("", "")))
        if kept is None or kept.keys() != _KEPT_BY_ADAM or not _are_of(parameter, kept):
            return None
        moments[place] = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in kept.items()}
    return moments


def _are_of(parameter: nn.Parameter, kept: Mapping[str, Any]) -> bool:
    return all(
        torch.as_tensor(value).shape == (() if name == "step" else parameter.shape)
        and bool(torch.as_tensor(value).isfinite().all())
        for name, value in kept.items()
    )
