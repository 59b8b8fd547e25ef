import json
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace


class FeatureType(StrEnum):
    VISUAL = "VISUAL"
    STATE = "STATE"
    ACTION = "ACTION"


class PreTrainedConfig(SimpleNamespace):
    """The settings of a policy, as LeRobot has read them."""

    @classmethod
    def from_pretrained(cls, directory):
        document = json.loads((Path(directory) / "config.json").read_text())
        config = cls(**{**document, **document.get("read_as", {})})
        config.input_features = {
            name: SimpleNamespace(type=FeatureType(feature["type"]), shape=tuple(feature["shape"]))
            for name, feature in config.input_features.items()
        }
        return config
