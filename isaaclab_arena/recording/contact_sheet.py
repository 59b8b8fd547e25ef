"""Draws the contact sheet of a job: a strip per episode with its first, middle and last frame and its outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.recording.captions import text_block, thumbnail, write_png

MAX_EPISODES = 200
"""Episodes on a sheet; with more, nobody would look."""

_STRIP_HEIGHT = 96
_TEXT_WIDTH = 150
_GAP = 4
_STRIPS_PER_COLUMN = 20
_SAMPLES = 8
_COLOURS = {
    Outcome.SUCCESS: (120, 220, 120),
    Outcome.FAILURE: (250, 120, 110),
    Outcome.TIMEOUT: (250, 190, 90),
    Outcome.ERROR: (230, 110, 230),
}
_UNKNOWN_COLOUR = (200, 200, 200)


_LARGEST_KEPT_BYTES = 2**20
"""Frames that are larger are not kept whole until it is known whether they get onto the sheet."""


class FrameSamples:
    """A few frames spread over an episode whose length is not known beforehand."""

    def __init__(self) -> None:
        self._frames: list[np.ndarray] = []
        self._stride = 1
        self._seen = 0

    def add(self, frame: np.ndarray) -> None:
        """Take note of the next frame, which nobody changes afterwards. Shape: (height, width, 3), uint8."""
        if self._seen % self._stride == 0:
            if len(self._frames) == _SAMPLES:
                self._frames = self._frames[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                is_large = frame.nbytes > _LARGEST_KEPT_BYTES
                self._frames.append(thumbnail(frame, _STRIP_HEIGHT) if is_large else frame)
        self._seen += 1

    def first_and_middle(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame and one near the middle, off by an eighth of the episode at most."""
        middle = round((self._seen - 1) / 2 / self._stride)
        return self._frames[0], self._frames[min(middle, len(self._frames) - 1)]


@dataclass(frozen=True, kw_only=True)
class SheetStrip:
    """An episode on the sheet.

    Attributes:
        record: How it went.
        frames: First, middle and last, as high as a strip. Shape of each: (height, width, 3), uint8.
    """

    record: EpisodeRecord
    frames: Sequence[np.ndarray]

    @classmethod
    def of(cls, record: EpisodeRecord, frames: Sequence[np.ndarray]) -> "SheetStrip":
        """Return the strip of an episode with small copies of frames of any size."""
        return cls(record=record, frames=[thumbnail(frame, _STRIP_HEIGHT) for frame in frames])

    def image(self) -> np.ndarray:
        """Return the strip as a picture. Shape: (height, width, 3), uint8."""
        record = self.record
        outcome = record.outcome
        lines = [
            "not measured" if outcome is None else str(outcome),
            f"episode {record.episode.episode_index}",
            f"{record.length} steps",
            f"return {record.episode_return:.2f}",
        ]
        colour = _UNKNOWN_COLOUR if outcome is None else _COLOURS[outcome]
        return np.concatenate([*self.frames, text_block(_TEXT_WIDTH, _STRIP_HEIGHT, lines, colour=colour)], axis=1)


def write_contact_sheet(path: Path, strips: Sequence[SheetStrip]) -> None:
    """Write the sheet of a job as PNG, by episode, in columns; it is complete or not there.

    Raises:
        StorageError: If it cannot be written.
    """
    ordered = sorted(strips, key=lambda strip: strip.record.episode.episode_index)
    write_png(path, arranged([strip.image() for strip in ordered]))


def arranged(images: Sequence[np.ndarray]) -> np.ndarray:
    """Return pictures of one size below each other, in as many columns as are needed, with gaps between.

    Shape: (height, width, 3), uint8.
    """
    height, width = images[0].shape[:2]
    num_strips = min(len(images), _STRIPS_PER_COLUMN)
    num_columns = -(-len(images) // num_strips)
    sheet = np.zeros((num_strips * (height + _GAP) - _GAP, num_columns * (width + _GAP) - _GAP, 3), np.uint8)
    for index, image in enumerate(images):
        column, strip = divmod(index, num_strips)
        top, left = strip * (height + _GAP), column * (width + _GAP)
        sheet[top : top + height, left : left + width] = image
    return sheet
