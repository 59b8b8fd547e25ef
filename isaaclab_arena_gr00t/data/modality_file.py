"""Read and write ``modality.json``, which assigns a dataset's numbers and videos to a model's groups and pictures."""

from collections.abc import Mapping
from typing import Any

from isaaclab_arena_gr00t.data.features import DatasetFeatures
from isaaclab_arena_gr00t.data.files import layout
from isaaclab_arena_gr00t.data.foreign import Fields

_MAX_NUMBERS = 65_536
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
    """Return the column of each group of a modality, and where the group begins and ends in it.

    Args:
        document: Content of ``modality.json``.
        modality: ``state`` or ``action``.

    Raises:
        StorageError: If something is missing or wrong.
    """
    default = _COLUMN_OF_MODALITY[modality]
    found = {}
    for key, group in Fields(document, layout.MODALITY_FILE).optional_mapping(modality).mappings().items():
        start = group.integer("start", 0, _MAX_NUMBERS)
        found[key] = (group.optional_text("original_key", default), start, group.integer("end", start, _MAX_NUMBERS))
    return found


def video_columns(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the video feature for each of the model's pictures; see `groups_of`."""
    videos = Fields(document, layout.MODALITY_FILE).optional_mapping("video").mappings()
    return {key: video.optional_text("original_key", layout.PICTURES_PREFIX + key) for key, video in videos.items()}
