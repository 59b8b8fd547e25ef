"""The networks of policies: their interface, rsl_rl's actors, and the scaling of their output to actions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

import torch

from isaaclab_arena.interfaces.specs import ArraySpec

Memory: TypeAlias = tuple[torch.Tensor, ...]
"""The memory of a network, empty if it has none. Shape of each part: (num_layers, batch, hidden_size)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A network's output for a batch of observations."""

    mean: torch.Tensor  # deterministic output, shape (batch, num_outputs)
    memory: Memory  # the memory after this observation
    # Standard deviation of each output if it is Gaussian. Shape: (batch, num_outputs).
    std: torch.Tensor | None = None


class PolicyNetwork(ABC):
    """A network without state: its memory is an argument and a result."""

    # Numbers per batch entry of the input and of the output; None if only a trial can tell.
    num_inputs: int | None = None
    num_outputs: int | None = None
    knows_std: bool = False  # True if its answers have a standard deviation
    # The names that its file gives to the outputs, and the observations that its file lists as input, in order.
    stated_actions: tuple[str, ...] | None = None
    stated_terms: tuple[str, ...] | None = None

    @abstractmethod
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for observations (batch, num_inputs), float32; the memory is not changed."""

    def new_memory(self, batch_size: int) -> Memory:
        """Return the memory of batch entries before their first observation."""
        del batch_size
        return ()

    def close(self) -> None:
        """Announce that no request will follow now; later requests are allowed."""


def forgotten(memory: Memory, entries: torch.Tensor) -> Memory:
    """Return a memory without the history of some batch entries, of shape (n,), int64; `memory` is not changed."""
    return tuple(part.index_fill(1, entries.to(part.device), 0.0) for part in memory)


def remembered(before: Memory, after: Memory, entries: Sequence[int]) -> Memory:
    """Return `after` for the batch entries that saw one more observation, and `before` for the others."""
    if not after or len(entries) == after[0].shape[1]:
        return after
    places = torch.tensor(list(entries), dtype=torch.int64, device=after[0].device)
    return tuple(old.index_copy(1, places, new[:, places]) for old, new in zip(before, after, strict=True))


# Turn the output of an rsl_rl network into actions, by the distribution of its training.
# The operations are those of rsl_rl, in its order, so that the numbers are the same to the last bit.

MIN_STD = 1e-6


class ActionDistribution(ABC):
    """Makes actions from the output of a network's last layer."""

    # Numbers of the last layer for each action.
    features_per_action: ClassVar[int] = 1
    knows_std: bool = False

    @abstractmethod
    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the mean action (batch, num_actions) of features (batch, num_actions) or (batch, 2, num_actions)."""

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return the standard deviation, None if the distribution has none. Shape: (batch, num_actions)."""
        del features
        return None


