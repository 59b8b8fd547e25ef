"""LeRobot datasets of version 2.0, 2.1 or 3.0 from any writer, read one episode at a time and converted."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.schema import folded, name_problem
from isaaclab_arena.errors import StorageError, did_you_mean
from isaaclab_arena.interfaces.episode import in_words
from isaaclab_arena.lerobot import layout
from isaaclab_arena.lerobot.layout import (
    Camera,
    Column,
    DatasetFeatures,
    TableExtent,
    episode_rows,
    read_columns,
    read_frames,
    read_pictures,
    read_rows,
    whole_arrays,
)
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import given_path, not_a_plain_file
from isaaclab_arena.storage import atomic, episode_file
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episodes import write_episode

# Check foreign files field by field; every error names file, key and value.


@dataclass(frozen=True)
class Fields:
    """The fields of a mapping in a file."""

    values: Mapping[Any, Any]
    place: str  # the file, and the path in it, for messages

    def wrong(self, key: str, due: str) -> StorageError:
        """Return an error with the expected and the actual value of a field."""
        found = shown(self.values[key]) if key in self.values else "nothing"
        return StorageError(f"{self.place}: {plain_text(key)}: must be {due}, got {found}")

    def integer(self, key: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``; floats with a whole value are accepted."""
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """Return a number from ``least`` to ``most``."""
        value = self.values.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text, the default if there is one and the text is missing or empty."""
        value = self.values.get(key)
        if default is not None and (value is None or value == ""):
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def integers(self, key: str, length: int, most: int) -> tuple[int, ...]:
        """Return a list of a given number of whole numbers, each from 0 to ``most``."""
        items = self.items(key)
        if len(items) != length:
            raise self.wrong(key, f"a list of {length} whole numbers")
        numbers = {str(position): item for position, item in enumerate(items)}
        return tuple(Fields(numbers, f"{self.place}: {plain_text(key)}").integer(name, 0, most) for name in numbers)

    def mapping(self, key: str, *, or_empty: bool = False) -> "Fields":
        """Return the fields of a mapping; with `or_empty` a missing one has none."""
        value = self.values.get(key)
        if or_empty and value is None:
            return Fields({}, self.place)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return Fields(value, f"{self.place}: {plain_text(key)}")

    def mappings(self) -> dict[str, "Fields"]:
        """Return the fields of every value; each value must be a mapping."""
        return {str(key): self.mapping(key) for key in self.values}


def shown(value: object) -> str:
    """Return a value of a file as short text, without control characters."""
    longest = 80
    if isinstance(value, float):
        words = f"{value:.6g}"
    elif isinstance(value, str):
        words = repr(value[:longest])
    elif isinstance(value, list | dict):
        words = f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    else:
        # Python refuses to print very long numbers.
        is_long = isinstance(value, int) and value.bit_length() > 200
        words = "a number of many digits" if is_long else repr(value)
    return plain_text(words[:longest])


def regular_file(path: Path, root: Path) -> Path:
    """Return `path`; StorageError if it is missing, no regular file (pipe, device), or outside of the dataset."""
    if not is_inside(path, root):
        raise StorageError(f"{root} has a file outside of the dataset: {plain_text(path)}")
    wrong = not_a_plain_file(path)
    if wrong is not None:
        raise StorageError(f"cannot read {plain_text(path)}: {wrong}")
    return path


def is_inside(path: Path, root: Path) -> bool:
    """True if a path, with all links followed, is inside `root` or in the hub's cache of `root`."""
    try:
        with atomic.storage_errors("find", path):
            found, inside = path.resolve(), root.resolve()
            # The cache keeps the files of all revisions in ``blobs``; ``snapshots/<revision>`` contains links to them.
            caches = [each.parent for each in (inside, *inside.parents) if each.parent.name == "snapshots"]
            blobs = [each.parent / "blobs" for each in caches if not (each.parent / "blobs").is_symlink()]
            return found.is_relative_to(inside) or found.parent in blobs
    except RuntimeError as error:
        raise StorageError(f"cannot find {plain_text(path)}: its links lead in a circle") from error


