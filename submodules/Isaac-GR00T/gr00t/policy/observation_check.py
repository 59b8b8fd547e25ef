"""Check observations and actions against a robot's modality configuration."""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gr00t.data.types import ModalityConfig, ModalityConfigs
from gr00t.errors import ActionError, ObservationError

_OBSERVED = ("video", "state", "language")


def check_observation(
    observation: Mapping[str, Any], configs: ModalityConfigs, dimensions: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """Check an observation, and return the names of entries that the model ignores, such as ``state.gripper``."""
    # ObservationError at the first problem, with the entry, its value and the expected one.
    _check_mapping(observation, "observation")
    batch_sizes: dict[str, int] = {}
    ignored: list[str] = []
    for modality in _OBSERVED:
        if modality not in observation:
            raise ObservationError(f"the observation lacks '{modality}'; it needs {', '.join(_OBSERVED)}")
        entries, config = observation[modality], configs[modality]
        _check_mapping(entries, f"observation['{modality}']")
        for place, key in enumerate(config.modality_keys):
            if key not in entries:
                if modality == "language" and place > 0:
                    continue  # Only the first is used.
                raise ObservationError(
                    f"{modality} lacks '{key}'; it needs {config.modality_keys} and has {_SHORT.repr(list(entries))}"
                )
            batch_sizes[f"{modality} '{key}'"] = _check_entry(modality, key, entries[key], config, dimensions)
        ignored += [f"{modality}.{str(key)[:60]}" for key in entries if key not in config.modality_keys]
    _check_batch_sizes(batch_sizes)
    return tuple(ignored)


def check_action(action: Mapping[str, np.ndarray], config: ModalityConfig, dimensions: Mapping[str, int]) -> None:
    """Refuse actions with wrong keys, shapes or types, or numbers that are not finite: ActionError."""
    if set(action) != set(config.modality_keys):
        raise ActionError(f"the action has the keys {sorted(action)}, and should have {sorted(config.modality_keys)}")
    for key, values in action.items():
        shape = (len(config.delta_indices), dimensions[key])
        if values.dtype != np.float32 or values.ndim != 3 or values.shape[1:] != shape:
            raise ActionError(
                f"action '{key}' is {_describe(values)}, and should be float32 of shape (B, {shape[0]}, {shape[1]})"
            )
        if not np.isfinite(values).all():
            raise ActionError(f"action '{key}' holds numbers that are not finite")


def _check_entry(
    modality: str, key: str, entry: Any, config: ModalityConfig, dimensions: Mapping[str, Mapping[str, int]]
) -> int:
    """Check one entry and return its batch size."""
    steps = len(config.delta_indices)
    if modality == "language":
        return _check_language(key, entry)
    if modality == "video":
        return _check_array(f"video '{key}'", entry, np.uint8, (steps, None, None, 3))
    size = _check_array(f"state '{key}'", entry, np.float32, (steps, dimensions["state"][key]))
    if not _is_finite(entry):
        raise ObservationError(f"state '{key}' holds numbers that are not finite")
    return size


def _check_array(name: str, array: Any, dtype: type, shape: tuple[int | None, ...]) -> int:
    """Check type and shape after the batch dimension (None: any positive size), and return the batch size."""
    fits = (
        isinstance(array, (np.ndarray, torch.Tensor))
        and _type_name(array) == dtype.__name__
        and array.ndim == len(shape) + 1
        and all(actual > 0 and wanted in (None, actual) for actual, wanted in zip(array.shape[1:], shape, strict=True))
    )
    if not fits:
        wanted = ", ".join(["B", *("any" if size is None else str(size) for size in shape)])
        raise ObservationError(f"{name} is {_describe(array)}, and should be {dtype.__name__} of shape ({wanted})")
    return len(array)


def _is_finite(values: np.ndarray | torch.Tensor) -> bool:
    """Whether all numbers are finite; numbers on a GPU count as finite, because the CPU would have to wait."""
    if isinstance(values, torch.Tensor):
        return not values.is_cpu or bool(torch.isfinite(values).all())
    return bool(np.isfinite(values).all())


def _type_name(array: np.ndarray | torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_language(key: str, instructions: Any) -> int:
    fits = isinstance(instructions, (list, tuple)) and all(
        isinstance(texts, (list, tuple)) and len(texts) == 1 and isinstance(texts[0], str) for texts in instructions
    )
    if not fits:
        raise ObservationError(
            f"language '{key}' should be a list of B lists of one str each, and is {_describe(instructions)}"
        )
    return len(instructions)


def _check_batch_sizes(sizes: Mapping[str, int]) -> None:
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ObservationError(f"the entries of the observation differ in their batch size: {listed}")
    if 0 in sizes.values():
        raise ObservationError("the observation's batch is empty")


def _check_mapping(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise ObservationError(f"{name} should be a dict, and is {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{_type_name(value)} of shape {tuple(value.shape)}"
    text = _SHORT.repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class _ShortRepr(reprlib.Repr):
    """Prints only the beginning of a value, because it may be as large as a message."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlist = 20

    def repr_bytes(self, x: bytes, level: int) -> str:
        del level
        return repr(x[:60])


_SHORT = _ShortRepr()


def check_continued(going_on: Any, dimensions: Mapping[str, int], *, batch_size: int) -> None:
    """Raise an ``ObservationError`` if actions cannot continue the query's option ``continued``."""
    given: Mapping[str, Any] = going_on if isinstance(going_on, Mapping) else {}
    actions, weights = given.get("actions"), np.asarray(given.get("weights", 0.0))
    steps = weights.shape[1] if weights.ndim == 2 else 0
    due = {key: (batch_size, steps, size) for key, size in dimensions.items()}
    found = {key: np.shape(values) for key, values in actions.items()} if isinstance(actions, Mapping) else None
    if found != due or weights.shape != (batch_size, steps) or not steps:
        raise ObservationError(
            f"options['continued'] needs actions of the shapes {due} and weights of shape ({batch_size}, steps), got "
            f"{found} and {weights.shape}"
        )
