"""Build a new model and its processor, or add a robot to an existing one."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import BertConfig, ConvNextConfig, PreTrainedTokenizerFast

from gr00t import EmbodimentError
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.data.types import KeyStatistics, ModalityConfigs
from gr00t.model.modeling import EmbodimentLinear, Gr00tSmall, Gr00tSmallConfig
from gr00t.model.processing import Embodiment, Gr00tSmallProcessor

RobotStatistics = Mapping[str, dict[str, KeyStatistics]]
"""``{"state": {key: statistics}, "action": {key: statistics}}``."""

_MAX_INSTRUCTION_TOKENS = 24
_VOCABULARY = 1024
_PADDING, _START = "[PAD]", "[CLS]"
_MANIPULATION_WORDS = """
a all an and any at away back beside behind between both by close down each every first from front get grasp grip
gripper hand hold in inside into it its lay left lift lower middle move named near next of off on one onto open other
out over pick place point pour press pull push put reach release right rotate second sort stack take the then to touch
turn two under up upright with black blue brown colour color dark gray green grey light orange pink purple red white
yellow apple ball banana basket big bin block book bottle bowl box button cabinet can cup cube cylinder disc dish door
drawer fork goal handle item knife knob lid marker microwave mug object oven pan peg plate pot shelf small spoon
switch table tool top bottom tray target
"""


def build_small_model(
    robots: Mapping[str, tuple[ModalityConfigs, RobotStatistics]],
    *,
    instructions: Iterable[str] = (),
    image_size: int = 64,
    seed: int = 0,
    sizes: Mapping[str, Any] | None = None,
) -> tuple[Gr00tSmall, Gr00tSmallProcessor]:
    """Return a model with random weights for some robots, and its processor; EmbodimentError for a wrong robot."""
    embodiments = {
        EmbodimentTag.resolve(tag).value: Embodiment(
            embodiment_id=index, modality_configs=dict(configs), statistics=dict(statistics)
        )
        for index, (tag, (configs, statistics)) in enumerate(robots.items())
    }

    # Train a byte-level tokenizer with one token per known word, as far as the vocabulary allows; 256 tokens are bytes.
    # It splits an unknown word into shorter pieces, down to bytes, so it can encode every text. It ignores case.
    tokens = Tokenizer(models.BPE())
    tokens.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        min_frequency=1,
        special_tokens=[_PADDING, _START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator([*sorted(set(instructions)), _MANIPULATION_WORDS], trainer)
    # With a start token even an empty instruction has a token.
    tokens.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", special_tokens=[(_START, tokens.token_to_id(_START))]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token=_PADDING, cls_token=_START)

    capacity = _capacity(list(embodiments.values()))
    processor = Gr00tSmallProcessor(
        tokenizer,
        embodiments={tag: embodiment.to_dict() for tag, embodiment in embodiments.items()},
        capacity=capacity,
        image_size=image_size,
        max_instruction_tokens=_MAX_INSTRUCTION_TOKENS,
    )
    # A ConvNeXt of 0.1 million parameters that keeps a quarter and an eighth of the image's resolution.
    vision: dict[str, Any] = {
        "patch_size": 4,
        "num_stages": 2,
        "hidden_sizes": [32, 64],
        "depths": [1, 2],
        "layer_scale_init_value": 0.1,
        "initializer_range": 0.1,
        "out_features": ["stage1", "stage2"],
    }
    # `sizes` replaces fields of the configuration, such as ``hidden_size`` or a whole ``vision_config``.
    fields: dict[str, Any] = {
        "vision_config": ConvNextConfig(**vision),
        # A BERT of two layers, without dropout, because an instruction is short and every word matters.
        "text_config": BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=_MAX_INSTRUCTION_TOKENS,
            type_vocab_size=1,
            initializer_range=0.08,
            pad_token_id=0,
            use_cache=False,
        ),
        "num_embodiments": len(embodiments),
        **capacity,
        **(sizes or {}),
    }
    return _random_model(Gr00tSmallConfig(**fields), seed=seed), processor


def add_embodiment(
    model: Gr00tSmall,
    processor: Gr00tSmallProcessor,
    embodiment_tag: str,
    modality_configs: ModalityConfigs,
    statistics: RobotStatistics,
    *,
    seed: int = 0,
) -> tuple[Gr00tSmall, Gr00tSmallProcessor]:
    """Return a copy of a model with projectors for one more robot, and its processor."""
    tag = EmbodimentTag.resolve(embodiment_tag).value
    known = {name: processor.embodiment(name) for name in processor.embodiments}
    added = Embodiment(embodiment_id=len(known), modality_configs=dict(modality_configs), statistics=dict(statistics))
    # A known robot keeps its projectors and statistics, because they belong together.
    if tag in known:
        for modality, config in known[tag].modality_configs.items():
            other = added.modality_configs[modality]
            is_same = list(config.modality_keys) == list(other.modality_keys)
            if not is_same or list(config.delta_indices) != list(other.delta_indices):
                raise EmbodimentError(
                    f"the model knows '{tag}' with {modality} {', '.join(config.modality_keys)} of "
                    f"{len(config.delta_indices)} steps, and {', '.join(other.modality_keys)} of "
                    f"{len(other.delta_indices)} are wanted; choose another tag"
                )
        if known[tag].dimensions != added.dimensions:
            raise EmbodimentError(
                f"the model knows '{tag}' with dimensions {known[tag].dimensions}, and {added.dimensions} are wanted; "
                "choose another tag"
            )
        return model, processor
    capacity = _capacity([*known.values(), added])
    longest, wanted = model.config.action_horizon, capacity["action_horizon"]
    if wanted > longest:
        raise EmbodimentError(f"the model predicts at most {longest} action steps, and {wanted} are wanted")
    config = copy.deepcopy(model.config)
    for name, size in {"num_embodiments": len(known) + 1, **capacity}.items():
        setattr(config, name, size)

    # Copy all weights; the new part of a layer that has grown does not affect the known robots.
    larger = _random_model(config, seed=seed)
    layers = [module for module in larger.modules() if isinstance(module, EmbodimentLinear)]
    per_robot = {id(parameter) for layer in layers for parameter in layer.parameters()}
    weights: dict[str, Tensor] = model.state_dict()
    with torch.no_grad():
        for name, tensor in larger.state_dict(keep_vars=True).items():
            if id(tensor) in per_robot:
                tensor[: len(known)] = 0.0
            tensor[tuple(slice(0, length) for length in weights[name].shape)] = weights[name]
    return larger, Gr00tSmallProcessor(
        processor.tokenizer,
        embodiments={name: embodiment.to_dict() for name, embodiment in (known | {tag: added}).items()},
        capacity=capacity,
        image_size=processor.image_size,
        max_instruction_tokens=processor.max_instruction_tokens,
        random_shift_px=processor.random_shift_px,
    )


def _random_model(config: Gr00tSmallConfig, *, seed: int) -> Gr00tSmall:
    """Return a model with random weights; torch's global generator keeps its state."""
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        return Gr00tSmall(config)


def _capacity(embodiments: list[Embodiment]) -> dict[str, int]:
    """Return the sizes that suffice for every robot."""
    configs = [embodiment.modality_configs for embodiment in embodiments]
    return {
        "max_views": max(len(each["video"].modality_keys) * len(each["video"].delta_indices) for each in configs),
        "max_state_horizon": max(len(each["state"].delta_indices) for each in configs),
        "max_state_dim": max(sum(embodiment.dimensions["state"].values()) for embodiment in embodiments),
        "action_horizon": max(len(each["action"].delta_indices) for each in configs),
        "max_action_dim": max(sum(embodiment.dimensions["action"].values()) for embodiment in embodiments),
    }
