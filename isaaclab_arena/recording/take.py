"""The videos of one episode under way, which a thread beside the loop draws and encodes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.recording.captions import caption_bar, write_poster
from isaaclab_arena.recording.contact_sheet import FrameSamples, SheetStrip
from isaaclab_arena.recording.film_threads import Task
from isaaclab_arena.recording.video_file import VideoFile
from isaaclab_arena.storage.layout import poster_file

Draw: TypeAlias = Callable[[], Mapping[str, np.ndarray]]
"""Returns a frame of each camera, by its name. Shape of each: (height, width, 3), uint8."""


class Take:
    """The videos of one episode. Each frame is written when the next one comes, so the last one can tell the end.

    The loop calls the public methods, which wait for nothing but room for a task. A video whose frames
    could not all be drawn and written does not get its name.

    Args:
        start: The episode.
        job: Name of the job.
        files: Camera to its video.
        do: Has the tasks of this film done in order, beside the loop.
        steps_per_frame: Control steps from one frame to the next.
    """

    def __init__(
        self,
        start: EpisodeStart,
        job: str,
        files: Mapping[str, VideoFile],
        do: Callable[[Task], None],
        *,
        steps_per_frame: int,
    ) -> None:
        self._episode = f"episode {start.episode.episode_index}"
        self._job = job
        self._files = files
        self._do = do
        self._steps_per_frame = steps_per_frame
        self._num_steps = 0
        self._is_wanted = True
        self._latest: Mapping[str, np.ndarray] = {}
        self._samples = FrameSamples()
        self._bars: dict[int, np.ndarray] = {}

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that are filmed."""
        return tuple(self._files)

    @property
    def videos(self) -> tuple[Path, ...]:
        """Where its videos lie once they are complete."""
        return tuple(file.path for file in self._files.values())

    @property
    def shows_latest_step(self) -> bool:
        """Whether the step that was counted last has a frame."""
        return self._num_steps % self._steps_per_frame == 0

    def step_ends_with_a_frame(self) -> bool:
        """Count a control step, and return whether what it led to is to be filmed."""
        self._num_steps += 1
        return self.shows_latest_step

    def add(self, draw: Draw) -> None:
        """Add a frame."""
        self._do(partial(self._try, partial(self._add, draw)))

    def finish(self, record: EpisodeRecord, sheet: list[SheetStrip] | None) -> None:
        """Complete the videos with their posters, which show how the episode ended, and add it to a contact sheet."""
        self._do(partial(self._try, partial(self._finish, record, sheet)))

    def discard(self) -> None:
        """Forget the videos; frames that wait are not drawn any more."""
        self._is_wanted = False
        self._do(self._discard_files)

    def _try(self, task: Callable[[], None]) -> None:
        if not self._is_wanted:
            return
        try:
            task()
        except BaseException:
            self._is_wanted = False
            with suppress(StorageError):
                self._discard_files()
            raise

    def _add(self, draw: Draw) -> None:
        self._write_latest()
        self._latest = draw()
        self._samples.add(self._latest[self.cameras[0]])

    def _finish(self, record: EpisodeRecord, sheet: list[SheetStrip] | None) -> None:
        outcome = "not measured" if record.outcome is None else str(record.outcome)
        self._bars = {}
        self._write_latest(f": {outcome}")
        for camera, file in self._files.items():
            # A video that is there has its poster.
            write_poster(poster_file(file.path), self._latest[camera])
            file.finish()
        if sheet is not None:
            last = self._latest[self.cameras[0]]
            sheet.append(SheetStrip.of(record, (*self._samples.first_and_middle(), last)))

    def _discard_files(self) -> None:
        for file in self._files.values():
            file.discard()

    def _write_latest(self, ending: str = "") -> None:
        for camera, frame in self._latest.items():
            width = frame.shape[1]
            if width not in self._bars:
                text = f"{self._episode}{ending}"
                self._bars[width] = caption_bar(width, [f"{self._job}, {text}", text, text.removeprefix("episode ")])
            self._files[camera].add(np.concatenate([frame, self._bars[width]]))
