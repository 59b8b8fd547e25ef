"""The files of a LeRobot dataset: their layout, the columns for the arrays of a recording, videos and tables."""

import os
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from io import BytesIO
from itertools import accumulate, count
from pathlib import Path
from typing import Any, TypeAlias, cast

import av
import numpy as np
import pyarrow as pa
from av.error import FFmpegError
from av.video.frame import PictureType
from av.video.stream import VideoStream
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.lerobot import table_worker
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import atomic
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena.workers import RequestError, WorkerError, ask_kept_worker

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
            raise StorageError(f"{path} has frames of {found}, expected {size}")
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


# Compute exact statistics of a dataset's columns, for any number of control steps.

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Statistics: TypeAlias = Mapping[str, np.ndarray]
"""``min``, ``max``, ``mean``, ``std`` and the `QUANTILES`, each of one shape, and ``count`` of shape (1,)."""


class ColumnSpool:
    """All values of one column, in a temporary file in `directory`, because quantiles need all of them."""

    def __init__(self, directory: Path, size: int) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed in `finish`
        self._size = size  # numbers per control step

    def append(self, values: np.ndarray) -> None:
        """Add control steps. Shape: (n, size)."""
        self._file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    def finish(self) -> Statistics:
        """Return the statistics of all added control steps (at least one), and remove the file."""
        self._file.flush()
        values = np.memmap(self._file, np.float64, "r").reshape(-1, self._size)
        # Only one number of all control steps is in memory at a time.
        columns = [array_statistics(values[:, place : place + 1]) for place in range(self._size)]
        del values
        self._file.close()
        joined = {name: np.concatenate([column[name] for column in columns]) for name in columns[0] if name != "count"}
        return joined | {"count": columns[0]["count"]}


