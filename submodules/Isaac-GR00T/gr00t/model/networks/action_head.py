"""The action head, which maps images, instruction and state to the velocity of noisy actions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gr00t.model.configuration import Gr00tSmallConfig
from gr00t.model.networks.diffusion_transformer import AdaptiveLayerNorm, Block, KeysValues, sinusoidal_embedding
from gr00t.model.networks.embodiment_layers import EmbodimentMLP


class Situation(NamedTuple):
    """An encoded observation; computed once and used by every Euler step.

    Attributes:
        context: Image and instruction tokens, as each block attends to them.
        context_mask: 0 for tokens, minus infinity for padding. Shape: (batch, 1, 1, tokens).
        summary: Condition of the adaptive norms, besides the flow time. Shape: (batch, hidden).
        state: State tokens. Shape: (batch, state_steps, hidden).
        embodiment_id: Shape: (batch,).
    """

    context: tuple[KeysValues, ...]
    context_mask: Tensor
    summary: Tensor
    state: Tensor
    embodiment_id: Tensor

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
        """Prepare an observation.

        Args:
            context: Image and instruction tokens. Shape: (batch, tokens, hidden).
            context_mask: True where there is a token. Shape: (batch, tokens).
            vision_summary: Shape: (batch, hidden).
            state: Normalised. Shape: (batch, state_steps, max_state_dim).
            embodiment_id: Shape: (batch,).
        """
        context = self.context_norm(context)
        encoded = self.state_encoder(state, embodiment_id)
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
        """Return the velocity of noisy actions.

        Args:
            situation: From ``situation``.
            action: Shape: (batch, action_horizon, max_action_dim).
            time: Flow time in [0, 1]. Shape: (batch,).

        Returns:
            Shape: (batch, action_horizon, max_action_dim).
        """
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
