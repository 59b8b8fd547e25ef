"""Films episodes: a video per episode and camera, and a contact sheet of the job."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from isaaclab_arena.interfaces.environment import VIEWPORT, Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.filmable import Filmable
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.recording.captions import caption_bar
from isaaclab_arena.recording.contact_sheet import MAX_EPISODES, FrameSamples, SheetStrip, write_contact_sheet
from isaaclab_arena.recording.slot_numbers import SlotNumbers
from isaaclab_arena.recording.video_file import VideoFile
from isaaclab_arena.recording.video_options import VideoOptions
from isaaclab_arena.storage import layout

_LOG = logging.getLogger(__name__)


class VideoRecorder(Observer):
    """Films the episodes of one job, from the frame before the first step to the one after the last.

    Filming changes nothing for the policy, the recording and the results: it only reads the simulation.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        options: What is filmed.
        names_rebuilds: Whether file names say which rebuild an episode belongs to.
    """

    def __init__(self, job_directory: Path, job: str, options: VideoOptions, *, names_rebuilds: bool = False) -> None:
        self._directory = job_directory
        self._job = job
        self._options = options
        self._names_rebuilds = names_rebuilds
        self._rebuild = 0
        self._slots = SlotNumbers()
        self._takes: dict[Environment, dict[int, _Take]] = {}
        self._sheet: list[SheetStrip] = []
        self._said_no_cameras = False

    def begin_rebuild(self, rebuild: int, environments: Sequence[Environment]) -> None:
        """Say which rebuild and which environments the next episodes belong to, and let go of those before."""
        self._rebuild = rebuild
        self._slots = SlotNumbers(environments)
        self._discard_takes()

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Open the videos and put the first frame into them."""
        del observation
        cameras = self._cameras(environment)
        filmed = [start for start in starts if cameras and self._options.films(start.episode)]
        for start in filmed:
            files = {
                camera: VideoFile(
                    self._path(environment, camera, start),
                    frames_per_second=1 / environment.control_dt,
                    title=f"{self._job}, episode {start.episode.episode_index}, {camera}",
                )
                for camera in cameras
            }
            self._takes.setdefault(environment, {})[start.env_id] = _Take(start, self._job, files)
        self._film(environment, [start.env_id for start in filmed])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add what the step led to."""
        del transition
        # Whatever is being filmed runs, so nobody has to wait for a GPU to say which env slots do.
        self._film(environment, list(self._takes.get(environment, {})))

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Complete the videos, or forget them if they are not to be kept."""
        take = self._takes.get(environment, {}).pop(record.env_id, None)
        if take is None:
            return
        if not self._options.keeps(record):
            take.discard()
            return
        strip = take.finish(record)
        if len(self._sheet) < MAX_EPISODES:
            self._sheet.append(strip)

    def close(self) -> None:
        """Forget the videos of episodes under way, and write the contact sheet of those that finished."""
        self._discard_takes()
        if self._sheet:
            write_contact_sheet(self._directory / layout.CONTACT_SHEET_FILE, self._sheet)
            self._sheet = []

    def _discard_takes(self) -> None:
        while self._takes:
            _, takes = self._takes.popitem()
            for take in takes.values():
                take.discard()

    def _cameras(self, environment: Environment) -> tuple[str, ...]:
        """Return which cameras are filmed, the viewport first."""
        filmable = environment.filmable if isinstance(environment, Filmable) else ()
        viewport = [name for name in filmable if name == VIEWPORT and self._options.viewport]
        others = [name for name in filmable if name != VIEWPORT and self._options.camera]
        if not viewport and not others and not self._said_no_cameras:
            self._said_no_cameras = True
            hint = getattr(environment, "filming_hint", "")
            _LOG.warning("job '%s' has no videos: its environment has no such cameras%s", self._job, hint)
        return (*viewport, *others)

    def _path(self, environment: Environment, camera: str, start: EpisodeStart) -> Path:
        name = layout.video_file_name(
            None if camera == VIEWPORT else camera,
            env_id=self._slots.of(environment, start.env_id),
            episode_index=start.episode.episode_index,
            rebuild=self._rebuild if self._names_rebuilds else None,
        )
        return self._directory / layout.VIDEOS_DIRECTORY / name

    def _film(self, environment: Environment, env_ids: Sequence[int]) -> None:
        if not env_ids or not isinstance(environment, Filmable):
            return
        takes = self._takes[environment]
        frames = environment.film(env_ids, takes[env_ids[0]].cameras)
        for index, env_id in enumerate(env_ids):
            takes[env_id].add({camera: pictures[index] for camera, pictures in frames.items()})


class _Take:
    """The videos of one episode. Each frame is written when the next one comes, so the last one can tell the end."""

    def __init__(self, start: EpisodeStart, job: str, files: Mapping[str, VideoFile]) -> None:
        self._episode = f"episode {start.episode.episode_index}"
        self._job = job
        self._files = files
        self._latest: Mapping[str, np.ndarray] = {}
        self._samples = FrameSamples()
        self._bars: dict[int, np.ndarray] = {}

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self._files)

    def add(self, frames: Mapping[str, np.ndarray]) -> None:
        self._write_latest()
        self._latest = frames
        self._samples.add(frames[self.cameras[0]])

    def finish(self, record: EpisodeRecord) -> SheetStrip:
        outcome = "not measured" if record.outcome is None else str(record.outcome)
        self._bars = {}
        self._write_latest(f": {outcome}")
        for file in self._files.values():
            file.finish()
        last = self._latest[self.cameras[0]]
        return SheetStrip(record=record, frames=(*self._samples.first_and_middle(), last))

    def discard(self) -> None:
        for file in self._files.values():
            file.discard()

    def _write_latest(self, ending: str = "") -> None:
        for camera, frame in self._latest.items():
            width = frame.shape[1]
            if width not in self._bars:
                text = f"{self._episode}{ending}"
                self._bars[width] = caption_bar(width, [f"{self._job}, {text}", text, text.removeprefix("episode ")])
            self._files[camera].add(np.concatenate([frame, self._bars[width]]))