def array_statistics(values: np.ndarray) -> Statistics:
    """Return the statistics of each column of `values` of shape (num_steps >= 1, size); shape of each: (size,)."""
    samples = np.array(values, dtype=np.float64)
    quantiles = np.quantile(samples, list(QUANTILES.values()), axis=0)
    return {
        "min": samples.min(axis=0),
        "max": samples.max(axis=0),
        "mean": samples.mean(axis=0),
        "std": samples.std(axis=0),
        "count": np.array([len(samples)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def picture_statistics(counts: np.ndarray, num_frames: int) -> Statistics:
    """Return LeRobot's statistics of intensities in [0, 1], each (channels, 1, 1), from counts: (channels, 256)."""
    levels = np.arange(256, dtype=np.float64)
    channels = []
    for channel in counts:
        total, found = int(channel.sum()), np.flatnonzero(channel)
        mean = float(channel @ levels / total)
        std = np.sqrt(channel @ (levels - mean) ** 2 / total)
        # The same quantiles as `numpy.quantile` of the values themselves.
        positions, ends = np.array(list(QUANTILES.values())) * (total - 1), np.cumsum(channel)
        below = np.floor(positions).astype(np.int64)
        low, high = (np.searchsorted(ends, np.minimum(ranks, total - 1), side="right") for ranks in (below, below + 1))
        channels.append([found[0], found[-1], mean, std, *(low + (high - low) * (positions - below))])
    shaped = np.array(channels).T.reshape(-1, len(counts), 1, 1) / 255
    return dict(zip(("min", "max", "mean", "std", *QUANTILES), shaped, strict=True)) | {"count": np.array([num_frames])}


# Read and write the tables of a dataset: Parquet files, one row per control step or per episode.


Columns: TypeAlias = Mapping[str, np.ndarray | list[bytes]]
"""Numbers of each control step, or its encoded picture."""


def steps_table(columns: Columns) -> pa.Table:
    """Return a table of control steps: numbers, (num_steps[, size]), and encoded pictures, one file per step."""
    # Hugging Face's `datasets` stores a picture as this struct, which LeRobot reads.
    picture = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        if isinstance(values, list):
            arrays[name] = pa.array([{"bytes": each, "path": None} for each in values], picture)
            continue
        # A column of size 1 is stored as plain numbers, not as lists of one number.
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        size = values.shape[1] if values.ndim == 2 else 1
        arrays[name] = flat if size == 1 else pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.table(arrays)


@dataclass(eq=False)
class TableFiles:
    """Writes tables of one kind one after the other, and begins a new file if the present one is large enough."""

    root: Path
    template: str  # path in `root`, by chunk and file
    sizes: FileSizes
    _number: int = field(default=-1, init=False)  # of the present file, counted over all chunks
    _path: Path = field(default=Path(), init=False)
    _writer: parquet.ParquetWriter | None = field(default=None, init=False)

    def next_number(self) -> int:
        """Return the number of the file for the next table."""
        if self._writer is None or self._path.stat().st_size >= self.sizes.data_mb * MEGABYTE:
            return self._number + 1
        return self._number

    def append(self, table: pa.Table) -> None:
        """Write a table as a row group of its own; StorageError if this fails."""
        number = self.next_number()
        if number != self._number:
            self.close()
            self._number = number
            chunk, file = divmod(number, self.sizes.chunk)
            self._path = self.root / self.template.format(chunk_index=chunk, file_index=file)
        with parquet_errors("write", self._path):
            if self._writer is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet.ParquetWriter(self._path, table.schema, compression="snappy")
            self._writer.write_table(table)

    def close(self) -> None:
        """Complete the current file."""
        if self._writer is not None:
            with parquet_errors("write", self._path):
                self._writer.close()
            self._writer = None


@dataclass(frozen=True, kw_only=True)
class TableExtent:
    """The wanted rows of a table, and the largest number of values that a column may have in a row."""

    # A row is wanted if column `key` has `value`.
    key: str
    value: int
    num_rows: int  # expected number of wanted rows; more are an error
    max_size: int


def read_columns(path: Path, names: Sequence[str], extent: TableExtent) -> dict[str, np.ndarray]:
    """Return columns of the wanted rows, each (num_rows, size); StorageError if rows, columns or types do not fit."""
    return next(_pieces(path, "columns", names=list(names), **asdict(extent)))[1]


def episode_rows(path: Path, key: str, wanted: Container[int]) -> dict[int, int]:
    """Return the number of rows of the `wanted` episodes, by column `key`."""
    counts: Counter[int] = Counter()
    for _, found in _pieces(path, "episodes", key=key):
        rows = zip(found["owner"].tolist(), found["count"].tolist(), strict=True)
        counts.update({owner: number for owner, number in rows if owner in wanted})
    return counts


def read_rows(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with the named columns that exist; StorageError if the file cannot be read."""
    for piece, _ in _pieces(path, "rows", names=list(names)):
        yield from piece["rows"]


def read_pictures(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield a column's PNG or JPEG pictures, each (height, width, 3) uint8; StorageError for another number or size."""
    height, width = size
    # The caller's ``max_size`` does not apply to pictures; their size bounds the bytes. PNG, which LeRobot writes, is
    # never much larger than the pixels themselves; JPEG is smaller.
    wanted = {"name": name, "key": rows.key, "value": rows.value, "max_size": 4 * height * width + (1 << 16)}
    encoded = (each.tobytes() for _, piece in _pieces(path, "pictures", **wanted) for each in piece.values())
    found = 0
    for found, content in enumerate(encoded, start=1):
        if found > rows.num_rows:
            raise StorageError(f"{path}: '{name}' has more than the expected {rows.num_rows} pictures")
        what = f"{path}: picture {found} of '{name}'"
        try:
            with Image.open(BytesIO(content), formats=("PNG", "JPEG")) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                if picture.size != (width, height):
                    raise StorageError(f"{what} has {picture.size} pixels across and down, expected {(width, height)}")
                frame = np.asarray(picture.convert("RGB"))
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
        yield frame
    if found < rows.num_rows:
        raise StorageError(f"{path}: '{name}' has {found} pictures, expected {rows.num_rows}")


MAX_MEMORY_BYTES = 4 << 30
"""Address space of the process that reads foreign tables: Arrow reserves more than it uses."""

_TIMEOUT_S = 300.0  # for each piece
# A thread of these libraries reserves memory, which the limit counts.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
_READER = Path(table_worker.__file__)
_NUMBERS = count()


def _pieces(path: Path, kind: str, **wanted: Any) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Yield the pieces of one reading in another process, which is kept; StorageError if the file is refused."""
    message: dict[str, Any] = {"reading": next(_NUMBERS), "memory_bytes": MAX_MEMORY_BYTES}
    asked = {"path": str(path.absolute()), "shown": str(path), "kind": kind, "wanted": wanted}
    while True:
        try:
            piece, arrays = ask_kept_worker(_READER, sys.executable, _ONE_THREAD, {**message, **asked}, _TIMEOUT_S)
        except (RequestError, WorkerError) as error:
            raise StorageError(f"cannot read {path}: {plain_text(error)[:500]}") from error
        if piece.get("errno") is not None:
            raise atomic.storage_error("read", path, OSError(piece["errno"], os.strerror(piece["errno"])))
        if "failed" in piece:
            # Arrow's message may repeat bytes of a damaged file.
            raise StorageError(f"cannot read {path}: {plain_text(piece['failed'])[:500]}")
        if "refused" in piece:
            raise StorageError(plain_text(piece["refused"]))
        if not piece:
            return
        yield piece, arrays
        asked = {}


@contextmanager
def parquet_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into a `StorageError` that names the file."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise atomic.storage_error(doing, path, error) from error
        # pyarrow's message may repeat bytes of a damaged file.
        raise StorageError(f"cannot {doing} {path}: {plain_text(error)[:500]}") from error
