"""Reading a LeRobot dataset of version 2.0, 2.1 or 3.0, whoever wrote it, one episode at a time."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import StorageError, did_you_mean
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.tables import read_columns, read_rows
from isaaclab_arena_gr00t.data.video_files import read_frames

_MAX_FPS = 1e6


@dataclass(frozen=True, kw_only=True)
class StoredEpisode:
    """Where an episode of a dataset is.

    Attributes:
        episode_index: Its number.
        num_steps: Number of control steps.
        task: Its instruction.
        data_file: Its table, which may hold others too.
        videos: Video feature to its file, and to the number of its first frame there.
    """

    episode_index: int
    num_steps: int
    task: str
    data_file: Path
    videos: Mapping[str, tuple[Path, int]]


class StoredDataset(ABC):
    """A dataset on disk; see `open_dataset`.

    Attributes:
        root: Its folder.
        fps: Control steps per second.
        features: Column or video feature to what it holds, as ``info.json`` says.
        episodes: Number of an episode to where it is, ascending.
    """

    def __init__(self, root: Path, info: Mapping[str, Any]) -> None:
        self.root = root
        self._info = info
        self.fps = float(info["fps"])
        if not 0 < self.fps < _MAX_FPS:
            raise ValueError(f"fps is {self.fps}")
        self.features: dict[str, dict[str, Any]] = {str(name): dict(each) for name, each in info["features"].items()}
        self.video_features = tuple(name for name, each in self.features.items() if each["dtype"] == "video")
        self.episodes: dict[int, StoredEpisode] = {
            episode.episode_index: episode for episode in sorted(self._read_episodes(), key=lambda e: e.episode_index)
        }

    @abstractmethod
    def _read_episodes(self) -> Iterator[StoredEpisode]:
        """Yield every episode.

        Raises:
            StorageError: If a file cannot be read.
        """

    def columns(self, episode_index: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return columns of an episode.

        Returns:
            Shape of each: (num_steps, size), of columns of single numbers too.

        Raises:
            StorageError: If the table cannot be read, or lacks a column or steps.
        """
        episode = self.episodes[episode_index]
        filters = [(layout.EPISODE_INDEX, "==", episode_index)]
        columns = read_columns(episode.data_file, names, filters=filters)
        for name, values in columns.items():
            if len(values) != episode.num_steps:
                raise StorageError(
                    f"{episode.data_file} has {len(values)} rows of '{name}' for episode {episode_index}; "
                    f"{episode.num_steps} are due"
                )
        return {name: values.reshape(len(values), -1) for name, values in columns.items()}

    def frames(self, episode_index: int, feature: str) -> Iterator[np.ndarray]:
        """Yield the pictures of an episode. Shape of each: (height, width, 3), uint8.

        Raises:
            StorageError: If the video cannot be read, or lacks a frame.
        """
        episode = self.episodes[episode_index]
        path, first = episode.videos[feature]
        yield from read_frames(path, fps=self.fps, first=first, count=episode.num_steps)

    def document(self, name: str) -> dict[str, Any] | None:
        """Return what a small JSON file of the dataset says, None if there is no such file.

        Raises:
            ConfigError: If it is no JSON.
            StorageError: If it holds anything but a mapping.
        """
        path = self.root / name
        if not path.is_file():
            return None
        document = read_document(path)
        if not isinstance(document, dict):
            raise StorageError(f"{path} is not as LeRobot has it: no mapping")
        return document

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield what the lines of a file say, none if there is no such file.

        Raises:
            StorageError: If a line is no JSON, or no mapping.
        """
        path = self.root / name
        if path.is_file():
            with storage_errors("read", path), path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    yield _mapping(line, f"{path}, line {number}")

    def _located(self, template: str, **numbers: Any) -> Path:
        """Return a file of the dataset; a path that leads out of it is refused."""
        path = self.root / template.format(**numbers)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise StorageError(f"{self.root / layout.INFO_FILE} names a file outside of the dataset: {path}")
        return path


class StoredDatasetV2(StoredDataset):
    """A dataset with a table per episode: version 2.0 or 2.1."""

    def _read_episodes(self) -> Iterator[StoredEpisode]:
        chunks_size = int(self._info["chunks_size"])
        for line in self.lines(layout.EPISODES_LINES_FILE):
            index = int(line["episode_index"])
            place = {"episode_chunk": index // chunks_size, "episode_index": index}
            videos = {
                key: (self._located(self._info["video_path"], **place, video_key=key), 0) for key in self.video_features
            }
            yield StoredEpisode(
                episode_index=index,
                num_steps=int(line["length"]),
                task=str(next(iter(line["tasks"]), "")),
                data_file=self._located(self._info["data_path"], **place),
                videos=videos,
            )


class StoredDatasetV3(StoredDataset):
    """A dataset with several episodes per table: version 3.0."""

    def _read_episodes(self) -> Iterator[StoredEpisode]:
        names = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
        names += [
            f"videos/{key}/{name}"
            for key in self.video_features
            for name in ("chunk_index", "file_index", "from_timestamp")
        ]
        for path in sorted((self.root / "meta" / "episodes").glob("*/*.parquet")):
            for row in read_rows(path, names):
                yield StoredEpisode(
                    episode_index=int(row["episode_index"]),
                    num_steps=int(row["length"]),
                    task=str(next(iter(row["tasks"]), "")),
                    data_file=self._file("data_path", row, "data"),
                    videos={key: self._video(row, key) for key in self.video_features},
                )

    def _file(self, template: str, row: Mapping[str, Any], prefix: str, **more: str) -> Path:
        numbers = {name: int(row[f"{prefix}/{name}"]) for name in ("chunk_index", "file_index")}
        return self._located(self._info[template], **numbers, **more)

    def _video(self, row: Mapping[str, Any], key: str) -> tuple[Path, int]:
        first = round(float(row[f"videos/{key}/from_timestamp"]) * self.fps)
        return self._file("video_path", row, f"videos/{key}", video_key=key), first


_READERS = {"v2.0": StoredDatasetV2, "v2.1": StoredDatasetV2, "v3.0": StoredDatasetV3}


def open_dataset(root: Path) -> StoredDataset:
    """Return a dataset.

    Raises:
        ConfigError: If ``info.json`` is no JSON.
        StorageError: If there is none, it was not written to the end, or it is of a version that is not read here.
    """
    path = root / layout.INFO_FILE
    if not path.is_file():
        unfinished = (root / "meta").is_dir()
        reason = "its conversion has not come to its end" if unfinished else "there is no LeRobot dataset"
        raise StorageError(f"no {layout.INFO_FILE} in {root}: {reason}")
    info = read_document(path)
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in _READERS:
        raise StorageError(f"{path} is of version {version!r}{did_you_mean(str(version), _READERS)}")
    try:
        dataset = _READERS[version](root, info)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StorageError(f"{root} is not as LeRobot has it: {type(error).__name__}: {error}") from error
    if not dataset.episodes:
        raise StorageError(f"{root} holds no episodes")
    return dataset


def _mapping(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{place} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{place} is no mapping")
    return value
