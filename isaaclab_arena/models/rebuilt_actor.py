"""Actors rebuilt from the tensors of rsl_rl's networks.

Sizes come from the tensors; what they do not tell, the activation and the distribution, from the agent's configuration.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from isaaclab_arena.errors import ConfigError, did_you_mean, first_line
from isaaclab_arena.models.action_distribution import (
    ActionDistribution,
    Beta,
    Gaussian,
    HeteroscedasticGaussian,
    StdRange,
)
from isaaclab_arena.models.actor import ACTIVATIONS, Actor, Layer, Normalizer
from isaaclab_arena.models.agent_settings import NetworkSettings
from isaaclab_arena.models.recurrent_actor import RecurrentActor

State: TypeAlias = dict[str, torch.Tensor]

CLASSES = ("MLPModel", "RNNModel", "ActorCritic", "ActorCriticRecurrent", "StudentTeacher", "StudentTeacherRecurrent")
"""Classes of rsl_rl that are rebuilt here; the last four are those of versions 2 and 3."""

EXPORT = (
    "if it takes one vector and gives one, export it (export_policy_to_onnx or export_policy_to_jit of rsl_rl's "
    "runner) and name that file; otherwise write a policy of your own"
)
"""The way out for networks of other kinds."""

_LAYER = re.compile(r"mlp\.(\d+)\.weight")
_RNN_GATES: dict[int, type[torch.nn.LSTM] | type[torch.nn.GRU]] = {4: torch.nn.LSTM, 3: torch.nn.GRU}


def rebuilt_actor(tensors: Mapping[str, torch.Tensor], network: NetworkSettings) -> Actor:
    """Return the actor that is made of some tensors.

    Args:
        tensors: Under the names of rsl_rl 5, float32, on the device where it is to run.
        network: What the tensors do not tell.

    Raises:
        ConfigError: If there is more or less among them than belongs to a network of rsl_rl.
    """
    # Each part is taken out; what is left over in the end is not known.
    state = dict(tensors)
    if network.activation not in ACTIVATIONS:
        raise ConfigError(
            f"there is no activation '{network.activation}'{did_you_mean(network.activation, ACTIVATIONS)}"
        )
    layers = _take_layers(state)
    rnn = _take_rnn(state)
    normalizer = _take_normalizer(state)
    distribution = _take_distribution(state, network.distribution)
    if state:
        names = ", ".join(sorted(state)[:5])
        raise ConfigError(f"has parts that are not known here ({names}), so it is no network of {CLASSES[0]}; {EXPORT}")
    if layers[-1].weight.shape[0] % distribution.features_per_action:
        raise ConfigError(
            f"gives {layers[-1].weight.shape[0]} numbers, which cannot be two for each action, as "
            f"{network.distribution.get('class_name')} needs; its configuration is of another network"
        )
    shared: dict[str, Any] = {
        "activation": network.activation,
        "normalizer": normalizer,
        "distribution": distribution,
    }
    actor = Actor(layers, **shared) if rnn is None else RecurrentActor(rnn, layers, **shared)
    _check_sizes(layers, normalizer, rnn, actor.num_inputs or 0)
    return actor


def _take_layers(state: State) -> list[Layer]:
    indices = sorted(int(match[1]) for name in state if (match := _LAYER.fullmatch(name)))
    # Between two linear layers stands an activation, which has no tensors but is counted.
    if not indices or indices != list(range(0, 2 * len(indices), 2)):
        raise ConfigError(f"has no multilayer perceptron of rsl_rl: its linear layers are {indices}; {EXPORT}")
    layers = []
    for index in indices:
        weight, bias = state.pop(f"mlp.{index}.weight"), state.pop(f"mlp.{index}.bias", None)
        if weight.dim() != 2 or bias is None or bias.shape != weight.shape[:1]:
            raise ConfigError(f"has a layer mlp.{index} that is not linear with a bias; {EXPORT}")
        layers.append(Layer(weight=weight, bias=bias))
    return layers


def _take_rnn(state: State) -> torch.nn.LSTM | torch.nn.GRU | None:
    prefix = "rnn.rnn."
    names = [name for name in state if name.startswith(prefix)]
    if not names:
        return None
    tensors = {name.removeprefix(prefix): state.pop(name) for name in names}
    hidden, inputs = tensors.get("weight_hh_l0"), tensors.get("weight_ih_l0")
    if hidden is None or inputs is None or hidden.shape[0] // hidden.shape[1] not in _RNN_GATES:
        raise ConfigError(f"has a recurrent part that is neither an LSTM nor a GRU; {EXPORT}")
    kind = _RNN_GATES[hidden.shape[0] // hidden.shape[1]]
    num_layers = sum(name.startswith("weight_hh_l") for name in tensors)
    sizes = {"input_size": inputs.shape[1], "hidden_size": hidden.shape[1], "num_layers": num_layers}
    # Made without drawing weights: nothing here may use the process-wide generator.
    rnn = kind(**sizes, device="meta")
    try:
        rnn.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            f"has an {kind.__name__} that is not one of rsl_rl's: {first_line(error)}; {EXPORT}"
        ) from error
    rnn.flatten_parameters()
    return rnn.requires_grad_(requires_grad=False).eval()


def _take_normalizer(state: State) -> Normalizer | None:
    prefix = "obs_normalizer."
    tensors = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
    if not tensors:
        return None
    mean, std = tensors.get(f"{prefix}_mean"), tensors.get(f"{prefix}_std")
    if mean is None or std is None:
        raise ConfigError(f"has an observation normaliser that is not rsl_rl's EmpiricalNormalization; {EXPORT}")
    return Normalizer(mean=mean.reshape(1, -1), std=std.reshape(1, -1))


def _take_distribution(state: State, options: Mapping[str, Any]) -> ActionDistribution:
    std, log_std = state.pop("distribution.std_param", None), state.pop("distribution.log_std_param", None)
    name = str(options.get("class_name") or "GaussianDistribution").replace(":", ".").rpartition(".")[2]
    if name == "BetaDistribution":
        return Beta(*_interval(options, "action_range", (-1.0, 1.0)))
    low, high = _interval(options, "std_range", (1e-6, 1e6))
    if name == "GaussianDistribution":
        numbers = std if log_std is None else log_std
        return Gaussian(numbers, StdRange(is_log=log_std is not None, low=low, high=high))
    if name == "HeteroscedasticGaussianDistribution":
        return HeteroscedasticGaussian(StdRange(is_log=options.get("std_type") == "log", low=low, high=high))
    known = "GaussianDistribution, HeteroscedasticGaussianDistribution, BetaDistribution"
    raise ConfigError(f"has the distribution '{name}'; known are {known}; {EXPORT}")


def _interval(options: Mapping[str, Any], key: str, default: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = options.get(key) or default
        return float(low), float(high)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"has a distribution whose {key} is no pair of numbers: {options[key]!r}") from error


def _check_sizes(
    layers: list[Layer], normalizer: Normalizer | None, rnn: torch.nn.LSTM | torch.nn.GRU | None, num_inputs: int
) -> None:
    sizes = [layer.weight.shape[0] for layer in layers]
    first = [] if rnn is None else [(rnn.hidden_size, layers[0].weight.shape[1])]
    joints = [*first, *((size, layer.weight.shape[1]) for size, layer in zip(sizes, layers[1:], strict=False))]
    if normalizer is not None:
        joints.append((normalizer.mean.shape[1], num_inputs))
        joints.append((normalizer.std.shape[1], num_inputs))
    wrong = [f"{given} numbers meet {taken}" for given, taken in joints if given != taken]
    if wrong:
        raise ConfigError(f"has parts whose sizes do not fit: {', '.join(wrong)}; the file is damaged or mixed up")
