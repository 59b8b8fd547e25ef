"""Which recorded arrays a dataset's columns are: as ``arena.json`` says, else ``modality.json``, else as they are."""

from collections.abc import Mapping
from typing import Any

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.columns import Column, whole_arrays
from isaaclab_arena_gr00t.data.features import Camera, DatasetFeatures, features_of_document
from isaaclab_arena_gr00t.data.modality_file import groups_of, video_columns
from isaaclab_arena_gr00t.data.stored_dataset import StoredDataset


def stored_features(dataset: StoredDataset) -> DatasetFeatures:
    """Return which recorded arrays a dataset's columns and videos are.

    Raises:
        ConfigError: If a file of it is no JSON.
        StorageError: If its files contradict each other, or it has no actions.
    """
    try:
        arena = dataset.document(layout.ARENA_FILE)
        features = _foreign(dataset) if arena is None else _own(arena)
        _check(features, dataset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{dataset.root} is not as LeRobot has it: {type(error).__name__}: {error}") from error
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
    vectors[layout.ACTION] = whole_arrays({"action": (recorded.ACTIONS, _size(dataset.features[layout.ACTION]))})
    keys = {feature: key for key, feature in video_columns(modality).items()}
    cameras = {}
    for name in dataset.video_features:
        key = keys.get(name, name.removeprefix(layout.PICTURES_PREFIX))
        height, width = _height_and_width(dataset.features[name])
        cameras[name.removeprefix(layout.PICTURES_PREFIX)] = Camera(
            path=f"{recorded.CAMERA_OBSERVATIONS}/{key}", height=height, width=width
        )
    return DatasetFeatures(vectors=vectors, cameras=cameras, rewards=layout.REWARD in dataset.features)


def _observed(name: str, size: int, groups: Mapping[str, tuple[str, int, int]]) -> Column:
    """Return a column of observations: the groups where they are the whole of it, else one observation."""
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
    for name, column in features.vectors.items():
        found = _size(dataset.features[name])
        if column.size != found or len(column.names) != found:
            raise ValueError(f"'{name}' has {found} numbers in {layout.INFO_FILE}, {column.size} elsewhere")
        places = range(sum(column.sources.values()))
        if any(place not in places for group in column.groups.values() for place in group):
            raise ValueError(f"the groups of '{name}' go beyond it")
    for key, camera in features.cameras.items():
        height, width = _height_and_width(dataset.features[video_feature(dataset, key)])
        if not (0 < camera.height <= height and 0 < camera.width <= width):
            raise ValueError(f"the pictures of '{key}' are smaller than {layout.ARENA_FILE} says")


def video_feature(dataset: StoredDataset, key: str) -> str:
    """Return the video feature of one of the cameras of `stored_features`; its prefix is missing in some datasets."""
    prefixed = layout.PICTURES_PREFIX + key
    return prefixed if prefixed in dataset.features else key


def _is_vector(feature: Mapping[str, Any]) -> bool:
    return "float" in str(feature["dtype"]) and len(feature["shape"]) == 1


def _size(feature: Mapping[str, Any]) -> int:
    (size,) = feature["shape"]
    return int(size)


def _height_and_width(feature: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size of a video's frames; some datasets put the channels first."""
    first, second, third = (int(length) for length in feature["shape"])
    channels_first = first == 3 and third != 3
    return (second, third) if channels_first else (first, second)
