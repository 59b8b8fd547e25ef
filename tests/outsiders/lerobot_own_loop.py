"""Makes a policy of LeRobot with weights of chance, or plays one in LeRobot's own way; for LeRobot's interpreter.

Usage: ``make TYPE DIRECTORY`` or ``play DIRECTORY OBSERVATIONS ACTIONS [OBSERVATIONS ACTIONS ...]``.
"""

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

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
PLANNED = {"chunk_size": 8, "n_action_steps": 6}
UNTRAINED = {"pretrained_backbone_weights": None}
SIZES_OF_GPT = {"n_layer": 2, "n_head": 4, **dict.fromkeys(("input_dim", "output_dim", "hidden_dim"), 64)}
SETTINGS = {
    "act": {
        **UNTRAINED,
        "dim_model": 64,
        "n_heads": 4,
        "dim_feedforward": 128,
        "latent_dim": 8,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "chunk_size": 10,
        "n_action_steps": 6,
    },
    "diffusion": {**UNTRAINED, "down_dims": (32, 64, 128), "crop_shape": (56, 56), "num_inference_steps": 4},
    "vqbet": {**UNTRAINED, "crop_shape": (56, 56), **{f"gpt_{name}": size for name, size in SIZES_OF_GPT.items()}},
    "tdmpc": {"use_mpc": False},
    "sac": {"use_torch_compile": False},
    "recurrent": {},
}
SETTINGS["act_averaging"] = {**SETTINGS["act"], "n_action_steps": 1, "temporal_ensemble_coeff": 0.01}
SETTINGS["tdmpc_planning"] = {
    "use_mpc": True, "n_gaussian_samples": 64, "n_pi_samples": 8, "n_elites": 8, "cem_iterations": 3
}  # fmt: skip
SETTINGS["smolvla"] = {
    **PLANNED,
    "num_steps": 3,
    "num_vlm_layers": 2,
    "resize_imgs_with_padding": (32, 32),
    "load_vlm_weights": False,
}
SETTINGS["xvla"] = {
    **PLANNED,
    "num_denoising_steps": 3,
    "action_mode": "auto",
    "hidden_size": 32,
    "depth": 2,
    "num_heads": 2,
    "len_soft_prompts": 4,
    "tokenizer_max_length": 24,
}
SETTINGS["pi0"] = SETTINGS["pi05"] = {**PLANNED, "num_inference_steps": 3, "image_resolution": (64, 64)}
"""What makes policies of each type small, after which `_` and more may come."""

PI_TOKENIZER = "google/paligemma-3b-pt-224"
"""What the processors of new policies of these types name."""

DRAWN_AT_ONCE = frozenset({"vqbet", "tdmpc", "sac", "recurrent"})
"""Types that draw for a whole batch, with torch's own generator."""

NOISE = Path(__file__).parents[2] / "isaaclab_arena/policy/lerobot_worker.py"


def picture_of(kind: str) -> str:
    """Return the name of a policy's picture; TD-MPC of LeRobot 0.4.4 finds it by one name alone."""
    return "observation.image" if kind == "tdmpc" else "observation.images.wrist_cam_rgb"


def backbone_of(kind: str, directory: str) -> dict[str, object]:
    """Return the settings that name the backbone of a policy, which is made beside it."""
    if kind not in {"smolvla", "xvla", "pi0", "pi05"}:
        return {}
    sys.path.append(str(Path(__file__).parent))
    backbones = importlib.import_module("lerobot_backbones")
    path = f"{directory}_backbone"
    if kind == "smolvla":
        backbones.make_smolvlm(path)
        return {"vlm_model_name": path}
    backbones.tokenizer().save_pretrained(path)
    return {"tokenizer_name": path, "florence_config": backbones.florence()} if kind == "xvla" else {}


class OnlyTokenizer:
    """Stands for the class of all tokenizers, with the one of a directory, whichever is named."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def from_pretrained(self, name: str) -> object:
        del name
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(self._directory)


def make(name: str, directory: str) -> None:
    torch.manual_seed(0)
    kind = name.partition("_")[0]
    inputs = {
        picture_of(kind): PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
        STATE: PolicyFeature(FeatureType.STATE, (SIZES[STATE],)),
    }
    outputs = {ACTION: PolicyFeature(FeatureType.ACTION, (SIZES[ACTION],))}
    settings = {**SETTINGS[name], **backbone_of(kind, directory)}
    config = make_policy_config(
        kind, input_features=inputs, output_features=outputs, device="cpu", push_to_hub=False, **settings
    )
    statistics = {
        name: {"mean": torch.full((n,), 0.1), "std": torch.full((n,), 0.7), "min": -torch.ones(n), "max": torch.ones(n)}
        for name, n in SIZES.items()
    }
    statistics[picture_of(kind)] = {name: torch.full((3, 1, 1), 0.5) for name in ("mean", "std", "min", "max")}
    for numbers in statistics.values():
        numbers |= {"q01": numbers["min"], "q99": numbers["max"]}
    if kind in {"pi0", "pi05"}:
        steps: Any = importlib.import_module("lerobot.processor.tokenizer_processor")
        steps.AutoTokenizer = OnlyTokenizer(f"{directory}_backbone")
    processors = make_pre_post_processors(config, dataset_stats=statistics)
    policy = get_policy_class(kind)(config)
    if kind == "vqbet":
        # Untrained, it refuses to act until it is told that its codes are learned.
        policy.vqbet.action_head.vqvae_model.discretized = torch.tensor(True)
    for part in (policy, *processors):
        part.save_pretrained(directory)
    saved = Path(directory, "policy_preprocessor.json")
    saved.write_text(saved.read_text().replace(PI_TOKENIZER, f"{directory}_backbone"))


def play(directory: str, *files: str) -> None:
    """Act on each observation as ``lerobot-eval`` does, with the noise of each query from a seed that is given.

    A file tells of several episodes that begin together and are played in a batch: pictures, states and seeds, first by
    step and then by episode, and the words of each.
    """
    torch.set_num_threads(1)
    sys.path.append(str(NOISE.parent))
    noise = importlib.import_module(NOISE.stem)
    config = PreTrainedConfig.from_pretrained(directory)
    policy = get_policy_class(config.type).from_pretrained(directory, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=directory)
    for observations, actions in zip(files[::2], files[1::2], strict=True):
        shown, played = dict(np.load(observations)), []
        words = shown["words"].tolist()
        policy.reset()
        for pictures, states, seeds in zip(shown["pictures"], shown["states"], shown["seeds"], strict=True):
            pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous().type(torch.float32) / 255
            batch = before({picture_of(config.type): pixels, STATE: torch.from_numpy(states), "task": words})
            torch.manual_seed(int(seeds[0]))
            at_once = config.type in DRAWN_AT_ONCE
            drawn = contextlib.nullcontext() if at_once else noise.NoiseOfEntries([*map(int, seeds)])
            with torch.inference_mode(), drawn:
                action = policy.select_action(batch)
            played.append(after(action).numpy())
        np.save(actions, np.stack(played))


if __name__ == "__main__":
    importlib.import_module("lerobot.utils.import_utils").register_third_party_plugins()
    {"make": make, "play": play}[sys.argv[1]](*sys.argv[2:])
