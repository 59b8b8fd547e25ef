"""The model. Importing this tells transformers how to load it, so that no checkpoint has to bring code of its own."""

from transformers import AutoConfig, AutoModel, AutoProcessor

from gr00t.model.configuration import Gr00tSmallConfig
from gr00t.model.modeling import Gr00tSmall
from gr00t.model.processing import Gr00tSmallProcessor

AutoConfig.register(Gr00tSmallConfig.model_type, Gr00tSmallConfig, exist_ok=True)
AutoModel.register(Gr00tSmallConfig, Gr00tSmall, exist_ok=True)
AutoProcessor.register(Gr00tSmallConfig, Gr00tSmallProcessor, exist_ok=True)
