"""The layout of a LeRobot dataset: its files, its columns for the arrays of a recording, and its videos."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import PictureType
from av.video.stream import VideoStream

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import atomic
from isaaclab_arena.storage import layout as recorded

# Version 2.1 has a table and a video per episode; GR00T's finetuning reads it, together with ``modality.json``.
# Version 3.0 puts many episodes into one file. Two further files of this program hold the rest of a recording.

INFO_FILE = "meta/info.json"
STATS_FILE = "meta/stats.json"
MODALITY_FILE = "meta/modality.json"
ARENA_FILE = "meta/arena.json"
ARENA_EPISODES_FILE = "meta/arena_episodes.jsonl"
TASKS_LINES_FILE = "meta/tasks.jsonl"
EPISODES_LINES_FILE = "meta/episodes.jsonl"
EPISODES_STATS_FILE = "meta/episodes_stats.jsonl"
TASKS_TABLE_FILE = "meta/tasks.parquet"
EPISODES_TABLE_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

MEGABYTE = 1 << 20
ARENA_SCHEMA_VERSION = 1
"""Of `ARENA_FILE` and `ARENA_EPISODES_FILE`."""

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
ACTION = "action"
ACTIONS = "actions"
REWARD = "next.reward"
DONE = "next.done"
SUCCESS = "next.success"
PICTURES_PREFIX = "observation.images."
ANNOTATION = "annotation.human.task_description"
TASK_INDEX = "task_index"
TIMESTAMP = "timestamp"
FRAME_INDEX = "frame_index"
EPISODE_INDEX = "episode_index"
INDEX = "index"

COLUMN_OF_MODALITY = {"state": STATE, "action": ACTION}
"""``modality.json`` assigns a dataset's numbers and videos to a model's groups and pictures."""


class DatasetVersion(StrEnum):
    """A version of the layout that is written: ``V21`` for GR00T, ``V30`` for LeRobot itself."""

    V21 = "v2.1"
    V30 = "v3.0"


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """Largest sizes of the files and directories of a dataset."""

    chunk: int = 1000  # files in a directory ``chunk-000``
    # A table, or video, of this size [MiB] is full, and the next begins a new file (version 3.0).
    data_mb: int = 100
    video_mb: int = 200


DATA_PATHS = {
    DatasetVersion.V21: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    DatasetVersion.V30: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATHS = {
    DatasetVersion.V21: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    DatasetVersion.V30: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


def check_empty(output_dir: Path) -> None:
    """Refuse a directory for new files that holds some already: ConfigError."""
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ConfigError(f"'{output_dir}' is not empty; name a directory that is, or remove it", key="--output_dir")


# Convert between recorded arrays and a dataset's column, which regroups several arrays side by side for a model.


@dataclass(frozen=True, kw_only=True)
class Column:
    """The mapping between recorded arrays and a column."""

    # Size of each array, by its path below an episode's group. Side by side the arrays are the source.
    sources: Mapping[str, int]
    # Indices of each group in the source. Side by side the groups are the column.
    groups: Mapping[str, tuple[int, ...]]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of values in the column per control step."""
        return len(self.places)

    @property
    def places(self) -> list[int]:
        """Index in the source of each value in the column."""
        return [place for group in self.groups.values() for place in group]

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return the begin and end of each group in the column."""
        ends = accumulate(map(len, self.groups.values()))
        return {key: (end - len(self.groups[key]), end) for key, end in zip(self.groups, ends, strict=True)}

    def packed(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the column, (num_steps, size) float32, from its source arrays, each (num_steps, size)."""
        source = np.concatenate([arrays[path] for path in self.sources], axis=1)
        return source[:, self.places].astype(np.float32)

    def unpacked(self, column: np.ndarray) -> dict[str, np.ndarray]:
        """Return the source arrays in the column (num_steps, size), and groups without their complete source."""
        position = {place: number for number, place in enumerate(self.places)}
        arrays: dict[str, np.ndarray] = {}
        lost: set[int] = set()
        start = 0
        for path, size in self.sources.items():
            source = range(start, start + size)
            start += size
            if all(place in position for place in source):
                arrays[path] = np.ascontiguousarray(column[:, [position[place] for place in source]])
            else:
                lost.update(source)
        # A group without its complete source becomes an observation of its own.
        for key, (start, end) in self.spans().items():
            if lost.intersection(self.groups[key]):
                arrays[f"{recorded.OBSERVATIONS}/{key}"] = np.ascontiguousarray(column[:, start:end])
        return arrays


