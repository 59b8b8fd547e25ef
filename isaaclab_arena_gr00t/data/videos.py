"""The pictures of a LeRobot dataset: videos, and pictures in its tables."""

import dataclasses
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena_gr00t.data.tables import TableExtent, read_pictures

# Read and write the videos of a LeRobot dataset: H.264 in MP4, one frame per step, every second one a key frame.

_LOSSY = ("libx264", "yuv420p", {"preset": "medium", "crf": "18"})
_LOSSLESS = ("libx264rgb", "rgb24", {"preset": "medium", "qp": "0"})
# Random access, which training needs, decodes from the last key frame; frames must be stored in display order.
_RANDOM_ACCESS = {"g": "2", "bf": "0", "sc_threshold": "0"}
_FILLED_UP = 64
_MAX_SIZE = (16_384, 16_384)
# A playlist in place of a video could name any file and any server.
_ONLY_THIS_FILE = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi",
}


class VideoWriter:
    """Writes the frames of one episode after the other into one file; StorageError if this fails."""

    def __init__(self, path: Path, *, fps: int, lossless: bool) -> None:
        self.path = path
        self.num_frames = 0
        self._fps = fps
        # Lossless RGB keeps every pixel, but some players cannot show it. All players show YUV 4:2:0.
        self._encoder = _LOSSLESS if lossless else _LOSSY
        with _video_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(path), mode="w", format="mp4")
        self._stream: VideoStream | None = None

    @property
    def num_bytes(self) -> int:
        """The approximate size of the file so far [bytes]; 0 until the first frame leaves the encoder."""
        return self.path.stat().st_size if self.path.exists() else 0

    def add(self, frames: Iterable[np.ndarray]) -> None:
        """Append an episode's frames, each (height, width, 3) uint8 of one size; see `stored_size`."""
        is_first = True
        for frame in frames:
            height, width = frame.shape[:2]
            even_height, even_width = (height, width) if self._encoder is _LOSSLESS else stored_size(height, width)
            even = np.pad(frame, ((0, even_height - height), (0, even_width - width), (0, 0)), mode="edge")
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
            picture.pts = self.num_frames
            picture.time_base = Fraction(1, self._fps)
            # Each episode begins with a key frame, so that readers can seek to it.
            if is_first:
                picture.pict_type = PictureType.I
            with _video_errors("write", self.path):
                self._container.mux(self._stream_for(even).encode(picture))
            self.num_frames += 1
            is_first = False

    def close(self) -> None:
        """Complete the file."""
        with _video_errors("write", self.path):
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
            self._container.close()

    def _stream_for(self, frame: np.ndarray) -> VideoStream:
        if self._stream is None:
            codec, pixels, options = self._encoder
            stream = cast(VideoStream, self._container.add_stream(codec, rate=self._fps, options=dict(options)))
            stream.options = {**options, **_RANDOM_ACCESS}
            stream.height, stream.width = frame.shape[:2]
            stream.pix_fmt = pixels
            # The number of threads changes the output, so it must not depend on the machine.
            stream.codec_context.thread_count = 1
            self._stream = stream
        return self._stream


def stored_size(height: int, width: int) -> tuple[int, int]:
    """Return the even height and width to which a frame is padded; colours are stored for pairs of pixels."""
    return height + height % 2, width + width % 2


def described_video(*, fps: int, height: int, width: int, lossless: bool) -> dict[str, Any]:
    """Return the entry of a video feature's files in ``info.json``."""
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "gbrp" if lossless else "yuv420p",
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }


def read_frames(
    path: Path, *, fps: float, first: int, count: int, size: tuple[int, int] = _MAX_SIZE
) -> Iterator[np.ndarray]:
    """Yield `count` frames from number `first` on, each (height, width, 3) uint8; StorageError if one is missing."""
    due = first
    with _video_errors("read", path), av.open(str(path), options=dict(_ONLY_THIS_FILE)) as container:
        if not container.streams.video:
            raise StorageError(f"{path} holds no video")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise StorageError(f"{path} is of a codec that is not known here")
        # Refuse frames that exceed `size` [px] by more than a codec's padding, before any memory is allocated.
        most = (size[0] + _FILLED_UP) * (size[1] + _FILLED_UP)
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
        with storage_errors(doing, path):
            yield
    except (FFmpegError, ValueError, ArithmeticError) as error:
        # PyAV raises ValueError for a damaged file, and its time base may be zero.
        words = error.strerror if isinstance(error, FFmpegError) else str(error)
        raise StorageError(f"cannot {doing} {path}: {plain_text(words or type(error).__name__)}") from error


# Read and write pictures in a dataset's tables, as PNG or JPEG, which LeRobot allows instead of videos.

# PNG, which LeRobot writes, is never much larger than the pixels themselves; JPEG is smaller.
_FORMATS = ("PNG", "JPEG")
_OVERHEAD_BYTES = 1 << 16


def read_encoded(path: Path, name: str, rows: TableExtent, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield a column's pictures, each (height, width, 3) uint8; StorageError for another number or size."""
    height, width = size
    # The caller's ``max_size`` does not apply to pictures; their size bounds the bytes.
    most_bytes = 4 * height * width + _OVERHEAD_BYTES
    extent = dataclasses.replace(rows, max_size=most_bytes)
    found = 0
    for found, encoded in enumerate(read_pictures(path, name, extent), start=1):
        if found > rows.num_rows:
            raise StorageError(f"{path}: '{name}' has more than the {rows.num_rows} pictures that are due")
        yield _decoded(encoded, (width, height), f"{path}: picture {found} of '{name}'")
    if found < rows.num_rows:
        raise StorageError(f"{path}: '{name}' has {found} pictures; {rows.num_rows} are due")


def png_bytes(frame: np.ndarray) -> bytes:
    """Return a picture (height, width, 3) uint8 as a PNG file."""
    file = BytesIO()
    Image.fromarray(frame).save(file, format="PNG")
    return file.getvalue()


def _decoded(encoded: bytes, size: tuple[int, int], what: str) -> np.ndarray:
    try:
        with Image.open(BytesIO(encoded), formats=_FORMATS) as picture:
            # The header has the size, so no picture larger than stated is decoded.
            if picture.size != size:
                raise StorageError(f"{what} has {picture.size} pixels across and down; {size} are due")
            return np.asarray(picture.convert("RGB"))
    except (OSError, EOFError, SyntaxError, ValueError, struct.error) as error:
        raise StorageError(f"{what} is neither PNG nor JPEG, or is damaged") from error
