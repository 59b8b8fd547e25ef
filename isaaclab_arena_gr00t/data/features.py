"""The columns, pictures and groups of a LeRobot dataset, for the arrays and cameras of a recording."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import PictureType
from av.video.stream import VideoStream
from PIL import Image

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage import atomic
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena_gr00t.data import layout
from isaaclab_arena_gr00t.data.tables import TableExtent, read_pictures

# Read and write the videos of a LeRobot dataset: H.264 in MP4, one frame per step, every second one a key frame.


class VideoWriter:
    """Writes the frames of one episode after the other into one file; StorageError if this fails."""

    def __init__(self, path: Path, *, fps: int, lossless: bool) -> None:
        self.path = path
        self.num_frames = 0
        self._fps = fps
        self._lossless = lossless
        with _video_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(path), mode="w", format="mp4")
        self._stream: VideoStream | None = None

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
                if self._stream is None:
                    # Lossless RGB keeps every pixel, but some players cannot show it. All players show YUV 4:2:0.
                    codec, pixels, quality = (
                        ("libx264rgb", "rgb24", {"qp": "0"})
                        if self._lossless
                        else ("libx264", "yuv420p", {"crf": "18"})
                    )
                    options = {"preset": "medium", **quality}
                    stream = cast(VideoStream, self._container.add_stream(codec, rate=self._fps, options=dict(options)))
                    # Random access, which training needs, decodes from the last key frame; frames must be stored in
                    # display order.
                    stream.options = {**options, "g": "2", "bf": "0", "sc_threshold": "0"}
                    stream.height, stream.width = even.shape[:2]
                    stream.pix_fmt = pixels
                    # The number of threads changes the output, so it must not depend on the machine.
                    stream.codec_context.thread_count = 1
                    self._stream = stream
                self._container.mux(self._stream.encode(picture))
            self.num_frames += 1

    def close(self) -> None:
        """Complete the file."""
        with _video_errors("write", self.path):
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
            self._container.close()


def read_frames(
    path: Path, *, fps: float, first: int, count: int, size: tuple[int, int] = (16_384, 16_384)
) -> Iterator[np.ndarray]:
    """Yield `count` frames from number `first` on, each (height, width, 3) uint8; StorageError if one is missing."""
    due = first
    # A playlist in place of a video could name any file and any server.
    only_this_file = {
        "protocol_whitelist": "file",
        "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi",
    }
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


# Read pictures in a dataset's tables, PNG or JPEG, which LeRobot allows instead of videos.


def read_encoded(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield a column's pictures, each (height, width, 3) uint8; StorageError for another number or size."""
    height, width = size
    # The caller's ``max_size`` does not apply to pictures; their size bounds the bytes. PNG, which LeRobot writes, is
    # never much larger than the pixels themselves; JPEG is smaller.
    extent = replace(rows, max_size=4 * height * width + (1 << 16))
    found = 0
    for found, encoded in enumerate(read_pictures(path, name, extent), start=1):
        if found > rows.num_rows:
            raise StorageError(f"{path}: '{name}' has more than the {rows.num_rows} pictures that are due")
        what = f"{path}: picture {found} of '{name}'"
        try:
            with Image.open(BytesIO(encoded), formats=("PNG", "JPEG")) as picture:
                # The header has the size, so no picture larger than stated is decoded.
                if picture.size != (width, height):
                    raise StorageError(f"{what} has {picture.size} pixels across and down; {(width, height)} are due")
                frame = np.asarray(picture.convert("RGB"))
        except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
            raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
        yield frame
    if found < rows.num_rows:
        raise StorageError(f"{path}: '{name}' has {found} pictures; {rows.num_rows} are due")


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
        return sum(map(len, self.groups.values()))

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return the begin and end of each group in the column."""
        spans, start = {}, 0
        for key, places in self.groups.items():
            spans[key] = (start, start + len(places))
            start += len(places)
        return spans

    def packed(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the column, (num_steps, size) float32, from its source arrays, each (num_steps, size)."""
        source = np.concatenate([arrays[path] for path in self.sources], axis=1)
        places = [place for group in self.groups.values() for place in group]
        return source[:, places].astype(np.float32)

    def unpacked(self, column: np.ndarray) -> dict[str, np.ndarray]:
        """Return the source arrays in the column (num_steps, size), and groups without their complete source."""
        places = [place for group in self.groups.values() for place in group]
        position = {place: number for number, place in enumerate(places)}
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
    groups, start = {}, 0
    for key, (_, size) in arrays.items():
        groups[key] = tuple(range(start, start + size))
        start += size
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
            features[layout.PICTURES_PREFIX + key] = feature

        # The other columns hold one number per control step.
        scalars: dict[str, str] = {layout.REWARD: "float32"} if self.rewards else {}
        scalars |= {layout.DONE: "bool", layout.ANNOTATION: "int64", layout.TIMESTAMP: "float32"}
        scalars |= dict.fromkeys((layout.FRAME_INDEX, layout.EPISODE_INDEX, layout.INDEX, layout.TASK_INDEX), "int64")
        return features | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in scalars.items()}