def groups_of(document: Mapping[str, Any], modality: str) -> dict[str, tuple[str, int, int]]:
    """Return column, begin and end of each group of a modality in ``modality.json``; StorageError if it is wrong."""
    default, most = layout.COLUMN_OF_MODALITY[modality], 65_536
    found = {}
    for key, group in Fields(document, layout.MODALITY_FILE).mapping(modality, or_empty=True).mappings().items():
        start = group.integer("start", 0, most)
        found[key] = (group.text("original_key", default), start, group.integer("end", start, most))
    return found


# Read a LeRobot dataset of version 2.0, 2.1 or 3.0 from any writer, one episode at a time.

_MAX_EPISODES = 200_000
_MAX_STEPS = 10_000_000
_MAX_NUMBERS = 65_536
_MAX_LINE = 1 << 20
_MOST = 2**53


@dataclass(frozen=True, kw_only=True)
class StoredEpisode:
    """The location of an episode in a dataset."""

    episode_index: int
    num_steps: int
    task: str
    data_file: Path  # may contain other episodes too
    videos: Mapping[str, tuple[Path, int]]  # by video feature: file, and number of the episode's first frame in it


class StoredDataset:
    """A dataset on disk; see `open_dataset`."""

    # `episodes` ascends by number. `features` has the entries of ``info.json``; openpi's column ``actions`` is there
    # under LeRobot's name ``action`` too. `picture_features` are videos, or pictures in tables.
    def __init__(self, root: Path, info: Mapping[str, Any]) -> None:
        self.root = root
        self._has_shared_tables = info["codebase_version"] == "v3.0"
        self._info = Fields(info, str(root / layout.INFO_FILE))
        self.fps = self._info.number("fps", 1e-3, 1e6)
        # The stated number of episodes is not relied on, and compared only if it is a number.
        stated = info.get("total_episodes")
        is_count = isinstance(stated, int) and not isinstance(stated, bool) and stated >= 0
        self._stated_episodes = stated if is_count else None
        described = self._info.mapping("features").mappings()
        if len(described) > 1000:
            raise self._info.wrong("features", "at most 1000")

        # Check type and shape of each column or video. `features` has height, width and channels of a video.
        self.features: dict[str, dict[str, Any]] = {}
        for name, fields in described.items():
            dtype = fields.text("dtype")
            is_picture = dtype in ("video", "image")
            length = 3 if is_picture else len(fields.items("shape"))
            if length > 4:
                raise fields.wrong("shape", "a list of at most 4 whole numbers")
            shape = fields.integers("shape", length, 16_384 if is_picture else _MAX_NUMBERS)
            if math.prod(shape) > _MAX_NUMBERS and not is_picture:
                raise fields.wrong("shape", f"lengths of at most {_MAX_NUMBERS} together")
            if is_picture and 0 in shape:
                raise fields.wrong("shape", "height, width and channels of a picture")
            # Some datasets list the channels first.
            if is_picture and shape[0] == 3 != shape[2]:
                shape = (*shape[1:], 3)
            self.features[name] = {**info["features"][name], "dtype": dtype, "shape": list(shape)}
        self._named_there: dict[str, str] = {}
        if layout.ACTION not in self.features and layout.ACTIONS in self.features:
            self.features[layout.ACTION] = self.features[layout.ACTIONS]
            self._named_there[layout.ACTION] = layout.ACTIONS
        self.video_features = tuple(name for name, each in self.features.items() if each["dtype"] == "video")
        images = (name for name, each in self.features.items() if each["dtype"] == "image")
        self.picture_features = (*self.video_features, *images)

        self._chunks_size = 0 if self._has_shared_tables else self._info.integer("chunks_size", 1, _MOST)
        # Locate every episode at once: all later reads rely on unique numbers, and foreign files may repeat them.
        found: dict[int, StoredEpisode] = {}
        for episode in self._stored_episodes():
            if episode.episode_index in found:
                raise StorageError(f"{root} holds episode {episode.episode_index} twice")
            if len(found) == _MAX_EPISODES:
                raise StorageError(f"{root} holds more than {_MAX_EPISODES} episodes")
            found[episode.episode_index] = episode
        self.episodes: dict[int, StoredEpisode] = dict(sorted(found.items()))
        self._rows: dict[Path, Mapping[int, int]] = {}

    def columns(self, episode_index: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return columns of an episode, each (num_steps, size); StorageError if the table lacks a column or steps."""
        episode = self.episodes[episode_index]
        table = self._table_of(episode)
        sizes = {name: self.size(name) for name in names}
        extent = _rows_of(episode, max_size=max(sizes.values()))
        there = [self._named_there.get(name, name) for name in names]
        found = read_columns(regular_file(table, self.root), there, extent)
        columns = {name: found[each] for name, each in zip(names, there, strict=True)}
        for name, values in columns.items():
            if values.shape != (episode.num_steps, sizes[name]):
                raise StorageError(
                    f"{episode.data_file}: '{name}' of episode {episode_index} has {len(values)} rows of "
                    f"{values.shape[1]}, expected {episode.num_steps} rows of {sizes[name]}"
                )

        # Some writers store the rows of an episode in another order than their frame index.
        order = self._order(episode, table)
        return columns if order is None else {name: values[order] for name, values in columns.items()}

    def held_against_tables(self, episode_indices: Iterable[int]) -> tuple[dict[int, str], list[str]]:
        """Compare the dataset's metadata with its tables: return the error of each unreadable episode, and remarks."""
        missing: dict[int, str] = {}
        moved = []
        for index in episode_indices:
            episode = self.episodes[index]
            table = self._table_of(episode)
            count = self._rows_in(table).get(index, 0)
            # An episode with a wrong number of rows cannot be read; a wrong table is only a remark.
            if count != episode.num_steps:
                missing[index] = f"{table} has {count} rows of episode {index}, expected {episode.num_steps}"
            elif table != episode.data_file:
                moved.append(index)

        notes: list[str] = []
        stated, path = self._stated_episodes, self.root / layout.INFO_FILE
        if stated not in (None, len(self.episodes)):
            notes.append(f"{path} says that there are {stated} episodes, and {len(self.episodes)} are")
        if moved:
            named = f"episode{'' if len(moved) == 1 else 's'} {in_words(moved)}"
            notes.append(f"{self.root} names another table for {named} than the one that has it")
        return missing, notes

    def remembered(self) -> dict[int, dict[str, Any]]:
        """Return ``attributes`` and ``env_args`` of the recording of each episode, if it was made from one."""
        found = {}
        for line in self.lines(layout.ARENA_EPISODES_FILE):
            if isinstance(line.get("episode_index"), int):
                found[line["episode_index"]] = {key: value for key, value in line.items() if isinstance(value, dict)}
        return found

    def _table_of(self, episode: StoredEpisode) -> Path:
        """Return the table that contains an episode; the stated one if none or several others do."""
        if episode.episode_index in self._rows_in(episode.data_file):
            return episode.data_file
        # Only version 3.0 can name another table.
        tables = sorted((self.root / "data").glob("*/*.parquet")) if self._has_shared_tables else ()
        others = [table for table in tables if episode.episode_index in self._rows_in(table)]
        return others[0] if len(others) == 1 else episode.data_file

    def _order(self, episode: StoredEpisode, table: Path) -> np.ndarray | None:
        """Return the permutation that sorts an episode's rows by frame index, None if they are sorted."""
        if layout.FRAME_INDEX not in self.features:
            return None
        found = read_columns(regular_file(table, self.root), [layout.FRAME_INDEX], _rows_of(episode, max_size=1))
        places = found[layout.FRAME_INDEX][:, 0]
        if (np.diff(places) > 0).all():
            return None
        order = np.argsort(places, kind="stable")
        if not (np.diff(places[order]) > 0).all():
            raise StorageError(f"{table}: episode {episode.episode_index} has a {layout.FRAME_INDEX} twice")
        return order

    def _rows_in(self, table: Path) -> Mapping[int, int]:
        """Return the number of rows of each episode in a table, none without the table."""
        if table not in self._rows:
            found = regular_file(table, self.root) if table.exists() else None
            self._rows[table] = {} if found is None else episode_rows(found, layout.EPISODE_INDEX, self.episodes)
        return self._rows[table]

    def size(self, name: str) -> int:
        """Return the number of values in a row of a column; StorageError if ``info.json`` does not list the column."""
        if name not in self.features:
            hint = plain_text(did_you_mean(name, self.features))
            message = f"{self.root / layout.INFO_FILE}: features: there is no column '{plain_text(name)}'{hint}"
            raise StorageError(message)
        return math.prod(self.features[name]["shape"])

    def frames(self, episode_index: int, feature: str) -> Iterator[np.ndarray]:
        """Yield an episode's pictures, each (height, width, 3) uint8; StorageError if a picture is missing."""
        episode = self.episodes[episode_index]
        height, width, _ = self.features[feature]["shape"]
        # Pictures in the table have the order of its rows; a video has the order of the steps.
        if feature not in episode.videos:
            table = self._table_of(episode)
            found = regular_file(table, self.root)
            pictures = read_pictures(found, feature, _rows_of(episode, max_size=1), (height, width))
            order = self._order(episode, table)
            yield from pictures if order is None else map(list(pictures).__getitem__, order)
            return

        path, first = episode.videos[feature]
        found = regular_file(path, self.root)
        for frame in read_frames(found, fps=self.fps, first=first, count=episode.num_steps, size=(height, width)):
            if frame.shape != (height, width, 3):
                raise StorageError(f"{path} has frames of {frame.shape[:2]}, {layout.INFO_FILE} says {(height, width)}")
            yield frame

    def document(self, name: str) -> dict[str, Any] | None:
        """Return the mapping in a small JSON file of the dataset, None if there is no such file."""
        path = self.root / name
        if not path.is_file():
            return None
        document = read_document(regular_file(path, self.root))
        if not isinstance(document, dict):
            raise StorageError(f"{path} is not as LeRobot has it: no mapping")
        return document

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the JSON mapping in each line of a file, none without such a file; StorageError for a bad line."""
        path = self.root / name
        if path.is_file():
            with atomic.storage_errors("read", path), regular_file(path, self.root).open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE + 1), b""), start=1):
                    if len(line) > _MAX_LINE:
                        raise StorageError(f"{path}, line {number} has more than {_MAX_LINE} bytes")
                    try:
                        value = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise StorageError(f"{path}, line {number} is no JSON: {plain_text(error)}") from error
                    if not isinstance(value, dict):
                        raise StorageError(f"{path}, line {number} is no mapping")
                    yield value

    def _located(self, key: str, fields: Fields, prefix: str, **more: str) -> Path:
        """Return an episode's file by a template such as ``data/chunk-{chunk_index:03d}`` in the field `key`."""
        if self._has_shared_tables:
            numbers = {name: fields.integer(f"{prefix}/{name}", 0, _MOST) for name in ("chunk_index", "file_index")}
        else:
            index = fields.integer("episode_index", 0, _MOST)
            numbers = {"episode_chunk": index // self._chunks_size, "episode_index": index}
        names: dict[str, int | str] = {**numbers, **more}
        template = self._info.text(key)
        try:
            pieces = list(Formatter().parse(template)) if len(template) <= 500 else []
        except ValueError:
            pieces = []
        # A foreign template may use only the known names, and a width for numbers: format strings can do more.
        for _, name, form, conversion in pieces:
            is_width = re.fullmatch(r"(0?\d?d?)?", form or "") is not None
            is_known = name is None or (name in names and not conversion and is_width)
            if not is_known or (form and isinstance(names[name or ""], str)):
                pieces = []
                break
        path = template.format(**names) if pieces else ""
        if not path or "\0" in path:
            raise self._info.wrong(key, f"a path made of {', '.join(f'{{{name}}}' for name in names)}")
        if not is_inside(self.root / path, self.root):
            raise self._info.wrong(key, "a path inside the dataset")
        return self.root / path

    def _stored_episodes(self) -> Iterator[StoredEpisode]:
        """Yield every episode; version 3.0 has several per table and video."""
        for fields in self._descriptions():
            index, num_steps = fields.integer("episode_index", 0, _MOST), fields.integer("length", 1, _MAX_STEPS)
            tasks = fields.items("tasks")
            if tasks and not isinstance(tasks[0], str):
                raise fields.wrong("tasks", "a list of texts")
            data_file, videos = self._located("data_path", fields, "data"), {}
            for key in self.video_features:
                start = f"videos/{key}/from_timestamp"
                first = round(fields.number(start, 0, _MAX_STEPS) * self.fps) if self._has_shared_tables else 0
                videos[key] = self._located("video_path", fields, f"videos/{key}", video_key=key), first
            task = tasks[0] if tasks else ""
            yield StoredEpisode(episode_index=index, num_steps=num_steps, task=task, data_file=data_file, videos=videos)

    def _descriptions(self) -> Iterator[Fields]:
        """Yield the description of each episode: the row of a table in version 3.0, else a line of JSON."""
        if not self._has_shared_tables:
            for number, line in enumerate(self.lines(layout.EPISODES_LINES_FILE), start=1):
                yield Fields(line, f"{self.root / layout.EPISODES_LINES_FILE}, line {number}")
            return
        names = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
        for key in self.video_features:
            names += [f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
        for path in sorted((self.root / "meta" / "episodes").glob("*/*.parquet")):
            for number, row in enumerate(read_rows(regular_file(path, self.root), names)):
                yield Fields(row, f"{path}, row {number}")


_VERSIONS = ("v2.0", "v2.1", "v3.0")


def open_dataset(root: Path) -> StoredDataset:
    """Return a dataset; StorageError if missing, incomplete or of an unsupported version, ConfigError if no JSON."""
    path = root / layout.INFO_FILE
    with atomic.storage_errors("read", path):
        is_there, is_unfinished = path.is_file(), (root / "meta").is_dir()
    # A conversion writes ``info.json`` last, so a directory without it may be an interrupted conversion.
    if not is_there:
        reason = "its conversion has not come to its end" if is_unfinished else "there is no LeRobot dataset"
        raise StorageError(f"no {layout.INFO_FILE} in {root}: {reason}")
    info = read_document(regular_file(path, root))
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if not isinstance(version, str) or version not in _VERSIONS:
        named = version if isinstance(version, str) else shown(version)
        raise StorageError(f"{path} is of version {shown(version)}{did_you_mean(named[:20], _VERSIONS)}")
    dataset = StoredDataset(root, info)
    if not dataset.episodes:
        raise StorageError(f"{root} holds no episodes")
    return dataset


def _rows_of(episode: StoredEpisode, *, max_size: int) -> TableExtent:
    return TableExtent(
        key=layout.EPISODE_INDEX, value=episode.episode_index, num_rows=episode.num_steps, max_size=max_size
    )


# Map a dataset's columns to recorded arrays, by ``arena.json``, else by ``modality.json``, else unchanged.

_PATH = re.compile(r"[^/\x00-\x1f]{1,200}(/[^/\x00-\x1f]{1,200}){0,8}")


def features_of_document(arena: Mapping[str, Any]) -> DatasetFeatures:
    """Return the features in the content of ``arena.json``; KeyError or ValueError if it is malformed."""
    if arena.get("schema_version") != layout.ARENA_SCHEMA_VERSION:
        raise ValueError(f"{layout.ARENA_FILE} has schema version {arena.get('schema_version')}")
    return atomic.adapter(DatasetFeatures).validate_python(arena["features"])


def stored_features(dataset: StoredDataset) -> DatasetFeatures:
    """Return the recorded arrays of a dataset's columns and videos; StorageError if files contradict each other."""
    try:
        # A dataset of this program has its own file, which restores the original arrays.
        arena = dataset.document(layout.ARENA_FILE)
        if arena is not None:
            features = features_of_document(arena)
            _check(features, dataset)
            return features

        # Any other dataset may say in ``modality.json`` where the groups of its state are.
        modality = dataset.document(layout.MODALITY_FILE) or {}
        groups = groups_of(modality, "state")
        spans = [(key, start, end) for key, (name, start, end) in groups.items() if name == layout.STATE]
        spans.sort(key=lambda span: span[1:])
        starts, ends = [start for _, start, _ in spans], [end for _, _, end in spans]
        vectors: dict[str, Column] = {}
        for name, feature in dataset.features.items():
            is_vector = "float" in str(feature["dtype"]) and len(feature["shape"]) == 1
            if not (name.startswith("observation.") and is_vector):
                continue
            # A column becomes one observation; the state one per group if these cover it without gaps.
            size = int(feature["shape"][0])
            sizes = {name.removeprefix("observation.").replace(".", "_"): size}
            if name == layout.STATE and spans and [*starts, size] == [0, *ends]:
                sizes = {key: end - start for key, start, end in spans}
            terms = {term: (f"{recorded.OBSERVATIONS}/{term}", length) for term, length in sizes.items()}
            vectors[name] = whole_arrays(terms)

        # The actions stay whole, because a replay needs them in the order of the environment.
        vectors[layout.ACTION] = whole_arrays({"action": (recorded.ACTIONS, dataset.size(layout.ACTION))})
        # A camera has the name of ``modality.json``, or else that of its feature.
        videos = Fields(modality, layout.MODALITY_FILE).mapping("video", or_empty=True).mappings()
        keys = {video.text("original_key", layout.PICTURES_PREFIX + key): key for key, video in videos.items()}
        cameras = {}
        for name in dataset.picture_features:
            key = keys.get(name, name.removeprefix(layout.PICTURES_PREFIX))
            height, width, _ = dataset.features[name]["shape"]
            path = f"{recorded.CAMERA_OBSERVATIONS}/{key}"
            cameras[name.removeprefix(layout.PICTURES_PREFIX)] = Camera(path=path, height=height, width=width)
        features = DatasetFeatures(vectors=vectors, cameras=cameras, rewards=layout.REWARD in dataset.features)
        _check(features, dataset)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        words = plain_text(f"{type(error).__name__}: {error}")[:500]
        raise StorageError(f"{dataset.root} is not as LeRobot has it: {words}") from error
    return features


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
        height, width, _ = dataset.features[video_feature(dataset, key)]["shape"]
        if not _PATH.fullmatch(camera.path):
            raise ValueError(f"the path of '{key}' is none of a recorded array")
        if not (0 < camera.height <= height and 0 < camera.width <= width):
            raise ValueError(f"the pictures of '{key}' are smaller than {layout.ARENA_FILE} says")


def video_feature(dataset: StoredDataset, key: str) -> str:
    """Return the video feature of a camera of `stored_features`; some datasets lack its prefix."""
    prefixed = layout.PICTURES_PREFIX + key
    return prefixed if prefixed in dataset.features else key


# Convert a LeRobot dataset to recordings, one episode at a time.

_LOG = logging.getLogger(__name__)


def write_recordings(
    dataset: Path, output_dir: Path, told: Callable[[int, int], None] = lambda *_: None
) -> tuple[Path, ...]:
    """Convert a LeRobot dataset to recordings in a run's layout; call `told(done, total)` after each episode."""
    # ConfigError: `output_dir` is not empty, or a JSON file is malformed. StorageError: reading or writing failed.
    output_dir, stored = given_path(output_dir), open_dataset(given_path(dataset))
    features = stored_features(stored)
    layout.check_empty(output_dir)
    # Refuse a dataset with incomplete tables before any recording is written.
    wrong, notes = stored.held_against_tables(stored.episodes)
    if wrong:
        raise StorageError("; ".join(list(wrong.values())[:3]))
    for note in notes:
        _LOG.warning("%s", note)

    # A recording has one environment, so two environments of a job are two jobs.
    remembered = stored.remembered()
    names: dict[tuple[str, str], str] = {}
    jobs: dict[str, list[int]] = {}
    for index in stored.episodes:
        about = remembered.get(index, {})
        recorded_job = str(about.get("attributes", {}).get("job", stored.root.resolve().name))
        key = recorded_job, atomic.json_line(about.get("env_args", {}))
        if key not in names:
            # File systems may fold the case of names, so the names of two jobs must differ without it.
            safe = recorded_job if name_problem(recorded_job) is None else "job"
            taken = {folded(name) for name in names.values()}
            choices = chain([safe], (f"{safe}-{number}" for number in count(2)))
            names[key] = next(name for name in choices if folded(name) not in taken)
        jobs.setdefault(names[key], []).append(index)

    recordings, done = [], 0
    for job, indices in jobs.items():
        directory = output_dir / job / recorded.EPISODES_DIRECTORY
        parts = []
        for index in indices:
            parts.append(directory / recorded.episode_file_name(index))
            write_episode(parts[-1], _episode(stored, features, index, remembered.get(index, {})))
            done += 1
            told(done, len(stored.episodes))
        recordings.append(directory.parent / recorded.dataset_file_name(job, 0, 1))
        # Until a recording is complete, its episodes are in separate files beside it.
        made = consolidate(parts, recordings[-1])
        if made.damaged:
            raise StorageError(made.damaged[0][1])
        with atomic.storage_errors("remove", directory):
            directory.rmdir()
    return tuple(recordings)


def _episode(
    stored: StoredDataset, features: DatasetFeatures, index: int, about: Mapping[str, dict[str, Any]]
) -> episode_file.RecordedEpisode:
    episode = stored.episodes[index]
    columns = stored.columns(index, [*features.vectors, *([layout.REWARD] if features.rewards else [])])
    # All pictures of an episode are in memory at once.
    num_bytes = sum(episode.num_steps * camera.height * camera.width * 3 for camera in features.cameras.values())
    if num_bytes > 16 << 30:
        raise StorageError(
            f"{stored.root}: the pictures of episode {index} would take {num_bytes >> 30} GiB of memory; "
            "at most 16 are taken"
        )

    arrays: dict[str, np.ndarray] = {}
    for name, column in features.vectors.items():
        arrays |= column.unpacked(columns[name])
    if recorded.ACTIONS not in arrays:
        raise StorageError(f"{stored.root}: {layout.ARENA_FILE} does not say where the actions are whole")
    if features.rewards:
        arrays[recorded.REWARDS] = columns[layout.REWARD][:, 0]
    for key, camera in features.cameras.items():
        feature = video_feature(stored, key)
        # A lossy video pads pictures to even sizes.
        frames = [frame[: camera.height, : camera.width] for frame in stored.frames(index, feature)]
        arrays[camera.path] = np.stack(frames)

    num_steps = len(columns[layout.ACTION])
    arrays[recorded.DONES] = np.zeros(num_steps, np.uint8)
    arrays[recorded.DONES][-1:] = 1
    attributes: dict[str, episode_file.AttributeValue] = {}
    # LeRobot's column of successes is not in every dataset; the recorded attributes overrule it.
    if stored.features.get(layout.SUCCESS, {}).get("shape") == [1]:
        attributes["success"] = bool(stored.columns(index, [layout.SUCCESS])[layout.SUCCESS].any())
    remembered = about.get("attributes", {})
    attributes |= {name: value for name, value in remembered.items() if isinstance(value, str | int | float | bool)}
    attributes |= {
        "job": attributes.get("job", stored.root.resolve().name),
        "episode_index": index,
        "language_instruction": episode.task,
        "control_dt": 1 / stored.fps,
    }
    return episode_file.RecordedEpisode(
        episode_index=index, arrays=arrays, attributes=attributes, env_args=about.get("env_args", {})
    )
