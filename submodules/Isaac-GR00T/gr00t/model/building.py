"""A new model and its processor, for whoever trains or tests."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.data.statistics import KeyStatistics
from gr00t.data.types import ModalityConfigs
from gr00t.model.configuration import Gr00tSmallConfig, small_text_config, small_vision_config
from gr00t.model.embodiment import Embodiment
from gr00t.model.modeling import Gr00tSmall
from gr00t.model.normalization import Normalization
from gr00t.model.processing import Gr00tSmallProcessor
from gr00t.model.tokenizer import build_tokenizer

RobotStatistics = Mapping[str, dict[str, KeyStatistics]]
"""``{"state": {key: statistics}, "action": {key: statistics}}``."""


def build_small_model(
    robots: Mapping[str, tuple[ModalityConfigs, RobotStatistics]],
    *,
    instructions: Iterable[str] = (),
    image_size: int = 64,
    normalization: Normalization = "min_max",
    max_instruction_tokens: int = 24,
    seed: int = 0,
    sizes: Mapping[str, Any] | None = None,
) -> tuple[Gr00tSmall, Gr00tSmallProcessor]:
    """Make a model with random weights that fits some robots, and the processor that goes with it.

    Args:
        robots: Modality configuration and statistics of each robot, by name or value of its tag. Dimensions
            are those of the statistics.
        instructions: Sentences of the data, for the tokenizer.
        image_size: Edge of the model's images [px].
        normalization: ``min_max``, ``q01_q99`` or ``mean_std``.
        max_instruction_tokens: Longer instructions are cut.
        seed: Of the weights; torch's global generator is left as it was.
        sizes: Other fields of ``Gr00tSmallConfig``, such as ``hidden_size`` or a ``vision_config`` of one's own.

    Raises:
        EmbodimentError: If a tag does not exist, or a modality configuration is not complete.
    """
    embodiments = {
        EmbodimentTag.resolve(tag).value: Embodiment(
            embodiment_id=index, modality_configs=dict(configs), statistics=dict(statistics)
        )
        for index, (tag, (configs, statistics)) in enumerate(robots.items())
    }
    capacity = _capacity(list(embodiments.values()))
    tokenizer = build_tokenizer(instructions)
    processor = Gr00tSmallProcessor(
        tokenizer,
        embodiments={tag: embodiment.to_dict() for tag, embodiment in embodiments.items()},
        capacity=capacity,
        image_size=image_size,
        normalization=normalization,
        max_instruction_tokens=max_instruction_tokens,
    )
    fields: dict[str, Any] = {
        "vision_config": small_vision_config(),
        "text_config": small_text_config(len(tokenizer), max_instruction_tokens),
        "num_embodiments": len(embodiments),
        **capacity,
        **(sizes or {}),
    }
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        model = Gr00tSmall(Gr00tSmallConfig(**fields))
    return model, processor


def _capacity(embodiments: list[Embodiment]) -> dict[str, int]:
    """Return the sizes that every robot fits into."""

    def steps(embodiment: Embodiment, modality: str) -> int:
        return len(embodiment.modality_configs[modality].delta_indices)

    def views(embodiment: Embodiment) -> int:
        return len(embodiment.modality_configs["video"].modality_keys) * steps(embodiment, "video")

    return {
        "max_views": max(map(views, embodiments)),
        "max_state_horizon": max(steps(embodiment, "state") for embodiment in embodiments),
        "max_state_dim": max(sum(embodiment.dimensions["state"].values()) for embodiment in embodiments),
        "action_horizon": max(steps(embodiment, "action") for embodiment in embodiments),
        "max_action_dim": max(sum(embodiment.dimensions["action"].values()) for embodiment in embodiments),
    }
