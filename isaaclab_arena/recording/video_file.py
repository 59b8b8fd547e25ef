"""Writes one video frame by frame; the file appears under its name when it is complete."""

from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import storage_errors, temporary_path

# The macroblock tree of x264 core 165 answers differently from run to run: without it, equal frames make equal files,
# an eighth larger at the same quality.
_ENCODER = {"preset": "veryfast", "crf": "18", "x264-params": "mbtree=0"}


class VideoFile:
    """An MP4 file, H.264 in YUV 4:2:0, which every player and browser shows. Equal frames make equal bytes.

    Args:
        path: Where it will lie; its directory is made.
        frames_per_second: How fast it plays.
        title: What players call it.

    Attributes:
        path: Where it will lie.

    Raises:
        StorageError: If it cannot be written.
    """

    def __init__(self, path: Path, *, frames_per_second: float, title: str) -> None:
        self.path = path
        self._temporary = temporary_path(path)
        self._rate = Fraction(frames_per_second).limit_denominator(1000)
        with storage_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._temporary), mode="w", format="mp4")
        self._container.metadata["title"] = title
        self._stream: VideoStream | None = None

    def add(self, frame: np.ndarray) -> None:
        """Append a frame.

        Args:
            frame: Shape: (height, width, 3), uint8, the same for every frame.
        """
        even = even_sized(frame)
        if self._stream is None:
            self._stream = self._new_stream(even)
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        with storage_errors("write", self.path):
            self._container.mux(self._stream.encode(picture))

    def finish(self) -> None:
        """Complete the file and put it in place, over one of the same name.

        Raises:
            StorageError: If it cannot be written, or has no frames.
        """
        if self._stream is None:
            self.discard()
            raise StorageError(f"cannot write {self.path}: it has no frames")
        with storage_errors("write", self.path):
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._temporary.replace(self.path)

    def discard(self) -> None:
        """Forget the video; nothing of it stays on disk."""
        with storage_errors("remove", self._temporary):
            self._container.close()
            self._temporary.unlink(missing_ok=True)

    def _new_stream(self, frame: np.ndarray) -> VideoStream:
        stream = cast(VideoStream, self._container.add_stream("libx264", rate=self._rate, options=dict(_ENCODER)))
        stream.height, stream.width = frame.shape[:2]
        stream.pix_fmt = "yuv420p"
        # Encoding must not take cores from the other ranks.
        stream.codec_context.thread_count = 1
        return stream


def even_sized(frame: np.ndarray) -> np.ndarray:
    """Return a frame of even size, as YUV 4:2:0 needs: its lower or right edge is repeated where it has to be."""
    height, width = frame.shape[:2]
    # Padding by nothing takes as long as by something.
    if height % 2 == width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
