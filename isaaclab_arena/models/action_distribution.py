"""Turn the output of an rsl_rl network into actions, by the distribution that it was trained with.

The operations are those of rsl_rl, in its order, so that the numbers are the same to the last bit.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

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
