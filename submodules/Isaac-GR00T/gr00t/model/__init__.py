"""The model. Importing this package registers it with transformers, so that checkpoints need no code of their own."""

from transformers import AutoConfig, AutoModel, AutoProcessor

from gr00t.model.modeling import Gr00tSmall, Gr00tSmallConfig
from gr00t.model.processing import Gr00tSmallProcessor

AutoConfig.register(Gr00tSmallConfig.model_type, Gr00tSmallConfig, exist_ok=True)
AutoModel.register(Gr00tSmallConfig, Gr00tSmall, exist_ok=True)
AutoProcessor.register(Gr00tSmallConfig, Gr00tSmallProcessor, exist_ok=True)