@dataclass(frozen=True, kw_only=True)
class StdRange:
    """The encoding of a standard deviation, and its bounds."""

    is_log: bool = False  # True if the numbers are logarithms of standard deviations
    low: float = MIN_STD  # never below `MIN_STD`
    high: float = 1e6

    def of(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the standard deviations that numbers encode, in their shape."""
        low, high = max(self.low, MIN_STD), self.high
        if self.is_log:
            return torch.exp(numbers.clamp(math.log(low), math.log(high)))
        return numbers.clamp(low, high)


class Gaussian(ActionDistribution):
    """The last layer is the mean; the standard deviation does not depend on the observation."""

    def __init__(self, numbers: torch.Tensor | None, std_range: StdRange) -> None:
        # ``numbers`` has shape (num_actions,), None for a distribution without a standard deviation.
        self._std = None if numbers is None else std_range.of(numbers)
        self.knows_std = numbers is not None

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return features

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return the learned standard deviation for every batch entry."""
        return None if self._std is None else self._std.expand_as(features)


class HeteroscedasticGaussian(ActionDistribution):
    """The last layer is the mean, then the encoded standard deviation."""

    features_per_action: ClassVar[int] = 2
    knows_std = True

    def __init__(self, std_range: StdRange) -> None:
        self._std_range = std_range

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the first half."""
        return features[..., 0, :]

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return the standard deviation that the second half encodes."""
        return self._std_range.of(features[..., 1, :])


class Beta(ActionDistribution):
    """The last layer is the two parameters of a Beta distribution over the interval from `low` to `high`."""

    features_per_action: ClassVar[int] = 2

    def __init__(self, low: float, high: float) -> None:
        self._offset = low
        self._scale = high - low

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the mean of the distribution, within the interval."""
        # As in rsl_rl, both parameters are above 1, so that the distribution has one peak.
        raw_alpha, raw_beta = torch.unbind(features, dim=-2)
        alpha = torch.nn.functional.softplus(raw_alpha) + 1.0
        beta = torch.nn.functional.softplus(raw_beta) + 1.0
        return (alpha / (alpha + beta)) * self._scale + self._offset


# The actor of rsl_rl's checkpoints: a normalised observation through a multilayer perceptron.
# The operations are those of rsl_rl's inference policy, in its order. So a batch entry's action is the same to the last
# bit for a batch of the same size.

ACTIVATIONS = {
    "elu": torch.nn.functional.elu,
    "selu": torch.selu,
    "relu": torch.relu,
    "crelu": torch.celu,
    "lrelu": torch.nn.functional.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "swish": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "identity": torch.clone,
}
"""The activation functions by rsl_rl's names."""

NORMALIZER_EPSILON = 1e-2
"""Added to every standard deviation of an observation; rsl_rl's number."""


@dataclass(frozen=True, kw_only=True)
class Normalizer:
    """The mean and the standard deviation of the observations in training, both of shape (1, num_inputs)."""

    mean: torch.Tensor
    std: torch.Tensor

    def normalized(self, observation: torch.Tensor) -> torch.Tensor:
        """Return observations of about zero mean and unit spread. Shape: (batch, num_inputs)."""
        return (observation - self.mean) / (self.std + NORMALIZER_EPSILON)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One linear layer: weight of shape (num_outputs, num_inputs), bias of shape (num_outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor


class Actor(PolicyNetwork):
    """A multilayer perceptron after rsl_rl's normaliser (None for none) and before one of its distributions."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        activation: str,
        normalizer: Normalizer | None,
        distribution: ActionDistribution,
    ) -> None:
        # From the observation to the features; the last layer has no activation.
        self._layers = tuple(layers)
        self._activation = ACTIVATIONS[activation]
        self._normalizer = normalizer
        self._distribution = distribution
        self.num_inputs = self._layers[0].weight.shape[1]
        self.num_outputs = self._layers[-1].weight.shape[0] // distribution.features_per_action
        self.knows_std = distribution.knows_std

    @torch.no_grad()
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the actions for a batch; see `PolicyNetwork.answer`."""
        return self.acted(self.normalized(observation), memory)

    def normalized(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shape: (batch, num_inputs)."""
        return observation if self._normalizer is None else self._normalizer.normalized(observation)

    def acted(self, latent: torch.Tensor, memory: Memory) -> Answer:
        """Return the answer to a first layer's input of shape (batch, size); `memory` is passed on."""
        features = latent
        for layer in self._layers[:-1]:
            features = self._activation(torch.nn.functional.linear(features, layer.weight, layer.bias))
        last = self._layers[-1]
        features = torch.nn.functional.linear(features, last.weight, last.bias)
        if self._distribution.features_per_action > 1:
            features = features.unflatten(-1, (self._distribution.features_per_action, self.num_outputs or 0))
        return Answer(mean=self._distribution.mean(features), memory=memory, std=self._distribution.std(features))


class RecurrentActor(Actor):
    """An actor with a memory of each batch entry; the output of its LSTM or GRU is the first layer's input."""

    def __init__(self, rnn: torch.nn.LSTM | torch.nn.GRU, layers: Sequence[Layer], **parts: Any) -> None:
        super().__init__(layers, **parts)
        self._rnn = rnn
        self.num_inputs = rnn.input_size

    def new_memory(self, batch_size: int) -> Memory:
        """Return zeros: one part for a GRU; hidden and cell state for an LSTM."""
        rnn = self._rnn
        device = next(rnn.parameters()).device
        parts = 2 if isinstance(rnn, torch.nn.LSTM) else 1
        return tuple(torch.zeros(rnn.num_layers, batch_size, rnn.hidden_size, device=device) for _ in range(parts))

    @torch.no_grad()
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the actions for a batch and its new memory; see `PolicyNetwork.answer`."""
        sequence = self.normalized(observation).unsqueeze(0)
        if isinstance(self._rnn, torch.nn.LSTM):
            hidden, cell = memory
            latent, memory = self._rnn(sequence, (hidden, cell))
        else:
            latent, hidden = self._rnn(sequence, memory[0])
            memory = (hidden,)
        return self.acted(latent.squeeze(0), memory)


class ActionScaling(StrEnum):
    """The mapping from a network's output to an action."""

    # Unchanged, as in Isaac Lab and mjlab, where environments scale.
    AS_IS = "as_is"
    # Map -1 and 1 to the environment's lowest and highest action, and clip beyond; numbers without bounds stay.
    WITHIN_BOUNDS = "within_bounds"


class ActionScaler:
    """Turns a network's output into actions of one environment."""

    def __init__(
        self, spec: ArraySpec, scaling: ActionScaling, *, clip: float | None = None, device: torch.device
    ) -> None:
        # rsl_rl's ``clip_actions``: limit of the absolute output, None for no limit.
        self._clip = clip
        self._scales = scaling is ActionScaling.WITHIN_BOUNDS
        low, high = (
            torch.full(spec.shape, without, device=device)
            if bounds is None
            else torch.as_tensor(bounds, dtype=torch.float32, device=device)
            for bounds, without in ((spec.low, -torch.inf), (spec.high, torch.inf))
        )
        self._bounded = torch.isfinite(low) & torch.isfinite(high)
        self._middle, self._half_range = (low + high) / 2, (high - low) / 2

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return the action for a network's output. Shapes: (num_envs, action_dim)."""
        if self._clip is not None:
            output = output.clamp(-self._clip, self._clip)
        if not self._scales:
            return output
        within = self._middle + self._half_range * output.clamp(-1.0, 1.0)
        return torch.where(self._bounded, within, output)

    def output_of(self, action: torch.Tensor) -> torch.Tensor:
        """Return the output for an action (..., action_dim), clipped to [-1, 1] if actions have bounds."""
        if not self._scales:
            return action
        share = (action - self._middle) / self._half_range.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self._bounded, share.clamp(-1.0, 1.0), action)
