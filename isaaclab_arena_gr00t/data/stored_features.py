"""Map a dataset's columns to recorded arrays, by ``arena.json``, else by ``modality.json``, else unchanged."""

import re
from collections.abc import Mapping
from typing import Any

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena_gr00t.data.columns import Column, whole_arrays
from isaaclab_arena_gr00t.data.features import Camera, DatasetFeatures, features_of_document
from isaaclab_arena_gr00t.data.files import layout
from isaaclab_arena_gr00t.data.modality_file import groups_of, video_columns
from isaaclab_arena_gr00t.data.stored_dataset import StoredDataset, frame_size

_MAX_NUMBERS = 65_536
_PATH = re.compile(r"[^/\x00-\x1f]{1,200}(/[^/\x00-\x1f]{1,200}){0,8}")


def stored_features(dataset: StoredDataset) -> DatasetFeatures:
    """Return the recorded arrays for a dataset's columns and videos.

    Raises:
        ConfigError: If one of its JSON files is malformed.
        StorageError: If its files contradict each other, or it has no actions.
    """
    try:
        arena = dataset.document(layout.ARENA_FILE)
        features = _foreign(dataset) if arena is None else _own(arena)
        _check(features, dataset)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        words = plain_text(f"{type(error).__name__}: {error}")[:500]
        raise StorageError(f"{dataset.root} is not as LeRobot has it: {words}") from error
    return features


def _own(arena: Mapping[str, Any]) -> DatasetFeatures:
    if arena.get("schema_version") != layout.ARENA_SCHEMA_VERSION:
        raise ValueError(f"{layout.ARENA_FILE} has schema version {arena.get('schema_version')}")
    return features_of_document(arena["features"])


def _foreign(dataset: StoredDataset) -> DatasetFeatures:
    modality = dataset.document(layout.MODALITY_FILE) or {}
    states = {key: span for key, span in groups_of(modality, "state").items() if span[0] == layout.STATE}
    vectors = {}
    for name, feature in dataset.features.items():
        if name.startswith("observation.") and _is_vector(feature):
            vectors[name] = _observed(name, _size(feature), states if name == layout.STATE else {})
    vectors[layout.ACTION] = whole_arrays({"action": (recorded.ACTIONS, dataset.size(layout.ACTION))})
    keys = {feature: key for key, feature in video_columns(modality).items()}
    cameras = {}
    for name in dataset.picture_features:
        key = keys.get(name, name.removeprefix(layout.PICTURES_PREFIX))
        height, width = frame_size(dataset.features[name]["shape"])
        cameras[name.removeprefix(layout.PICTURES_PREFIX)] = Camera(
            path=f"{recorded.CAMERA_OBSERVATIONS}/{key}", height=height, width=width
        )
    return DatasetFeatures(vectors=vectors, cameras=cameras, rewards=layout.REWARD in dataset.features)


def _observed(name: str, size: int, groups: Mapping[str, tuple[str, int, int]]) -> Column:
    """Return a column of observations: its groups if they cover it completely, else one observation."""
    ordered = sorted(groups.items(), key=lambda item: item[1][1:])
    ends = [0, *(end for _, (_, _, end) in ordered)]
    if (
        ordered
        and ends[-1] == size
        and all(start == end for (_, (_, start, _)), end in zip(ordered, ends, strict=False))
    ):
        sizes = {key: (f"{recorded.OBSERVATIONS}/{key}", end - start) for key, (_, start, end) in ordered}
        return whole_arrays(sizes)
    term = name.removeprefix("observation.").replace(".", "_")
    return whole_arrays({term: (f"{recorded.OBSERVATIONS}/{term}", size)})


def _check(features: DatasetFeatures, dataset: StoredDataset) -> None:
    if layout.ACTION not in features.vectors:
        raise ValueError(f"{layout.ARENA_FILE} names no column '{layout.ACTION}'")
    for name, column in features.vectors.items():
        found = dataset.size(name)
        if any(size < 1 for size in column.sources.values()) or sum(column.sources.values()) > _MAX_NUMBERS:
            raise ValueError(f"the sources of '{name}' have no sizes from 1 to {_MAX_NUMBERS} together")
        if any(not _PATH.fullmatch(path) for path in column.sources):
            raise ValueError(f"the sources of '{name}' are no paths of recorded arrays")
        if column.size != found or len(column.names) != found:
            raise ValueError(f"'{name}' has {found} numbers in {layout.INFO_FILE}, {column.size} elsewhere")
        places = range(sum(column.sources.values()))
        if any(place not in places for group in column.groups.values() for place in group):
            raise ValueError(f"the groups of '{name}' go beyond it")
    for key, camera in features.cameras.items():
        height, width = frame_size(dataset.features[video_feature(dataset, key)]["shape"])
        if not _PATH.fullmatch(camera.path):
            raise ValueError(f"the path of '{key}' is none of a recorded array")
        if not (0 < camera.height <= height and 0 < camera.width <= width):
            raise ValueError(f"the pictures of '{key}' are smaller than {layout.ARENA_FILE} says")


def video_feature(dataset: StoredDataset, key: str) -> str:
    """Return the video feature of a camera of `stored_features`; some datasets lack its prefix."""
    prefixed = layout.PICTURES_PREFIX + key
    return prefixed if prefixed in dataset.features else key


def _is_vector(feature: Mapping[str, Any]) -> bool:
    return "float" in str(feature["dtype"]) and len(feature["shape"]) == 1


def _size(feature: Mapping[str, Any]) -> int:
    (size,) = feature["shape"]
    return int(size)
