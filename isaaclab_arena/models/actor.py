"""The actor of rsl_rl's checkpoints: a normalised observation through a multilayer perceptron.

The operations are those of rsl_rl's inference policy, in its order, so that a batch entry's action is the same to the
last bit for a batch of the same size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isaaclab_arena.models.action_distribution import ActionDistribution
from isaaclab_arena.models.network import Answer, Memory, PolicyNetwork

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