def whole_arrays(arrays: Mapping[str, tuple[str, int]]) -> Column:
    """Return a column in which every group is one recorded array; `arrays` maps group to path and size."""
    ends = accumulate(size for _, size in arrays.values())
    groups = {key: tuple(range(end - size, end)) for (key, (_, size)), end in zip(arrays.items(), ends, strict=True)}
    names = tuple(f"{key}_{number}" for key, (_, size) in arrays.items() for number in range(size))
    return Column(sources=dict(arrays.values()), groups=groups, names=names)


# The columns and videos of a dataset, for the arrays and cameras of a recording.


@dataclass(frozen=True, kw_only=True)
class Camera:
    """The picture arrays of a camera in a recording, and their size [px]."""

    path: str  # below an episode's group
    height: int
    width: int


@dataclass(frozen=True, kw_only=True)
class DatasetFeatures:
    """The columns and videos of a dataset."""

    vectors: Mapping[str, Column]
    cameras: Mapping[str, Camera]  # by the video's key without LeRobot's prefix
    rewards: bool

    def paths(self) -> list[str]:
        """Return the path of every recorded array that the features need."""
        vectors = [path for column in self.vectors.values() for path in column.sources]
        cameras = [camera.path for camera in self.cameras.values()]
        return [*dict.fromkeys(vectors), *cameras, *([recorded.REWARDS] if self.rewards else [])]

    def described(self, *, fps: int, lossless: bool, png: bool = False) -> dict[str, Any]:
        """Return the entries of all columns and videos in ``info.json``; ``png`` stores pictures in columns."""
        features: dict[str, Any] = {
            name: {"dtype": "float32", "shape": [column.size], "names": list(column.names)}
            for name, column in self.vectors.items()
        }
        for key, camera in self.cameras.items():
            height, width = camera.height, camera.width
            # A lossy video pads frames to even sizes.
            if not (lossless or png):
                height, width = height + height % 2, width + width % 2
            feature: dict[str, Any] = {
                "dtype": "image" if png else "video",
                "shape": [height, width, 3],
                "names": ["height", "width", "channels"],
            }
            if not png:
                feature["info"] = {
                    "video.height": height,
                    "video.width": width,
                    "video.codec": "h264",
                    "video.pix_fmt": "gbrp" if lossless else "yuv420p",
                    "video.is_depth_map": False,
                    "video.fps": fps,
                    "video.channels": 3,
                    "has_audio": False,
                }
            features[PICTURES_PREFIX + key] = feature

        # The other columns hold one number per control step.
        scalars: dict[str, str] = {REWARD: "float32"} if self.rewards else {}
        scalars |= {DONE: "bool", ANNOTATION: "int64", TIMESTAMP: "float32"}
        scalars |= dict.fromkeys((FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX), "int64")
        return features | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in scalars.items()}


# Read and write the videos of a LeRobot dataset: H.264 in MP4, one frame per step, every second one a key frame.


