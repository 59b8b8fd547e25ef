"""Makes small backbones of vision-language-action models, with weights of chance; for LeRobot's interpreter."""

import importlib
from typing import Any

LETTERS = [*map(chr, range(32, 127)), "\n"]
NO_LETTERS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
OF_PICTURES = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}


def tokenizer(**extra: str) -> Any:
    """Return a tokenizer that tells letters.

    Args:
        extra: Further tokens that are no letters, by name.
    """
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    words = [*NO_LETTERS.values(), *extra.values(), *LETTERS]
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    letters = tokenizers.Tokenizer(model)
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **NO_LETTERS, extra_special_tokens=extra)


def make_smolvlm(directory: str) -> None:
    """Make what SmolVLA finds under the name of its backbone."""
    transformers: Any = importlib.import_module("transformers")
    letters = tokenizer(**OF_PICTURES)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.SmolVLMConfig(
        image_token_id=letters.image_token_id,
        pad_token_id=letters.pad_token_id,
        vision_config={**vision, "image_size": 32, "patch_size": 8},
        text_config={
            **text,
            "model_type": "llama",
            "vocab_size": len(letters),
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pad_token_id": letters.pad_token_id,
        },
    )
    pictures, videos = transformers.SmolVLMImageProcessor(), transformers.SmolVLMVideoProcessor()
    for part in (config, transformers.SmolVLMProcessor(pictures, letters, videos, image_seq_len=4)):
        part.save_pretrained(directory)


def florence() -> dict[str, Any]:
    """Return the configuration of the backbone of X-VLA."""
    twos, ones = [2] * 4, [1] * 4
    vision = {
        "dim_embed": [16, 32, 32, 32],
        "num_heads": twos,
        "num_groups": twos,
        "depths": ones,
        "window_size": 4,
        "projection_dim": 32,
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
    }
    halves = ("encoder", "decoder")
    text = {
        "vocab_size": len(NO_LETTERS) + len(LETTERS),
        "d_model": 32,
        **{f"{half}_layers": 1 for half in halves},
        **{f"{half}_ffn_dim": 64 for half in halves},
        **{f"{half}_attention_heads": 2 for half in halves},
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    return {"vision_config": vision, "text_config": text, "vocab_size": text["vocab_size"], "projection_dim": 32}
