"""Makes a policy of LeRobot with weights of chance, or plays one in LeRobot's own way; for LeRobot's interpreter.

Usage: ``make TYPE DIRECTORY`` or ``play DIRECTORY OBSERVATIONS ACTIONS [OBSERVATIONS ACTIONS ...]``.
"""

import contextlib
import importlib
import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]
from lerobot.configs.types import FeatureType, PolicyFeature  # pyright: ignore[reportMissingImports]
from lerobot.policies.factory import (  # pyright: ignore[reportMissingImports]
    get_policy_class,
    make_policy_config,
    make_pre_post_processors,
)

STATE, ACTION = "observation.state", "action"
SIZES = {STATE: 9, ACTION: 8}
SETTINGS = {
    "act": {
        "pretrained_backbone_weights": None,
        "dim_model": 64,
        "n_heads": 4,
        "dim_feedforward": 128,
        "latent_dim": 8,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "chunk_size": 10,
        "n_action_steps": 6,
    },
    "diffusion": {
        "pretrained_backbone_weights": None,
        "down_dims": (32, 64, 128),
        "crop_shape": (56, 56),
        "num_inference_steps": 4,
    },
    "vqbet": {
        "pretrained_backbone_weights": None,
        "crop_shape": (56, 56),
        "gpt_n_layer": 2,
        "gpt_n_head": 4,
        "gpt_input_dim": 64,
        "gpt_output_dim": 64,
        "gpt_hidden_dim": 64,
    },
    "tdmpc": {"use_mpc": False},
}
SETTINGS["act_averaging"] = {**SETTINGS["act"], "n_action_steps": 1, "temporal_ensemble_coeff": 0.01}
SETTINGS["tdmpc_planning"] = {
    "use_mpc": True, "n_gaussian_samples": 64, "n_pi_samples": 8, "n_elites": 8, "cem_iterations": 3
}  # fmt: skip
"""What makes policies of each type small, after which `_` and more may come."""

DRAWN_AT_ONCE = frozenset({"vqbet", "tdmpc"})
"""Types that draw for a whole batch, with torch's own generator."""

NOISE = Path(__file__).parents[2] / "isaaclab_arena/policy/lerobot/worker/noise.py"


def picture_of(kind: str) -> str:
    """Return what the picture of a policy is called; LeRobot 0.4.4 has TD-MPC find it by one name alone."""
    return "observation.image" if kind == "tdmpc" else "observation.images.wrist_cam_rgb"


def make(name: str, directory: str) -> None:
    torch.manual_seed(0)
    kind = name.partition("_")[0]
    inputs = {
        picture_of(kind): PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
        STATE: PolicyFeature(FeatureType.STATE, (SIZES[STATE],)),
    }
    outputs = {ACTION: PolicyFeature(FeatureType.ACTION, (SIZES[ACTION],))}
    config = make_policy_config(
        kind, input_features=inputs, output_features=outputs, device="cpu", push_to_hub=False, **SETTINGS[name]
    )
    statistics = {
        name: {"mean": torch.full((n,), 0.1), "std": torch.full((n,), 0.7), "min": -torch.ones(n), "max": torch.ones(n)}
        for name, n in SIZES.items()
    }
    statistics[picture_of(kind)] = {name: torch.full((3, 1, 1), 0.5) for name in ("mean", "std", "min", "max")}
    processors = make_pre_post_processors(config, dataset_stats=statistics)
    policy = get_policy_class(kind)(config)
    if kind == "vqbet":
        # Untrained, it refuses to act until it is told that its codes are learned.
        policy.vqbet.action_head.vqvae_model.discretized = torch.tensor(True)
    for part in (policy, *processors):
        part.save_pretrained(directory)


def play(directory: str, *files: str) -> None:
    """Act on each observation as ``lerobot-eval`` does, with the noise of each query from a seed that is given."""
    torch.set_num_threads(1)
    sys.path.append(str(NOISE.parent))
    noise = importlib.import_module(NOISE.stem)
    config = PreTrainedConfig.from_pretrained(directory)
    policy = get_policy_class(config.type).from_pretrained(directory, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=directory)
    for observations, actions in zip(files[::2], files[1::2], strict=True):
        shown, played = dict(np.load(observations)), []
        policy.reset()
        for picture, state, seed in zip(shown["pictures"], shown["states"], shown["seeds"], strict=True):
            pixels = torch.from_numpy(picture)[None].permute(0, 3, 1, 2).contiguous().type(torch.float32) / 255
            batch = before({picture_of(config.type): pixels, STATE: torch.from_numpy(state)[None], "task": ["lift"]})
            torch.manual_seed(int(seed))
            drawn = contextlib.nullcontext() if config.type in DRAWN_AT_ONCE else noise.NoiseOfEntries([int(seed)])
            with torch.inference_mode(), drawn:
                action = policy.select_action(batch)
            played.append(after(action)[0].numpy())
        np.save(actions, np.stack(played))


if __name__ == "__main__":
    {"make": make, "play": play}[sys.argv[1]](*sys.argv[2:])
