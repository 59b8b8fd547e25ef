"""Layers with separate weights for every embodiment, applied to a mixed batch at once.

The idea is GR00T's: robots differ in the meaning of their states and actions, and share everything else.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class EmbodimentLinear(nn.Module):
    """A linear layer whose weights are chosen per batch entry."""

    def __init__(self, num_embodiments: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embodiments, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_embodiments, out_features))

    def reset_parameters(self) -> None:
        """Draw the weights as ``xavier_uniform_`` does for one linear layer."""
        limit = (6.0 / (self.weight.shape[1] + self.weight.shape[2])) ** 0.5
        nn.init.uniform_(self.weight, -limit, limit)
        nn.init.zeros_(self.bias)

    def forward(self, values: Tensor, embodiment_id: Tensor) -> Tensor:
        """Map (batch, steps, in_features) to (batch, steps, out_features) by each entry's own weight and bias."""
        # One embodiment needs no gather of weights.
        if len(self.weight) == 1:
            return functional.linear(values, self.weight[0].T, self.bias[0])
        return torch.baddbmm(self.bias[embodiment_id].unsqueeze(1), values, self.weight[embodiment_id])


class EmbodimentMLP(nn.Module):
    """Two layers with a GELU between, with weights chosen per batch entry."""

    def __init__(self, num_embodiments: int, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.hidden = EmbodimentLinear(num_embodiments, in_features, hidden_features)
        self.out = EmbodimentLinear(num_embodiments, hidden_features, out_features)

    def forward(self, values: Tensor, embodiment_id: Tensor) -> Tensor:
        """Return the transformed values. Shapes: (batch, steps, in_features) -> (batch, steps, out_features)."""
        return self.out(functional.gelu(self.hidden(values, embodiment_id)), embodiment_id)
