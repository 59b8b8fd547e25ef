"""Convert observations and actions with flat keys, which GR00T's simulation environments use."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gr00t.data.types import MODALITIES, ModalityConfig
from gr00t.errors import ObservationError
from gr00t.policy.policy import BasePolicy

_COARSE_ACTION = "annotation.human.coarse_action"
"""The name of the instruction in some environments, for models that call it ``task``."""
_LONGEST_NAME = 64
_MOST_NAMES = 20


class Gr00tSimPolicyWrapper(BasePolicy):
    """Lets a policy accept observations with flat keys, and answers these with flat keys too.

    They are ``video.<camera>``, ``state.<key>`` and the instruction's own name with one str per batch entry; the
    answer's are ``action.<key>``. Keys that the model does not know are ignored. Nested observations are passed on
    unchanged.

    Args:
        policy: The wrapped policy.
        strict: Accepted for NVIDIA's signature; the policy does the checks.
    """

    def __init__(self, policy: BasePolicy, *, strict: bool = True) -> None:
        del strict
        super().__init__(strict=False)
        self.policy = policy

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the inputs and outputs of the policy, with the keys of nested observations."""
        return self.policy.get_modality_config()

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Reset the policy, which forgets the state of earlier episodes."""
        return self.policy.reset(options)

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise an ``ObservationError`` that names the problem of an observation."""
        self.policy.check_observation(self._nested(observation) if is_flat(observation) else observation)

    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Raise an ``ActionError`` that names the problem of an action."""
        self.policy.check_action({key.removeprefix("action."): values for key, values in action.items()})

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if not is_flat(observation):
            return self.policy.get_action(observation, options)
        action, info = self.policy.get_action(self._nested(observation), options)
        return {f"action.{key}": values for key, values in action.items()}, info

    def _nested(self, observation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        configs = self.policy.get_modality_config()
        nested = {
            modality: {key: _entry(observation, f"{modality}.{key}") for key in configs[modality].modality_keys}
            for modality in ("video", "state")
        }
        # The policy decides about entries that it does not know.
        for name, entry in observation.items():
            modality, _, key = name.partition(".")
            if modality in nested:
                nested[modality].setdefault(key, entry)
        # If there are several names for the instruction, the first one is used.
        (key, *others) = configs["language"].modality_keys
        name = _COARSE_ACTION if key == "task" and _COARSE_ACTION in observation else key
        words = {key: _entry(observation, name)} | {each: observation[each] for each in others if each in observation}
        return {**nested, "language": {each: _nested(each, texts) for each, texts in words.items()}}


def is_flat(observation: object) -> bool:
    """Whether an observation has flat keys."""
    return (
        isinstance(observation, Mapping)
        and not any(modality in observation for modality in MODALITIES)
        and any(isinstance(key, str) and key.startswith(("video.", "state.")) for key in observation)
    )


def _entry(observation: Mapping[str, Any], key: str) -> Any:
    if key not in observation:
        found = sorted(name[:_LONGEST_NAME] for name in observation if isinstance(name, str))[:_MOST_NAMES]
        raise ObservationError(f"the observation lacks '{key}'; it has {', '.join(found)}")
    return observation[key]


def _nested(key: str, texts: Any) -> list[list[str]]:
    if not isinstance(texts, (list, tuple, np.ndarray)):
        raise ObservationError(f"'{key}' should be a list of one str per batch entry, and is a {type(texts).__name__}")
    return [[text] for text in texts]
