"""Define the model as a module of transformers, with flow matching between noise and actions.

The path is a straight line: at flow time 0 there is noise, at 1 the action, and the network learns the line's velocity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedModel
from transformers.utils.generic import ModelOutput

from gr00t.model.networks import (
    ActionHead,
    AdaptiveLayerNorm,
    EmbodimentLinear,
    Gr00tSmallConfig,
    Situation,
    VisionEncoder,
)


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
        elif isinstance(module, (EmbodimentLinear, VisionEncoder, ActionHead, AdaptiveLayerNorm)):
            module.reset_parameters()
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
            situation = situation.repeat(noise_draws)
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
        # `noise`, `target` and `weights` have the same shape; see `flow_matching.towards`.
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
        def velocity(action: Tensor, time: Tensor) -> Tensor:
            return self.action_head.velocity(situation, action.to(self.dtype), time).float()

        return velocity

    def compile_flow(self) -> None:
        """Have torch compile the velocity of noisy actions, once for each batch size."""
        # A whole query cannot be compiled, because it switches to inference mode, and the encoders alone take minutes.
        mode = "reduce-overhead" if self.device.type == "cuda" else "default"
        head: Any = self.action_head
        head.velocity = torch.compile(head.velocity, mode=mode, dynamic=False)

    def encode(self, inputs: Mapping[str, Tensor]) -> Situation:
        """Encode images, instruction and state, once for all Euler steps."""
        attention_mask = inputs["attention_mask"].bool()
        words = self.text(input_ids=inputs["input_ids"], attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(words.dtype)
        said = (words * weight).sum(dim=1) / weight.sum(dim=1)
        seen = self.vision(inputs["pixel_values"], inputs["view_mask"], said)
        per_view = seen.tokens.shape[1] // inputs["view_mask"].shape[1]
        return self.action_head.situation(
            context=torch.cat([seen.tokens, self.text_token(words)], dim=1),
            context_mask=torch.cat([inputs["view_mask"].repeat_interleave(per_view, dim=1), attention_mask], dim=1),
            vision_summary=seen.summary,
            state=inputs["state"].to(self.dtype),
            embodiment_id=inputs["embodiment_id"],
        )


def _draw(
    sample: Callable[..., Tensor], shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Draw on the generator's own device, so that a CPU generator gives a GPU model the same numbers."""
    place = device if generator is None else generator.device
    return sample(shape, generator=generator, device=place).to(device)
