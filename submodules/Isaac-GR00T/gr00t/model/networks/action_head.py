"""The action head, which maps images, instruction and state to the velocity of noisy actions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gr00t.model.configuration import Gr00tSmallConfig
from gr00t.model.networks.diffusion_transformer import AdaptiveLayerNorm, Block, KeysValues, sinusoidal_embedding
from gr00t.model.networks.embodiment_layers import EmbodimentMLP


class Situation(NamedTuple):
    """An encoded observation; computed once and used by every Euler step."""

    # Keys and values of image and instruction tokens, per block.
    context: tuple[KeysValues, ...]
    context_mask: Tensor  # 0 for tokens, minus infinity for padding; shape: (batch, 1, 1, tokens)
    summary: Tensor  # condition of the adaptive norms, besides the flow time; shape: (batch, hidden)
    state: Tensor  # shape: (batch, state_steps, hidden)
    embodiment_id: Tensor  # shape: (batch,)

    def repeat(self, times: int) -> "Situation":
        """Return each batch entry ``times`` times, one after another."""

        def repeated(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(times, dim=0)

        context = tuple(KeysValues(repeated(pair.keys), repeated(pair.values)) for pair in self.context)
        return Situation(context, *map(repeated, self[1:]))


class ActionHead(nn.Module):
    """A diffusion transformer between per-embodiment encoders and decoders."""

    def __init__(self, config: Gr00tSmallConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.size = size
        self.num_timestep_buckets = config.num_timestep_buckets
        # Only these layers differ between robots; the transformer is shared.
        self.state_encoder = EmbodimentMLP(config.num_embodiments, config.max_state_dim, size, size)
        self.action_encoder = EmbodimentMLP(config.num_embodiments, config.max_action_dim, size, size)
        self.action_decoder = EmbodimentMLP(config.num_embodiments, size, size, config.max_action_dim)
        self.state_position = nn.Parameter(torch.empty(config.max_state_horizon, size))
        self.action_position = nn.Parameter(torch.empty(config.action_horizon, size))
        self.time_mlp = nn.Sequential(nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size))
        self.summary_mlp = nn.Sequential(
            nn.LayerNorm(2 * size), nn.Linear(2 * size, size), nn.SiLU(), nn.Linear(size, size)
        )
        self.context_norm = nn.LayerNorm(size)
        self.blocks = nn.ModuleList(
            [Block(size, config.num_attention_heads, config.mlp_ratio) for _ in range(config.num_layers)]
        )
        self.final_norm = AdaptiveLayerNorm(size)

    def reset_parameters(self) -> None:
        """Draw the parameters that belong to no layer."""
        nn.init.normal_(self.state_position, std=0.02)
        nn.init.normal_(self.action_position, std=0.02)

    def situation(
        self, context: Tensor, context_mask: Tensor, vision_summary: Tensor, state: Tensor, embodiment_id: Tensor
    ) -> Situation:
        """Encode tokens (batch, tokens, hidden) and normalised states (batch, state_steps, max_state_dim)."""
        context = self.context_norm(context)
        encoded = self.state_encoder(state, embodiment_id)
        # `context_mask` (batch, tokens) is True for tokens; attention adds its mask as numbers.
        bias = torch.zeros(context_mask.shape, dtype=context.dtype, device=context.device)
        bias = bias.masked_fill(~context_mask, float("-inf"))
        return Situation(
            context=tuple(block.keys_values(context) for block in self._blocks()),
            context_mask=bias[:, None, None, :],
            summary=self.summary_mlp(torch.cat([vision_summary, encoded.mean(dim=1)], dim=-1)),
            state=encoded + self.state_position[: state.shape[1]],
            embodiment_id=embodiment_id,
        )

    def velocity(self, situation: Situation, action: Tensor, time: Tensor) -> Tensor:
        """Return the velocity of actions (batch, action_horizon, max_action_dim) at flow times (batch,) in [0, 1]."""
        embedded = sinusoidal_embedding(time * self.num_timestep_buckets, self.size).to(action.dtype)
        condition = self.time_mlp(embedded) + situation.summary
        tokens = self.action_encoder(action, situation.embodiment_id) + self.action_position
        tokens = torch.cat([situation.state, tokens], dim=1)
        for block, context in zip(self._blocks(), situation.context, strict=True):
            tokens = block(tokens, condition, context, situation.context_mask)
        tokens = self.final_norm(tokens[:, situation.state.shape[1] :], condition)
        return self.action_decoder(tokens, situation.embodiment_id)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]
