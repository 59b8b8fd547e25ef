"""Describe one robot in a checkpoint."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gr00t.data.statistics import KeyStatistics
from gr00t.data.types import MODALITIES, ModalityConfig, ModalityConfigs
from gr00t.errors import EmbodimentError
from gr00t.model.normalization import Normalization, Scaling, scaling


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """One robot: its modalities and their statistics."""

    embodiment_id: int  # index of its projectors in the model
    modality_configs: ModalityConfigs
    statistics: dict[str, dict[str, KeyStatistics]]  # ``{"state": {key: statistics}, "action": {key: statistics}}``

    def __post_init__(self) -> None:
        for modality in MODALITIES:
            if modality not in self.modality_configs:
                raise EmbodimentError(
                    f"the modality configuration lacks '{modality}'; it needs {', '.join(MODALITIES)}"
                )
        # Policies use one instruction of the present step.
        language = self.modality_configs["language"]
        if not language.modality_keys or len(language.delta_indices) != 1:
            raise EmbodimentError(
                f"language needs a key and exactly one delta index, got {language.modality_keys} and "
                f"{language.delta_indices}"
            )
        for modality in ("state", "action"):
            for key in self.modality_configs[modality].modality_keys:
                if key not in self.statistics.get(modality, {}):
                    raise EmbodimentError(f"there are no statistics for {modality} '{key}'")

    @property
    def language_key(self) -> str:
        """The key of the instruction; the first if there are several."""
        return self.modality_configs["language"].modality_keys[0]

    @cached_property
    def dimensions(self) -> dict[str, dict[str, int]]:
        """Size of each key: ``{"state": {key: dimension}, "action": {key: dimension}}``, in the model's order."""
        return {
            modality: {
                key: len(self.statistics[modality][key]["min"]) for key in self.modality_configs[modality].modality_keys
            }
            for modality in ("state", "action")
        }

    def scaling(self, modality: str, method: Normalization) -> Scaling:
        """Return the scaling of all keys of ``state`` or ``action``, one after the other."""
        return scaling(
            [self.statistics[modality][key] for key in self.modality_configs[modality].modality_keys], method
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        configs = {
            modality: {"delta_indices": list(config.delta_indices), "modality_keys": list(config.modality_keys)}
            for modality, config in self.modality_configs.items()
        }
        return {"embodiment_id": self.embodiment_id, "modality_configs": configs, "statistics": self.statistics}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Embodiment":
        """Undo ``to_dict``."""
        kept = content["modality_configs"]
        # JSON may have changed the order.
        configs = {modality: ModalityConfig(**kept[modality]) for modality in MODALITIES if modality in kept}
        return cls(embodiment_id=content["embodiment_id"], modality_configs=configs, statistics=content["statistics"])
