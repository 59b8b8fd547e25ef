"""Makes pi0 and pi0.5 of LeRobot small, which have two sizes alone; LeRobot imports packages of such a name itself."""

import importlib
from typing import Any

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 16,
    "projection_dim": 64,
}
LANGUAGE = {"width": 64, "depth": 2, "mlp_dim": 128, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32}

_full_size: Any = importlib.import_module("transformers.models.paligemma.modeling_paligemma")


def small_backbone(config: Any) -> Any:
    """Return a backbone whose eyes are small; what it speaks with is small already."""
    for name, value in VISION.items():
        setattr(config.vision_config, name, value)
    config.projection_dim = VISION["projection_dim"]
    return _full_size.PaliGemmaForConditionalGeneration(config)


for kind in ("pi0", "pi05"):
    module: Any = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    module.PaliGemmaForConditionalGeneration = small_backbone
    module.get_gemma_config = lambda _, config=module.GemmaConfig: config(**LANGUAGE)
