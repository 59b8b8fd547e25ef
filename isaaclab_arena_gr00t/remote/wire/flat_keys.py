"""Convert to and from flat keys, for GR00T servers that wrap their policy for simulation."""

from collections.abc import Mapping
from typing import Any

_ACTION = "action."


def flattened(observation: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a nested observation with the keys ``video.<camera>``, ``state.<key>`` and the instruction's own names."""
    arrays = {
        f"{modality}.{key}": values for modality in ("video", "state") for key, values in observation[modality].items()
    }
    # ``language`` contains a list of one text per env slot; flat keys have the texts alone.
    return {**arrays, **{key: [text for (text,) in texts] for key, texts in observation["language"].items()}}


def without_prefix(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with ``action.`` removed from its keys."""
    return {key.removeprefix(_ACTION): values for key, values in action.items()}
