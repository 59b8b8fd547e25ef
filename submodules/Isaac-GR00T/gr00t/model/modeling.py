"""Define the model as a module of transformers: its sizes, its layers, and flow matching between noise and actions.

The path is a straight line: at flow time 0 there is noise, at 1 the action, and the network learns the line's velocity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel, ConvNextBackbone, ConvNextConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput


class Gr00tSmallConfig(PreTrainedConfig):
    """Sizes of a small vision-language-action model.

    Attributes:
        vision_config: The convolutional backbone, one for all cameras.
        text_config: The encoder of the instruction.
        num_embodiments: Number of robots with projectors of their own.
        max_views: Images of one observation: cameras times video steps.
        max_state_horizon: State steps of one observation.
        max_state_dim: Numbers of one state step, over all state keys.
        action_horizon: Steps of one action chunk.
        max_action_dim: Numbers of one action step, over all action keys.
        hidden_size: Width of the action head.
        num_layers: Blocks of the action head.
        num_attention_heads: Attention heads of the action head.
        mlp_ratio: Width inside a block's feed-forward part, in units of ``hidden_size``.
        vision_feature_size: Channels of the feature map for keypoints and patches.
        num_keypoints: Keypoints per image.
        num_patches: Edge of the coarse grid of tokens per image.
        num_inference_timesteps: Euler steps from noise to action.
        num_timestep_buckets: Scale of the flow time before its sinusoidal embedding.
        noise_beta_alpha: Alpha of Beta(alpha, 1), the distribution of flow times in training, which prefers noise.
        noise_s: Flow times for training stay below this.
    """

    model_type = "gr00t_small"
    # A table in older releases of transformers, and in newer ones a property of another table that older ones lack.
    sub_configs: ClassVar[dict[str, type[PreTrainedConfig]]] = {  # pyright: ignore[reportIncompatibleMethodOverride]
        "vision_config": ConvNextConfig,
        "text_config": BertConfig,
    }

    vision_config: Any = None
    text_config: Any = None
    num_embodiments: int = 1
    max_views: int = 2
    max_state_horizon: int = 1
    max_state_dim: int = 16
    action_horizon: int = 16
    max_action_dim: int = 16
    hidden_size: int = 128
    num_layers: int = 3
    num_attention_heads: int = 4
    mlp_ratio: int = 2
    vision_feature_size: int = 64
    num_keypoints: int = 16
    num_patches: int = 4
    num_inference_timesteps: int = 4
    num_timestep_buckets: int = 1000
    noise_beta_alpha: float = 1.5
    noise_s: float = 0.999

    def __post_init__(self, **kwargs: Any) -> None:
        """Make objects of the sub-configurations, which ``config.json`` keeps as dictionaries."""
        for name, config_class in self.sub_configs.items():
            given = getattr(self, name)
            if not isinstance(given, PreTrainedConfig):
                setattr(self, name, config_class(**(given or {})))
        super().__post_init__(**kwargs)


class EmbodimentLinear(nn.Module):
    """A linear layer with separate weights for every embodiment, applied to a mixed batch at once."""

    # The idea is GR00T's: robots differ in the meaning of their states and actions, and share everything else.

    def __init__(self, num_embodiments: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embodiments, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_embodiments, out_features))

    def forward(self, values: Tensor, embodiment_id: Tensor) -> Tensor:
        """Map (batch, steps, in_features) to (batch, steps, out_features) by each entry's own weight and bias."""
        # One embodiment needs no gather of weights.
        if len(self.weight) == 1:
            return functional.linear(values, self.weight[0].T, self.bias[0])
        return torch.baddbmm(self.bias[embodiment_id].unsqueeze(1), values, self.weight[embodiment_id])


