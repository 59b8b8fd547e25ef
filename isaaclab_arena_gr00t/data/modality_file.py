"""``modality.json``: which numbers of a column are which group, and which video is which of the model's pictures."""

from collections.abc import Mapping
from typing import Any

from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.features import DatasetFeatures

_COLUMN_OF_MODALITY = {"state": layout.STATE, "action": layout.ACTION}


def modality_document(features: DatasetFeatures) -> dict[str, Any]:
    """Return the content of ``modality.json``, which GR00T's finetuning reads."""
    document: dict[str, Any] = {
        modality: {
            key: {"start": start, "end": end}
            for key, (start, end) in (features.vectors[column].spans() if column in features.vectors else {}).items()
        }
        for modality, column in _COLUMN_OF_MODALITY.items()
    }
    document["video"] = {key: {"original_key": layout.PICTURES_PREFIX + key} for key in features.cameras}
    document["annotation"] = {layout.ANNOTATION.removeprefix("annotation."): {"original_key": layout.ANNOTATION}}
    return document


def groups_of(document: Mapping[str, Any], modality: str) -> dict[str, tuple[str, int, int]]:
    """Return, for each group of a modality, its column and where it begins and ends there.

    Args:
        document: Content of ``modality.json``.
        modality: ``state`` or ``action``.

    Raises:
        KeyError: If something is missing.
        TypeError: If something is of another type.
        ValueError: If something has another value.
    """
    default = _COLUMN_OF_MODALITY[modality]
    return {
        str(key): (str(group.get("original_key") or default), int(group["start"]), int(group["end"]))
        for key, group in document.get(modality, {}).items()
    }


def video_columns(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the video feature of each of the model's pictures; see `groups_of`."""
    return {
        str(key): str(video.get("original_key") or layout.PICTURES_PREFIX + key)
        for key, video in document.get("video", {}).items()
    }
