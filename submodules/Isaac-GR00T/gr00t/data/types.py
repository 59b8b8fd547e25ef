"""Define modalities and their configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

MODALITIES = ("video", "state", "action", "language")


@dataclass(frozen=True)
class ModalityConfig:
    """The entries of one modality that a model takes or gives, and their time steps.

    Attributes:
        delta_indices: Steps relative to now: ``[0]`` is now, ``[-1, 0]`` the last step and now. Actions have
            ``range(horizon)``.
        modality_keys: Names of the entries, in the order in which the model holds them.
    """

    delta_indices: list[int]
    modality_keys: list[str]


ModalityConfigs: TypeAlias = Mapping[str, ModalityConfig]
"""One configuration for each of ``video``, ``state``, ``action`` and ``language``."""