class EmbodimentMLP(nn.Module):
    """Two layers with a GELU between, with separate weights for every embodiment."""

    def __init__(self, num_embodiments: int, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.hidden = EmbodimentLinear(num_embodiments, in_features, hidden_features)
        self.out = EmbodimentLinear(num_embodiments, hidden_features, out_features)

    def forward(self, values: Tensor, embodiment_id: Tensor) -> Tensor:
        """Return the transformed values. Shapes: (batch, steps, in_features) -> (batch, steps, out_features)."""
        return self.out(functional.gelu(self.hidden(values, embodiment_id)), embodiment_id)


class KeysValues(NamedTuple):
    """A context as one block attends to it. Shape of each: (batch, heads, tokens, head_size)."""

    keys: Tensor
    values: Tensor


class AdaptiveLayerNorm(nn.Module):
    """A layer norm whose scale and shift come from a condition."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(size, 2 * size)
        self.size = size

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
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        tokens = tokens + self.self_out(attended.transpose(1, 2).flatten(-2))
        queries = self._split(self.cross_query(self.cross_norm(tokens)))
        attended = functional.scaled_dot_product_attention(
            queries, context.keys, context.values, attn_mask=context_mask
        )
        tokens = tokens + self.cross_out(attended.transpose(1, 2).flatten(-2))
        return tokens + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(tokens, condition))))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def spatial_softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Turn maps (images, keypoints, height, width) into weights over cells and mean positions (x, y) in [-1, 1]."""
    height, width = logits.shape[-2:]
    # Shapes: weights (images, keypoints, height * width), positions (images, keypoints, 2). Both are float32: half
    # precision would round positions to a tenth of a cell.
    weights = logits.flatten(-2).float().softmax(dim=-1)
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height, device=logits.device),
        torch.linspace(-1, 1, width, device=logits.device),
        indexing="ij",
    )
    grid = torch.stack([x.flatten(), y.flatten()], dim=-1)
    return weights, weights @ grid


