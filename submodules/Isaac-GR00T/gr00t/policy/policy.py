"""Define the interface of every policy."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from gr00t.data.types import ModalityConfig


class BasePolicy(ABC):
    """A policy, which answers a batch of observations with a batch of action chunks.

    Args:
        strict: True to check observations and actions against the modality configuration.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return one action chunk for each entry of a batch, and further information.

        Args:
            observation: ``video`` {camera: uint8 (B, T, H, W, 3)}, ``state`` {key: float32 (B, T, D)} and
                ``language`` {key: list of B lists of one str}.
            options: Further options of an implementation.

        Returns:
            {action key: float32 (B, horizon, D)} in physical units, and a dict of information.

        Raises:
            ValueError: If ``strict`` and the observation or the action does not match the modality configuration.
        """
        if self.strict:
            self.check_observation(observation)
        action, info = self._get_action(observation, options)
        if self.strict:
            self.check_action(action)
        return action, info

    @abstractmethod
    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise a ``ValueError`` that names the problem of an observation."""

    @abstractmethod
    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Raise a ``ValueError`` that names the problem of an action."""

    @abstractmethod
    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the policy's inputs and outputs: one entry each for video, state, action and language."""

    @abstractmethod
    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Forget the state of earlier episodes, and return a dict of information."""

    @abstractmethod
    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Do the work of ``get_action``, without checks."""
