"""Write episodes into the files of each version of the layout."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_line, plain
from isaaclab_arena_gr00t.data.files import layout
from isaaclab_arena_gr00t.data.files.layout import DatasetVersion, FileSizes
from isaaclab_arena_gr00t.data.files.statistics import Statistics
from isaaclab_arena_gr00t.data.files.tables import TableFiles, parquet_errors, steps_table, write_table
from isaaclab_arena_gr00t.data.files.video_files import VideoWriter

_EPISODES_AT_ONCE = 100
_V21_EPISODE_STATISTICS = ("min", "max", "mean", "std", "count")
_V21_STATISTICS = (*_V21_EPISODE_STATISTICS, "q01", "q99")


@dataclass(frozen=True, kw_only=True)
class EpisodeContent:
    """One episode of a new dataset.

    Attributes:
        episode_index: Its number in the dataset.
        columns: Values of each column. Shape of each: (num_steps,) or (num_steps, size).
        pictures: Frames of each video feature. Shape of each: (num_steps, height, width, 3), uint8.
        encoded: Picture files of each picture feature, one per control step.
        task: Its instruction.
        statistics: Statistics of every column and video feature in this episode.
    """

    episode_index: int
    columns: Mapping[str, np.ndarray]
    pictures: Mapping[str, np.ndarray]
    encoded: Mapping[str, Sequence[bytes]]
    task: str
    statistics: Mapping[str, Statistics]

    @property
    def num_steps(self) -> int:
        """Number of control steps."""
        return len(self.columns[layout.INDEX])


class EpisodeWriter(ABC):
    """Writes one episode after the other into a directory.

    Args:
        root: Directory of the dataset.
        fps: Control steps per second.
        lossless: See `VideoWriter`.
        sizes: How much goes into a file.
    """

    def __init__(self, root: Path, *, fps: int, lossless: bool, sizes: FileSizes) -> None:
        self.root = root
        self.fps = fps
        self.lossless = lossless
        self.sizes = sizes

    @abstractmethod
    def add(self, episode: EpisodeContent) -> None:
        """Write an episode.

        Raises:
            StorageError: If it cannot be written.
        """

    @abstractmethod
    def finish(self, tasks: Sequence[str], statistics: Mapping[str, Statistics]) -> None:
        """Complete every file and write the files for all episodes, except ``info.json``.

        Args:
            tasks: The instructions, in the order of their numbers.
            statistics: Statistics of every column and video feature over all episodes.

        Raises:
            StorageError: If a file cannot be written.
        """


class EpisodeWriterV21(EpisodeWriter):
    """Writes version 2.1: every episode has a table and videos of its own, and a line in each of two files."""

    def add(self, episode: EpisodeContent) -> None:
        """Write an episode; see `EpisodeWriter.add`."""
        index = episode.episode_index
        data_path, video_path = (paths[DatasetVersion.V21] for paths in (layout.DATA_PATHS, layout.VIDEO_PATHS))
        write_table(
            self.root / layout.of_episode(data_path, index, self.sizes), steps_table(episode.columns, episode.encoded)
        )
        for key, frames in episode.pictures.items():
            path = self.root / layout.of_episode(video_path, index, self.sizes, key)
            video = VideoWriter(path, fps=self.fps, lossless=self.lossless)
            video.add(frames)
            video.close()
        line = {"episode_index": index, "tasks": [episode.task], "length": episode.num_steps}
        append_lines(self.root / layout.EPISODES_LINES_FILE, [line])
        statistics = _chosen(episode.statistics, _V21_EPISODE_STATISTICS)
        append_lines(self.root / layout.EPISODES_STATS_FILE, [{"episode_index": index, "stats": statistics}])

    def finish(self, tasks: Sequence[str], statistics: Mapping[str, Statistics]) -> None:
        """Write tasks and statistics; see `EpisodeWriter.finish`."""
        lines = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
        append_lines(self.root / layout.TASKS_LINES_FILE, lines)
        # Version 2.1 itself has no such file, but GR00T's finetuning reads it.
        write_text(self.root / layout.STATS_FILE, json_line(_chosen(statistics, _V21_STATISTICS)))


class EpisodeWriterV30(EpisodeWriter):
    """Writes version 3.0: many episodes share a table and a video, and an index table locates each."""

    def __init__(self, root: Path, *, fps: int, lossless: bool, sizes: FileSizes) -> None:
        super().__init__(root, fps=fps, lossless=lossless, sizes=sizes)
        data_path = layout.DATA_PATHS[DatasetVersion.V30]
        self._data = TableFiles(root, data_path, sizes)
        self._episodes = TableFiles(root, layout.EPISODES_TABLE_PATH, sizes)
        self._rows: list[dict[str, Any]] = []
        self._videos: dict[str, VideoWriter] = {}
        self._video_numbers: dict[str, int] = {}

    def add(self, episode: EpisodeContent) -> None:
        """Write an episode; see `EpisodeWriter.add`."""
        first = int(episode.columns[layout.INDEX][0])
        row: dict[str, Any] = {
            "episode_index": episode.episode_index,
            "tasks": [episode.task],
            "length": episode.num_steps,
            "dataset_from_index": first,
            "dataset_to_index": first + episode.num_steps,
            **_place("data", self._data.next_number(), self.sizes),
        }
        self._data.append(steps_table(episode.columns, episode.encoded))
        for key, frames in episode.pictures.items():
            row |= self._add_pictures(key, frames)
        for feature, statistics in episode.statistics.items():
            row |= {f"stats/{feature}/{name}": values.tolist() for name, values in statistics.items()}
        self._rows.append(row)
        if len(self._rows) == _EPISODES_AT_ONCE:
            self._write_rows()

    def finish(self, tasks: Sequence[str], statistics: Mapping[str, Statistics]) -> None:
        """Complete the shared files, write tasks and statistics; see `EpisodeWriter.finish`."""
        self._write_rows()
        self._data.close()
        self._episodes.close()
        for video in self._videos.values():
            video.close()
        path = self.root / layout.TASKS_TABLE_FILE
        frame = pd.DataFrame({"task_index": range(len(tasks))}, index=pd.Index(tasks, dtype=object))
        with parquet_errors("write", path):
            frame.to_parquet(path)
        write_text(self.root / layout.STATS_FILE, json_line(plain(statistics)))

    def _add_pictures(self, key: str, frames: Iterable[np.ndarray]) -> dict[str, Any]:
        video = self._videos.get(key)
        if video is None or video.num_bytes >= self.sizes.video_mb * layout.MEGABYTE:
            if video is not None:
                video.close()
            number = self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
            path = self.root / layout.of_number(layout.VIDEO_PATHS[DatasetVersion.V30], number, self.sizes, key)
            video = self._videos[key] = VideoWriter(path, fps=self.fps, lossless=self.lossless)
        first = video.num_frames
        video.add(frames)
        return {
            **_place(f"videos/{key}", self._video_numbers[key], self.sizes),
            f"videos/{key}/from_timestamp": first / self.fps,
            f"videos/{key}/to_timestamp": video.num_frames / self.fps,
        }

    def _write_rows(self) -> None:
        if self._rows:
            place = _place("meta/episodes", self._episodes.next_number(), self.sizes)
            self._episodes.append(pa.Table.from_pylist([row | place for row in self._rows]))
            self._rows.clear()


WRITERS: Mapping[DatasetVersion, type[EpisodeWriter]] = {
    DatasetVersion.V21: EpisodeWriterV21,
    DatasetVersion.V30: EpisodeWriterV30,
}


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append lines of JSON to a file.

    Raises:
        StorageError: If it cannot be written.
    """
    with storage_errors("append to", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{json_line(plain(value))}\n" for value in values)


def _place(prefix: str, number: int, sizes: FileSizes) -> dict[str, int]:
    chunk, file = divmod(number, sizes.chunk)
    return {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}


def _chosen(statistics: Mapping[str, Statistics], names: Sequence[str]) -> dict[str, Any]:
    return plain({feature: {name: values[name] for name in names} for feature, values in statistics.items()})