class VideoWriter:
    """Writes the frames of one episode after the other into one file; StorageError if this fails."""

    def __init__(self, path: Path, *, fps: int, lossless: bool) -> None:
        self.path, self.num_frames = path, 0
        self._fps, self._lossless = fps, lossless
        # Lossless RGB keeps every pixel, but some players cannot show it. All players show YUV 4:2:0.
        codec, pixels, quality = ("libx264", "yuv420p", {"crf": "18"})
        if lossless:
            codec, pixels, quality = ("libx264rgb", "rgb24", {"qp": "0"})
        # Random access, which training needs, decodes from the last key frame; frames must be stored in display order.
        options = {"preset": "medium", **quality, "g": "2", "bf": "0", "sc_threshold": "0"}
        with _video_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(path), mode="w", format="mp4")
            self._stream = cast(VideoStream, self._container.add_stream(codec, rate=fps, options=options))
            self._stream.pix_fmt = pixels
            # The number of threads changes the output, so it must not depend on the machine.
            self._stream.codec_context.thread_count = 1

    def add(self, frames: Iterable[np.ndarray]) -> None:
        """Append an episode's frames, each (height, width, 3) uint8 of one size."""
        for position, frame in enumerate(frames):
            height, width = frame.shape[:2]
            # A lossy video stores colours for pairs of pixels, so frames are padded to even sizes.
            more_rows, more_columns = (0, 0) if self._lossless else (height % 2, width % 2)
            even = np.pad(frame, ((0, more_rows), (0, more_columns), (0, 0)), mode="edge")
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
            picture.pts = self.num_frames
            picture.time_base = Fraction(1, self._fps)
            # Each episode begins with a key frame, so that readers can seek to it.
            if position == 0:
                picture.pict_type = PictureType.I
            with _video_errors("write", self.path):
                if self.num_frames == 0:
                    self._stream.height, self._stream.width = even.shape[:2]
                self._container.mux(self._stream.encode(picture))
            self.num_frames += 1

    def close(self) -> None:
        """Complete the file."""
        with _video_errors("write", self.path):
            self._container.mux(self._stream.encode(None))
            self._container.close()


def read_frames(
    path: Path, *, fps: float, first: int, count: int, size: tuple[int, int] = (16_384, 16_384)
) -> Iterator[np.ndarray]:
    """Yield `count` frames from number `first` on, each (height, width, 3) uint8; StorageError if one is missing."""
    due = first
    # A playlist in place of a video could name any file and any server.
    only_this_file = {"protocol_whitelist": "file", "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"}
    with _video_errors("read", path), av.open(str(path), options=only_this_file) as container:
        if not container.streams.video:
            raise StorageError(f"{path} holds no video")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise StorageError(f"{path} is of a codec that is not known here")
        # Refuse frames that exceed `size` [px] by more than a codec's padding, before any memory is allocated.
        most = (size[0] + 64) * (size[1] + 64)
        if stream.codec_context.height * stream.codec_context.width > most:
            found = (stream.codec_context.height, stream.codec_context.width)
            raise StorageError(f"{path} has frames of {found}; {size} are due")
        stream.codec_context.options = {"max_pixels": str(most)}
        time_base = stream.time_base or Fraction(1, 1)
        start = stream.start_time or 0
        # Seek to the last key frame before `first`, and skip the frames between.
        container.seek(start + int(first / fps / time_base), stream=stream)
        for frame in container.decode(stream):
            number = round(float(((frame.pts or 0) - start) * time_base * Fraction(fps)))
            if number < due:
                continue
            if number > due or due == first + count:
                break
            yield frame.to_ndarray(format="rgb24")
            due += 1
    if due < first + count:
        raise StorageError(f"{path} has no frame {due}; frames {first} to {first + count - 1} were wanted")


@contextmanager
def _video_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        with atomic.storage_errors(doing, path):
            yield
    except (FFmpegError, ValueError, ArithmeticError) as error:
        # PyAV raises ValueError for a damaged file, and its time base may be zero.
        words = error.strerror if isinstance(error, FFmpegError) else str(error)
        raise StorageError(f"cannot {doing} {path}: {plain_text(words or type(error).__name__)}") from error