class VisionEncoder(nn.Module):
    """Encodes all views of a batch at once."""

    # Small data needs strong priors. Keypoints by spatial softmax (Levine et al. 2016; Diffusion Policy) locate an
    # object to a fraction of a cell. The instruction modulates the features first (FiLM, Perez et al. 2018) and so
    # selects the object.

    def __init__(self, config: Gr00tSmallConfig) -> None:
        super().__init__()
        self.num_patches = config.num_patches
        self.backbone = ConvNextBackbone(config.vision_config)
        channels = config.vision_feature_size
        self.laterals = nn.ModuleList([nn.Conv2d(size, channels, kernel_size=1) for size in self.backbone.channels])
        self.film_text = nn.Linear(config.text_config.hidden_size, 2 * channels)
        self.film_view = nn.Embedding(config.max_views, 2 * channels)
        self.keypoint_logits = nn.Conv2d(channels, config.num_keypoints, kernel_size=1)
        self.keypoint_sharpness = nn.Parameter(torch.empty(()))
        self.keypoint_token = nn.Linear(channels + 2, config.hidden_size)
        self.patch_token = nn.Linear(channels, config.hidden_size)
        tokens_per_view = config.num_keypoints + config.num_patches**2
        self.token_position = nn.Parameter(torch.empty(config.max_views, tokens_per_view, config.hidden_size))
        self.summary = nn.Parameter(torch.empty(config.max_views, 2 * config.num_keypoints, config.hidden_size))

    def forward(self, pixel_values: Tensor, view_mask: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images (batch, views, 3, height, width) in [0, 255], modulated by text (batch, text_hidden)."""
        # Returns the tokens of keypoints and coarse patches of every view, and a summary of the keypoints' positions.
        # Shapes: (batch, views * (keypoints + patches**2), hidden), (batch, hidden).
        batch, views = pixel_values.shape[:2]
        pixels = pixel_values.flatten(0, 1).to(text.dtype) / 127.5 - 1.0
        maps = self.backbone(pixels.contiguous(memory_format=torch.channels_last)).feature_maps
        # Add the coarser maps to the finest. Shape: (batch * views, channels, height, width).
        features = self.laterals[0](maps[0])
        for lateral, coarser in zip(list(self.laterals)[1:], maps[1:], strict=True):
            features = features + functional.interpolate(lateral(coarser), size=features.shape[-2:], mode="nearest")
        # Scale and shift each channel by instruction and camera (FiLM).
        film = self.film_text(text).unsqueeze(1) + self.film_view.weight[:views]
        scale, shift = film[..., None, None].chunk(2, dim=2)
        features = functional.gelu(features.unflatten(0, (batch, views)) * (1.0 + scale) + shift).flatten(0, 1)

        weights, positions = spatial_softmax(self.keypoint_sharpness * self.keypoint_logits(features))
        cells = features.flatten(-2).transpose(1, 2)
        positions = positions.to(cells.dtype)
        seen = torch.cat([weights.to(cells.dtype) @ cells, positions], dim=-1)
        patches = functional.adaptive_avg_pool2d(features, self.num_patches).flatten(-2).transpose(1, 2)
        tokens = torch.cat([self.keypoint_token(seen), self.patch_token(patches)], dim=1)
        tokens = tokens.unflatten(0, (batch, views)) + self.token_position[:views]
        # `view_mask` (batch, views) is False for views that an embodiment does not have.
        places = positions.unflatten(0, (batch, views)).flatten(-2)
        places = places * view_mask.unsqueeze(-1).to(places.dtype)
        return tokens.flatten(1, 2), torch.einsum("bvk,vkh->bh", places, self.summary[:views])


class Situation(NamedTuple):
    """An encoded observation, which every Euler step uses."""

    # Keys and values of image and instruction tokens, per block.
    context: tuple[KeysValues, ...]
    context_mask: Tensor  # 0 for tokens, minus infinity for padding; shape: (batch, 1, 1, tokens)
    summary: Tensor  # condition of the adaptive norms, besides the flow time; shape: (batch, hidden)
    state: Tensor  # shape: (batch, state_steps, hidden)
    embodiment_id: Tensor  # shape: (batch,)


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
        blocks = [Block(size, config.num_attention_heads, config.mlp_ratio) for _ in range(config.num_layers)]
        self.blocks: Any = nn.ModuleList(blocks)
        self.final_norm = AdaptiveLayerNorm(size)

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
            context=tuple(block.keys_values(context) for block in self.blocks),
            context_mask=bias[:, None, None, :],
            summary=self.summary_mlp(torch.cat([vision_summary, encoded.mean(dim=1)], dim=-1)),
            state=encoded + self.state_position[: state.shape[1]],
            embodiment_id=embodiment_id,
        )

    def velocity(self, situation: Situation, action: Tensor, time: Tensor) -> Tensor:
        """Return the velocity of actions (batch, action_horizon, max_action_dim) at flow times (batch,) in [0, 1]."""
        # Sines and cosines of geometrically spaced frequencies embed the flow time, in float32. Shape: (batch, hidden).
        half = self.size // 2
        exponents = torch.arange(half, device=time.device, dtype=torch.float32) / half
        angles = (time * self.num_timestep_buckets).float().unsqueeze(-1) * torch.exp(-math.log(10_000.0) * exponents)
        embedded = torch.cat([angles.sin(), angles.cos()], dim=-1).to(action.dtype)
        condition = self.time_mlp(embedded) + situation.summary
        tokens = self.action_encoder(action, situation.embodiment_id) + self.action_position
        tokens = torch.cat([situation.state, tokens], dim=1)
        for block, context in zip(self.blocks, situation.context, strict=True):
            tokens = block(tokens, condition, context, situation.context_mask)
        tokens = self.final_norm(tokens[:, situation.state.shape[1] :], condition)
        return self.action_decoder(tokens, situation.embodiment_id)


# Flow matching.


def draw_flow_times(uniform: Tensor, *, alpha: float, longest: float) -> Tensor:
    """Map uniform numbers (batch,) in [0, 1) to flow times (batch,) up to `longest`; a larger `alpha` prefers noise."""
    # ``1 - time / longest`` is Beta(alpha, 1), as in GR00T and pi0. Its distribution function is ``x ** alpha``, so the
    # inverse maps numbers from any generator. Near noise the direction is hardest to predict.
    return longest * (1.0 - uniform ** (1.0 / alpha))


def interpolate(noise: Tensor, action: Tensor, time: Tensor) -> Tensor:
    """Return the points at flow times (batch,) on the lines from noise to action, both (batch, horizon, action_dim)."""
    weight = time.view(-1, 1, 1)
    return (1.0 - weight) * noise + weight * action


def masked_mean_square(difference: Tensor, mask: Tensor) -> Tensor:
    """Return the scalar mean square where `mask` is True, 0 for an empty mask; shapes: (batch, horizon, action_dim)."""
    weight = mask.to(difference.dtype)
    return (difference.square() * weight).sum() / weight.sum().clamp(min=1.0)


def integrate(velocity: Callable[[Tensor, Tensor], Tensor], noise: Tensor, *, num_steps: int) -> Tensor:
    """Follow a velocity field from noise (batch, horizon, action_dim) to actions in `num_steps` equal Euler steps."""
    action = noise
    for step in range(num_steps):
        time = torch.full((len(noise),), step / num_steps, device=noise.device, dtype=torch.float32)
        action = action + velocity(action, time) / num_steps
    return action


def towards(
    velocity: Callable[[Tensor, Tensor], Tensor], target: Tensor, weights: Tensor, *, max_guidance: float = 5.0
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the velocity field with a pull towards planned actions `target`, with `weights` from 0 to 1."""

    # This is the guided inpainting of real-time chunking: Black, Galliker and Levine, "Real-Time Execution of Action
    # Chunking Flow Policies", 2025, arXiv 2506.07339, equations 2 to 4. At a point A of flow time t the network
    # predicts the action ``A + (1 - t) v(A, t)`` (equation 3). Its weighted difference to the target goes back through
    # the network as a vector-Jacobian product, and counts ``min(max_guidance, (1 - t) / (t r**2))`` times (equation 2)
    # with ``r**2 = (1 - t)**2 / (t**2 + (1 - t)**2)`` (equation 4). The paper recommends a ``max_guidance`` of 5.
    def guided(action: Tensor, time: Tensor) -> Tensor:
        with torch.enable_grad():
            point = action.detach().requires_grad_()
            speed = velocity(point, time)
            predicted = point + (1.0 - time).view(-1, 1, 1) * speed
            lacking = (target - predicted.detach()) * weights
            (pull,) = torch.autograd.grad(predicted, point, lacking)
        # At time 0 the factor would be infinite.
        remaining = 1.0 - time
        factor = ((time.square() + remaining.square()) / (time * remaining)).clamp(max=max_guidance)
        return speed.detach() + factor.view(-1, 1, 1) * pull

    return guided


def seeded_noise(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw float32 standard normal noise (batch, *shape), each entry from its own 64-bit seed only."""
    # The CPU draws, so the noise is the same for every device. Its generator uses only the lower 32 bits of a seed.
    noise = torch.empty(len(seeds), *shape)
    for entry, seed in zip(noise, seeds, strict=True):
        entry.normal_(generator=torch.Generator().manual_seed(int(seed)))
    return noise


@dataclass
class FlowMatchingOutput(ModelOutput):
    """The output of the forward pass, for training."""

    loss: Tensor | None = None  # scalar mean square error of the velocity, without padding
    velocity: Tensor | None = None  # shape: (batch * noise_draws, action_horizon, max_action_dim)


class Gr00tSmall(PreTrainedModel):
    """A vision-language-action model with a flow-matching action head."""

    # Inputs are the processor's: ``pixel_values`` uint8 (B, V, 3, S, S), ``view_mask`` bool (B, V), ``input_ids`` and
    # ``attention_mask`` (B, L), ``state`` (B, T, max_state_dim), ``embodiment_id`` (B,); for training also ``action``
    # and ``action_mask`` (B, action_horizon, max_action_dim). Floats may have any precision; the model casts them to
    # that of its weights.
    config_class = Gr00tSmallConfig
    config: Gr00tSmallConfig
    main_input_name = "pixel_values"
    _supports_sdpa = True

    def __init__(self, config: Gr00tSmallConfig) -> None:
        super().__init__(config)
        # Eager attention adds its mask as numbers. Others leave it out if no entry of the batch is padded, so that
        # an entry's last digits would depend on the length of its neighbours' instructions.
        self.text = BertModel._from_config(config.text_config, attn_implementation="eager", add_pooling_layer=False)
        self.text_token = nn.Linear(config.text_config.hidden_size, config.hidden_size)
        self.vision = VisionEncoder(config)
        self.action_head = ActionHead(config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, EmbodimentLinear):
            # As ``xavier_uniform_`` draws for one linear layer.
            limit = (6.0 / (module.weight.shape[1] + module.weight.shape[2])) ** 0.5
            nn.init.uniform_(module.weight, -limit, limit)
            nn.init.zeros_(module.bias)
        elif isinstance(module, AdaptiveLayerNorm):
            # It begins as a plain layer norm.
            nn.init.zeros_(module.modulation.weight)
            nn.init.zeros_(module.modulation.bias)
        elif isinstance(module, VisionEncoder):
            nn.init.constant_(module.keypoint_sharpness, 4.0)
            nn.init.normal_(module.token_position, std=0.02)
            nn.init.normal_(module.summary, std=module.summary.shape[1] ** -0.5)
        elif isinstance(module, ActionHead):
            nn.init.normal_(module.state_position, std=0.02)
            nn.init.normal_(module.action_position, std=0.02)
        else:
            super()._init_weights(module)

    def forward(
        self,
        inputs: Mapping[str, Tensor],
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        noise_draws: int = 1,
        generator: torch.Generator | None = None,
    ) -> FlowMatchingOutput:
        """Return the loss of a batch of demonstrations; without `noise` or `time`, `generator` draws them."""
        action, mask = inputs["action"].float(), inputs["action_mask"]
        # Encode the images once for all `noise_draws` of an observation.
        situation = self.encode(inputs)
        if noise_draws > 1:
            context = tuple(
                KeysValues(*(tensor.repeat_interleave(noise_draws, dim=0) for tensor in pair))
                for pair in situation.context
            )
            others = (tensor.repeat_interleave(noise_draws, dim=0) for tensor in situation[1:])
            situation = Situation(context, *others)
            action, mask = (tensor.repeat_interleave(noise_draws, dim=0) for tensor in (action, mask))
        # Shapes: noise (B * noise_draws, action_horizon, max_action_dim), time in [0, 1] (B * noise_draws,).
        if noise is None:
            noise = _draw(torch.randn, action.shape, action.device, generator)
        if time is None:
            uniform = _draw(torch.rand, (len(action),), action.device, generator)
            time = draw_flow_times(uniform, alpha=self.config.noise_beta_alpha, longest=self.config.noise_s)
        noise = noise.to(action)
        noisy = interpolate(noise, action, time.to(action))
        velocity = self.action_head.velocity(situation, noisy.to(self.dtype), time).float()
        return FlowMatchingOutput(loss=masked_mean_square(velocity - (action - noise), mask), velocity=velocity)

    @torch.no_grad()
    def continue_action(
        self, inputs: Mapping[str, Tensor], *, noise: Tensor, target: Tensor, weights: Tensor
    ) -> Tensor:
        """Return normalised actions that continue `target`, float32 (B, action_horizon, max_action_dim)."""
        # `noise`, `target` and `weights` have the same shape; see `towards`.
        velocity = towards(self._velocity(self.encode(inputs)), target.to(self.device), weights.to(self.device))
        steps = self.config.num_inference_timesteps
        return integrate(velocity, noise.to(self.device, torch.float32), num_steps=steps)

    @torch.inference_mode()
    def get_action(
        self,
        inputs: Mapping[str, Tensor],
        *,
        noise: Tensor | None = None,
        num_inference_timesteps: int | None = None,
    ) -> Tensor:
        """Return normalised actions, float32 (B, action_horizon, max_action_dim), padding included."""
        situation = self.encode(inputs)
        # The noise is the start of the flow. Without one, torch's global generator draws it.
        if noise is None:
            shape = (len(situation.state), self.config.action_horizon, self.config.max_action_dim)
            noise = torch.randn(shape, device=situation.state.device)

        velocity = self._velocity(situation)
        steps = num_inference_timesteps or self.config.num_inference_timesteps
        return integrate(velocity, noise.to(situation.state.device, torch.float32, non_blocking=True), num_steps=steps)

    def _velocity(self, situation: Situation) -> Callable[[Tensor, Tensor], Tensor]:
        # The small steps add up in float32; only the network runs in the weights' precision.
        return lambda action, time: self.action_head.velocity(situation, action.to(self.dtype), time).float()

    def encode(self, inputs: Mapping[str, Tensor]) -> Situation:
        """Encode images, instruction and state, once for all Euler steps."""
        attention_mask = inputs["attention_mask"].bool()
        words = self.text(input_ids=inputs["input_ids"], attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(words.dtype)
        said = (words * weight).sum(dim=1) / weight.sum(dim=1)
        seen, summary = self.vision(inputs["pixel_values"], inputs["view_mask"], said)
        per_view = seen.shape[1] // inputs["view_mask"].shape[1]
        return self.action_head.situation(
            context=torch.cat([seen, self.text_token(words)], dim=1),
            context_mask=torch.cat([inputs["view_mask"].repeat_interleave(per_view, dim=1), attention_mask], dim=1),
            vision_summary=summary,
            state=inputs["state"].to(self.dtype),
            embodiment_id=inputs["embodiment_id"],
        )


def _draw(
    sample: Callable[..., Tensor], shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Draw on the generator's own device, so that a CPU generator gives a GPU model the same numbers."""
    place = device if generator is None else generator.device
    return sample(shape, generator=generator, device=place).to(device)
