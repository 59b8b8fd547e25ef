"""A diffusion transformer with self-attention over states and actions and cross-attention to images and instruction."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class KeysValues(NamedTuple):
    """A context as one block attends to it. Shape of each: (batch, heads, tokens, head_size)."""

    keys: Tensor
    values: Tensor


def sinusoidal_embedding(positions: Tensor, size: int) -> Tensor:
    """Return sines and cosines of geometrically spaced frequencies: (batch,) to (batch, size), float32, even size."""
    exponents = torch.arange(size // 2, device=positions.device, dtype=torch.float32) / (size // 2)
    angles = positions.float().unsqueeze(-1) * torch.exp(-math.log(10_000.0) * exponents)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class AdaptiveLayerNorm(nn.Module):
    """A layer norm whose scale and shift come from a condition."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(size, 2 * size)
        self.size = size

    def reset_parameters(self) -> None:
        """Begin as a plain layer norm."""
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """Normalise and modulate. Shapes: (batch, tokens, size), (batch, size) -> (batch, tokens, size)."""
        scale, shift = self.modulation(functional.silu(condition)).unsqueeze(1).chunk(2, dim=-1)
        return functional.layer_norm(tokens, (self.size,)) * (1.0 + scale) + shift


class Block(nn.Module):
    """Self-attention, cross-attention and a feed-forward part, each added to its input."""

    def __init__(self, size: int, num_heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.self_norm = AdaptiveLayerNorm(size)
        self.self_qkv = nn.Linear(size, 3 * size)
        self.self_out = nn.Linear(size, size)
        self.cross_norm = nn.LayerNorm(size)
        self.cross_query = nn.Linear(size, size)
        self.cross_key_value = nn.Linear(size, 2 * size)
        self.cross_out = nn.Linear(size, size)
        self.mlp_norm = AdaptiveLayerNorm(size)
        self.mlp_in = nn.Linear(size, mlp_ratio * size)
        self.mlp_out = nn.Linear(mlp_ratio * size, size)

    def keys_values(self, context: Tensor) -> KeysValues:
        """Project a context once for all steps. Shape: (batch, tokens, size)."""
        keys, values = self.cross_key_value(context).chunk(2, dim=-1)
        return KeysValues(self._split(keys), self._split(values))

    def forward(self, tokens: Tensor, condition: Tensor, context: KeysValues, context_mask: Tensor) -> Tensor:
        """Return the tokens (batch, tokens, size) after one block, with a condition (batch, size)."""
        # `context_mask` (batch, 1, 1, context) is 0 for tokens, minus infinity for padding.
        queries, keys, values = map(self._split, self.self_qkv(self.self_norm(tokens, condition)).chunk(3, dim=-1))
        tokens = tokens + self.self_out(self._join(_attend(queries, keys, values)))
        queries = self._split(self.cross_query(self.cross_norm(tokens)))
        tokens = tokens + self.cross_out(self._join(_attend(queries, context.keys, context.values, context_mask)))
        return tokens + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(tokens, condition))))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _join(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(-2)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
