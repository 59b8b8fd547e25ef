"""Describe a model's inputs and outputs, as far as an environment needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from isaaclab_arena.errors import ConfigError, Problem


class Modality(Protocol):
    """The part of ``gr00t.data.types.ModalityConfig`` that this package reads."""

    @property
    def delta_indices(self) -> Any:
        """Steps relative to now."""
        ...

    @property
    def modality_keys(self) -> Any:
        """Names of the entries, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class StatedModality:
    """One modality in a checkpoint's files or a server's answer; further values of a `Modality` are ignored."""

    delta_indices: Sequence[int]
    modality_keys: Sequence[str]


Dimensions = Mapping[str, Mapping[str, int]]
"""``state`` and ``action`` to the size of each key."""

PRESENT = (0,)
"""The steps of a model that uses the present step only."""

_LONGEST_HISTORY = 256
"""Largest number of remembered control steps; a model or a server that asks for more is wrong, or an attack."""


@dataclass(frozen=True, kw_only=True)
class ModelInterface:
    """What a model takes and gives.

    Attributes:
        video_keys: Names of its pictures, in order.
        state_keys: Names of the groups of its state.
        action_keys: Names of the groups of its action.
        language_keys: Names of its instruction. A model with several uses the first, and may require all.
        horizon: Control steps that it predicts.
        dimensions: Size of each state and action key, None if the model does not say.
        video_steps: Control steps of its pictures: 0 is the present one, -15 the one 15 steps before.
        state_steps: Control steps of its state.
    """

    video_keys: tuple[str, ...]
    state_keys: tuple[str, ...]
    action_keys: tuple[str, ...]
    language_keys: tuple[str, ...]
    horizon: int
    dimensions: Dimensions | None = None
    video_steps: tuple[int, ...] = PRESENT
    state_steps: tuple[int, ...] = PRESENT


def model_interface(modalities: Mapping[str, Modality], dimensions: Dimensions | None) -> ModelInterface:
    """Return a model's inputs and outputs, from its modality configuration.

    Raises:
        ConfigError: If it needs future steps or steps too long ago, or takes no instruction.
    """
    keys = {name: tuple(modality.modality_keys) for name, modality in modalities.items()}
    steps = {name: tuple(modalities[name].delta_indices) if keys.get(name) else PRESENT for name in ("video", "state")}
    problems = [
        Problem(
            f"the model wants '{name}' at the steps {str(list(wanted))[:100]}; the present one, 0, and up to "
            f"{_LONGEST_HISTORY} before it, -{_LONGEST_HISTORY}, are given"
        )
        for name, wanted in steps.items()
        if not 1 <= len(wanted) <= _LONGEST_HISTORY + 1 or min(wanted) < -_LONGEST_HISTORY or max(wanted) > 0
    ]
    languages = keys.get("language", ())
    if not languages:
        problems.append(Problem("the model takes no instruction"))
    if not keys.get("action"):
        problems.append(Problem("the model has no actions"))
    if problems:
        raise ConfigError(problems)
    return ModelInterface(
        video_keys=keys.get("video", ()),
        state_keys=keys.get("state", ()),
        action_keys=keys["action"],
        language_keys=languages,
        horizon=len(list(modalities["action"].delta_indices)),
        dimensions=dimensions,
        video_steps=steps["video"],
        state_steps=steps["state"],
    )
