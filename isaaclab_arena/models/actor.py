"""The actors of rsl_rl's checkpoints, with and without memory, and the distributions of their actions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from isaaclab_arena.models.network import Answer, Memory, PolicyNetwork

# Turn the output of an rsl_rl network into actions, by the distribution that it was trained with.
#
# The operations are those of rsl_rl, in its order, so that the numbers are the same to the last bit.

MIN_STD = 1e-6


class ActionDistribution(ABC):
    """Makes actions of what the last layer of a network gives.

    Attributes:
        features_per_action: Numbers that the last layer gives for each action.
        knows_std: Whether there is a standard deviation.
    """

    features_per_action: ClassVar[int] = 1
    knows_std: bool = False

    @abstractmethod
    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the action that is meant.

        Args:
            features: Shape: (batch, num_actions), or (batch, 2, num_actions) with two features per action.

        Returns:
            Shape: (batch, num_actions).
        """

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return the standard deviation, None where there is none. Shape: (batch, num_actions)."""
        del features
        return None


@dataclass(frozen=True, kw_only=True)
class StdRange:
    """How a standard deviation is written, and between what bounds it is kept.

    Attributes:
        is_log: Whether numbers are its logarithm.
        low: Smallest standard deviation; never below 1e-6.
        high: Largest one.
    """

    is_log: bool = False
    low: float = MIN_STD
    high: float = 1e6

    def of(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation that numbers stand for, in their shape."""
        low, high = max(self.low, MIN_STD), self.high
        if self.is_log:
            return torch.exp(numbers.clamp(math.log(low), math.log(high)))
        return numbers.clamp(low, high)


class Gaussian(ActionDistribution):
    """The last layer is the mean; the standard deviation is the same whatever is observed.

    Args:
        numbers: The learned standard deviation or its logarithm, None where there is none. Shape: (num_actions,).
        std_range: What they mean.
    """

    def __init__(self, numbers: torch.Tensor | None, std_range: StdRange) -> None:
        self._std = None if numbers is None else std_range.of(numbers)
        self.knows_std = numbers is not None

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return features

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return the learned standard deviation for every batch entry."""
        return None if self._std is None else self._std.expand_as(features)


class HeteroscedasticGaussian(ActionDistribution):
    """The last layer is the mean, then the standard deviation.

    Args:
        std_range: What the numbers of the second half mean.
    """

    features_per_action: ClassVar[int] = 2
    knows_std = True

    def __init__(self, std_range: StdRange) -> None:
        self._std_range = std_range

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the first half."""
        return features[..., 0, :]

    def std(self, features: torch.Tensor) -> torch.Tensor | None:
        """Return what the second half stands for."""
        return self._std_range.of(features[..., 1, :])


class Beta(ActionDistribution):
    """The last layer is the two parameters of a Beta distribution over an interval.

    Args:
        low: Lower end of the interval.
        high: Upper end.
    """

    features_per_action: ClassVar[int] = 2

    def __init__(self, low: float, high: float) -> None:
        self._offset = low
        self._scale = high - low

    def mean(self, features: torch.Tensor) -> torch.Tensor:
        """Return the mean of the distribution, within the interval."""
        raw_alpha, raw_beta = torch.unbind(features, dim=-2)
        alpha = torch.nn.functional.softplus(raw_alpha) + 1.0
        beta = torch.nn.functional.softplus(raw_beta) + 1.0
        return (alpha / (alpha + beta)) * self._scale + self._offset


# The actor of rsl_rl's checkpoints: a normalised observation through a multilayer perceptron.
#
# The operations are those of rsl_rl's inference policy, in its order, so that a batch entry's action is the same to
# the last bit for a batch of the same size.

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
"""What rsl_rl calls them, and what they are."""

NORMALIZER_EPSILON = 1e-2
"""Added to every standard deviation of an observation; rsl_rl's number."""


@dataclass(frozen=True, kw_only=True)
class Normalizer:
    """The mean and the spread of observations, as training has seen them.

    Attributes:
        mean: Shape: (1, num_inputs).
        std: Shape: (1, num_inputs).
    """

    mean: torch.Tensor
    std: torch.Tensor

    def normalized(self, observation: torch.Tensor) -> torch.Tensor:
        """Return observations of about zero mean and unit spread. Shape: (batch, num_inputs)."""
        return (observation - self.mean) / (self.std + NORMALIZER_EPSILON)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One linear layer.

    Attributes:
        weight: Shape: (num_outputs, num_inputs).
        bias: Shape: (num_outputs,).
    """

    weight: torch.Tensor
    bias: torch.Tensor


class Actor(PolicyNetwork):
    """A multilayer perceptron with rsl_rl's normaliser before it and one of its distributions behind.

    Args:
        layers: From the observation to the features; the last one has no activation.
        activation: One of `ACTIVATIONS`.
        normalizer: What is done to observations first, None for nothing.
        distribution: Makes actions of the features.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        activation: str,
        normalizer: Normalizer | None,
        distribution: ActionDistribution,
    ) -> None:
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
        """Return what the first layer is shown. Shape: (batch, num_inputs)."""
        return observation if self._normalizer is None else self._normalizer.normalized(observation)

    def acted(self, latent: torch.Tensor, memory: Memory) -> Answer:
        """Return what follows from the input of the first layer.

        Args:
            latent: Shape: (batch, size of the first layer's input).
            memory: Passed on.
        """
        features = latent
        for layer in self._layers[:-1]:
            features = self._activation(torch.nn.functional.linear(features, layer.weight, layer.bias))
        last = self._layers[-1]
        features = torch.nn.functional.linear(features, last.weight, last.bias)
        if self._distribution.features_per_action > 1:
            features = features.unflatten(-1, (self._distribution.features_per_action, self.num_outputs or 0))
        return Answer(mean=self._distribution.mean(features), memory=memory, std=self._distribution.std(features))


# The recurrent actor of rsl_rl's checkpoints: an LSTM or a GRU before the multilayer perceptron.


class RecurrentActor(Actor):
    """An actor that remembers what it has seen of each batch entry.

    Args:
        rnn: An LSTM, or a GRU; its output is the input of the first layer.
        layers: See `Actor`.
        activation: See `Actor`.
        normalizer: See `Actor`.
        distribution: See `Actor`.
    """

    def __init__(
        self,
        rnn: torch.nn.LSTM | torch.nn.GRU,
        layers: Sequence[Layer],
        *,
        activation: str,
        normalizer: Normalizer | None,
        distribution: ActionDistribution,
    ) -> None:
        super().__init__(layers, activation=activation, normalizer=normalizer, distribution=distribution)
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
        """Return the actions for a batch, and what is remembered; see `PolicyNetwork.answer`."""
        sequence = self.normalized(observation).unsqueeze(0)
        if isinstance(self._rnn, torch.nn.LSTM):
            hidden, cell = memory
            latent, memory = self._rnn(sequence, (hidden, cell))
        else:
            latent, hidden = self._rnn(sequence, memory[0])
            memory = (hidden,)
        return self.acted(latent.squeeze(0), memory)
