"""Define the sizes of the model, which ``config.json`` keeps."""

from typing import Any, ClassVar

from transformers import BertConfig, ConvNextConfig, PreTrainedConfig


class Gr00tSmallConfig(PreTrainedConfig):
    """Sizes of a small vision-language-action model.

    Attributes:
        vision_config: The convolutional backbone, one for all cameras.
        text_config: The encoder of the instruction.
        num_embodiments: How many robots have projectors of their own.
        max_views: Images of one observation: cameras times video steps.
        max_state_horizon: State steps of one observation.
        max_state_dim: Numbers of one state step, over all state keys.
        action_horizon: Steps of one action chunk.
        max_action_dim: Numbers of one action step, over all action keys.
        hidden_size: Width of the action head.
        num_layers: Blocks of the action head.
        num_attention_heads: Attention heads of the action head.
        mlp_ratio: Width inside a block's feed-forward part, in units of ``hidden_size``.
        vision_feature_size: Channels of the feature map that keypoints are found in.
        num_keypoints: Keypoints per image.
        num_patches: Edge of the coarse grid of tokens per image.
        num_inference_timesteps: Euler steps from noise to action.
        num_timestep_buckets: Scale of the flow time before its sinusoidal embedding.
        noise_beta_alpha: Flow times for training are drawn from Beta(alpha, 1), which prefers noise.
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


def small_vision_config() -> ConvNextConfig:
    """Return a ConvNeXt of 0.1 million parameters that keeps a quarter and an eighth of the image's resolution."""
    sizes: dict[str, Any] = {
        "patch_size": 4,
        "num_stages": 2,
        "hidden_sizes": [32, 64],
        "depths": [1, 2],
        "layer_scale_init_value": 0.1,
        "initializer_range": 0.1,
        "out_features": ["stage1", "stage2"],
    }
    return ConvNextConfig(**sizes)


def small_text_config(vocab_size: int, max_instruction_tokens: int) -> BertConfig:
    """Return a BERT of two layers, without dropout, because an instruction is short and every word matters."""
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=max_instruction_tokens,
        type_vocab_size=1,
        initializer_range=0.08,
        pad_token_id=0,
        use_cache=False,
    )
