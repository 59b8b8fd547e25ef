"""What a model takes and gives, as far as an environment is concerned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from isaaclab_arena.errors import ConfigError, Problem


class Modality(Protocol):
    """What this package reads of ``gr00t.data.types.ModalityConfig``."""

    delta_indices: Any
    modality_keys: Any


Dimensions = Mapping[str, Mapping[str, int]]
"""``state`` and ``action`` to the size of each key."""


@dataclass(frozen=True, kw_only=True)
class ModelInterface:
    """What a model takes and gives.

    Attributes:
        video_keys: Names of its pictures, in order.
        state_keys: Names of the groups of its state.
        action_keys: Names of the groups of its action.
        language_key: Name of its instruction.
        horizon: Control steps that it predicts.
        dimensions: Size of each state and action key, None where the model does not say.
    """

    video_keys: tuple[str, ...]
    state_keys: tuple[str, ...]
    action_keys: tuple[str, ...]
    language_key: str
    horizon: int
    dimensions: Dimensions | None = None


def model_interface(modalities: Mapping[str, Modality], dimensions: Dimensions | None) -> ModelInterface:
    """Return what a model takes and gives, from its modality configuration.

    Raises:
        ConfigError: If it needs something that is not given here: earlier frames, or more than one instruction.
    """
    keys = {name: tuple(modality.modality_keys) for name, modality in modalities.items()}
    problems = [
        Problem(
            f"the model wants '{name}' at the steps {list(modality.delta_indices)}; only the present one, [0], is given"
        )
        for name, modality in modalities.items()
        if name in {"video", "state"} and modality.modality_keys and list(modality.delta_indices) != [0]
    ]
    languages = keys.get("language", ())
    if len(languages) != 1:
        problems.append(Problem(f"the model must take exactly one instruction, it takes {len(languages)}"))
    if not keys.get("action"):
        problems.append(Problem("the model has no actions"))
    if problems:
        raise ConfigError(problems)
    return ModelInterface(
        video_keys=keys.get("video", ()),
        state_keys=keys.get("state", ()),
        action_keys=keys["action"],
        language_key=languages[0],
        horizon=len(list(modalities["action"].delta_indices)),
        dimensions=dimensions,
    )
