"""Films episodes: a video per episode and camera, and a contact sheet of the job."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from isaaclab_arena.interfaces.environment import VIEWPORT, Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.pictures import Filmable, FilmableLater
from isaaclab_arena.recording.contact_sheet import MAX_EPISODES, SheetStrip, write_contact_sheet
from isaaclab_arena.recording.film_threads import FilmThreads
from isaaclab_arena.recording.slot_numbers import SlotNumbers
from isaaclab_arena.recording.take import Draw, Take
from isaaclab_arena.recording.video_file import VideoFile
from isaaclab_arena.recording.video_options import VideoOptions
from isaaclab_arena.storage import layout

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FilmPlace:
    """What the name of a film says beside camera and episode.

    Attributes:
        env_id: Env slot among all of the job's.
        rebuild: Which rebuild, None for a job that has one.
    """

    env_id: int
    rebuild: int | None = None


class VideoRecorder(Observer):
    """Films the episodes of one job, from the frame before the first step to the one after the last.

    Filming changes nothing for the policy, the recording and the results: it only reads the simulation. The loop
    copies what is to be seen; threads draw and encode it. What goes wrong there is raised by the next call.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        options: What is filmed.
        names_rebuilds: Whether file names say which rebuild an episode belongs to.
        num_threads: Threads that draw and encode beside the loop.
        places: Where each episode ran, by its index, for films of a run that is over; by default where it runs now.
    """

    def __init__(
        self,
        job_directory: Path,
        job: str,
        options: VideoOptions,
        *,
        names_rebuilds: bool = False,
        num_threads: int = 1,
        places: Mapping[int, FilmPlace] | None = None,
    ) -> None:
        self._directory = job_directory
        self._job = job
        self._options = options
        self._names_rebuilds = names_rebuilds
        self._places = places or {}
        self._rebuild = 0
        self._slots = SlotNumbers()
        self._threads = FilmThreads(num_threads)
        self._takes: dict[Environment, dict[int, Take]] = {}
        self._sheet: list[SheetStrip] = []
        self._num_strips = 0
        self._said_no_cameras = False

    def begin_rebuild(self, rebuild: int, environments: Sequence[Environment]) -> None:
        """Say which rebuild and which environments the next episodes belong to, and let go of those before."""
        self._rebuild = rebuild
        self._slots = SlotNumbers(environments)
        self._discard_takes()

    def pictures_to_see(self, environment: Environment, starting: Sequence[EpisodeStart]) -> Sequence[int] | None:
        """Return the env slots that are filmed, where a film knows no pictures but those that were drawn for a step.

        Those are drawn after every step, because any step may be the last, and the last one always has a frame.
        """
        if not self._options.camera or not getattr(environment, "films_only_drawn", False):
            return ()
        beginning = [start.env_id for start in starting if self._options.films(start.episode)]
        return [*self._takes.get(environment, ()), *beginning]

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Open the videos and put the first frame into them."""
        del observation
        self._threads.raise_failure()
        cameras = self._cameras(environment)
        filmed = [start for start in starts if cameras and self._options.films(start.episode)]
        steps_per_frame = self._options.steps_per_frame(environment.control_dt)
        for start in filmed:
            files = {
                camera: VideoFile(
                    self._path(environment, camera, start),
                    frames_per_second=1 / (steps_per_frame * environment.control_dt),
                    title=f"{self._job}, episode {start.episode.episode_index}, {camera}",
                )
                for camera in cameras
            }
            take = Take(start, self._job, files, self._threads.for_a_film(), steps_per_frame=steps_per_frame)
            self._takes.setdefault(environment, {})[start.env_id] = take
        self._film(environment, [start.env_id for start in filmed])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add what the step led to, if it is time for a frame."""
        del transition
        self._threads.raise_failure()
        # Whatever is being filmed runs, so nobody has to wait for a GPU to say which env slots do.
        takes = self._takes.get(environment, {})
        self._film(environment, [env_id for env_id, take in takes.items() if take.step_ends_with_a_frame()])

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Complete the videos, or forget them if they are not to be kept."""
        self._threads.raise_failure()
        takes = self._takes.get(environment, {})
        take = takes.get(record.env_id)
        if take is None:
            return
        keeps = self._options.keeps(record)
        if keeps and not take.shows_latest_step:
            self._film(environment, [record.env_id])
        del takes[record.env_id]
        if not keeps:
            take.discard()
            return
        self._num_strips += 1
        take.finish(record, self._sheet if self._num_strips <= MAX_EPISODES else None)

    def videos_under_way(self, environment: Environment, env_id: int) -> tuple[Path, ...]:
        """Return where the videos of the episode in an env slot will lie, none if it is not filmed."""
        take = self._takes.get(environment, {}).get(env_id)
        return () if take is None else take.videos

    def discard(self, environment: Environment, env_id: int) -> None:
        """Forget the videos of the episode that is under way in an env slot, if it is filmed."""
        take = self._takes.get(environment, {}).pop(env_id, None)
        if take is not None:
            take.discard()

    def end_filming(self) -> None:
        """Forget the videos of episodes under way, and let go of the environments; other videos are still drawn."""
        self.begin_rebuild(self._rebuild, ())

    def close(self) -> None:
        """Complete the videos of episodes that finished, and write their contact sheet; forget all others."""
        self.end_filming()
        try:
            self._threads.close()
        finally:
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
        index = start.episode.episode_index
        here = FilmPlace(
            env_id=self._slots.of(environment, start.env_id), rebuild=self._rebuild if self._names_rebuilds else None
        )
        place = self._places.get(index, here)
        name = layout.video_file_name(
            None if camera == VIEWPORT else camera, env_id=place.env_id, episode_index=index, rebuild=place.rebuild
        )
        return self._directory / layout.VIDEOS_DIRECTORY / name

    def _film(self, environment: Environment, env_ids: Sequence[int]) -> None:
        if not env_ids or not isinstance(environment, Filmable):
            return
        takes = self._takes[environment]
        drawing = _film_later(environment, env_ids, takes[env_ids[0]].cameras)
        for env_id, draw in zip(env_ids, drawing, strict=True):
            takes[env_id].add(draw)


def _film_later(environment: Filmable, env_ids: Sequence[int], cameras: Sequence[str]) -> Sequence[Draw]:
    """Return what draws the frames of env slots as they are now; see `FilmableLater`."""
    if isinstance(environment, FilmableLater):
        return environment.film_later(env_ids, cameras)
    frames = {camera: np.array(pictures) for camera, pictures in environment.film(env_ids, cameras).items()}
    return [
        partial(dict[str, np.ndarray], {camera: pictures[number] for camera, pictures in frames.items()})
        for number in range(len(env_ids))
    ]
