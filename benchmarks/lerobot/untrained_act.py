"""Save an ACT policy with random weights: ``untrained_act DIRECTORY CHUNK EDGE PICTURE...``.

Runs in LeRobot's interpreter. States and actions are those of PushT. The weights are those of seed 0, and the actions
spread over the table, so that the T is pushed now and then.
"""

from __future__ import annotations

import sys
import typing

import torch
from lerobot.configs.types import FeatureType, PolicyFeature  # pyright: ignore[reportMissingImports]
from lerobot.policies.act.configuration_act import ACTConfig  # pyright: ignore[reportMissingImports]
from lerobot.policies.act.modeling_act import ACTPolicy  # pyright: ignore[reportMissingImports]
from lerobot.policies.factory import make_pre_post_processors  # pyright: ignore[reportMissingImports]

STATE, ACTION = "observation.state", "action"
_TABLE = 512.0


def config(chunk: int, edge_px: int, pictures: typing.Sequence[str]) -> ACTConfig:
    """Return a small ACT that plays a whole chunk before it looks again."""
    return ACTConfig(
        input_features={
            **{name: PolicyFeature(FeatureType.VISUAL, (3, edge_px, edge_px)) for name in pictures},
            STATE: PolicyFeature(FeatureType.STATE, (2,)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (2,))},
        pretrained_backbone_weights=None,
        dim_model=128,
        n_heads=4,
        dim_feedforward=512,
        n_encoder_layers=2,
        n_vae_encoder_layers=2,
        latent_dim=8,
        chunk_size=chunk,
        n_action_steps=chunk,
        device="cpu",
        push_to_hub=False,
    )


def spread(shape: tuple[int, ...], scale: float) -> dict[str, torch.Tensor]:
    """Return statistics of numbers from 0 to ``scale``."""
    whole = torch.full(shape, scale)
    return {"mean": 0.5 * whole, "std": 0.18 * whole, "min": 0.0 * whole, "max": whole}


def main(directory: str, chunk: int, edge_px: int, pictures: typing.Sequence[str]) -> None:
    """Save the policy and its processors."""
    torch.manual_seed(0)
    policy = ACTPolicy(config(chunk, edge_px, pictures))
    statistics = {name: spread((3, 1, 1), 1.0) for name in pictures}
    statistics |= {name: spread((2,), _TABLE) for name in (STATE, ACTION)}
    for part in (policy, *make_pre_post_processors(policy.config, dataset_stats=statistics)):
        part.save_pretrained(directory)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
