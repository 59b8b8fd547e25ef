"""Films of episodes: a video per episode and camera, captions, and a contact sheet of the job."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeAlias, cast

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image, ImageDraw, ImageFont

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import storage_errors, temporary_path, write_bytes

# Draw captions into images, scale images, and write them as PNG or as a small poster.

BAR_HEIGHT = 16

POSTER_SIDE = 240  # pixels of a poster's longer side; a picture that is smaller keeps its size
POSTER_BYTES = 6_000  # largest file of a poster, so that a page can hold hundreds of them
_TEXT_SIZE = 11
_TEXT = (240, 240, 240)
_BACKGROUND = (24, 24, 28)


def caption_bar(width: int, texts: Sequence[str]) -> np.ndarray:
    """Return a caption with the first text that fits, else the last, cut. Shape: (BAR_HEIGHT, width, 3), uint8."""
    image = Image.new("RGB", (width, BAR_HEIGHT), _BACKGROUND)
    font = ImageFont.load_default(_TEXT_SIZE)
    text = next((text for text in texts if font.getlength(text) + 4 <= width), texts[-1])
    ImageDraw.Draw(image).text((3, 1), text, font=font, fill=_TEXT)
    return np.asarray(image)


def text_block(width: int, height: int, lines: Sequence[str], *, colour: tuple[int, int, int] = _TEXT) -> np.ndarray:
    """Return lines of text, the first one in `colour`. Shape: (height, width, 3), uint8."""
    image = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(_TEXT_SIZE + 1)
    for index, line in enumerate(lines):
        draw.text((6, 4 + 16 * index), line, font=font, fill=colour if index == 0 else _TEXT)
    return np.asarray(image)


def write_png(path: Path, picture: np.ndarray) -> None:
    """Write an image of shape (height, width, 3), uint8, atomically over an existing file."""
    encoded = BytesIO()
    Image.fromarray(picture).save(encoded, format="PNG")
    write_bytes(path, encoded.getvalue(), overwrite=True)


def write_poster(path: Path, picture: np.ndarray) -> None:
    """Write a small WebP copy of an image, at most `POSTER_BYTES`, over an existing file."""
    image = Image.fromarray(picture)
    image.thumbnail((POSTER_SIDE, POSTER_SIDE), Image.Resampling.BILINEAR)
    encoded = BytesIO()
    image.save(encoded, format="WEBP", quality=75)
    while len(encoded.getvalue()) > POSTER_BYTES:
        # Images of a simulation fit at once; noise does not.
        image.thumbnail((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BILINEAR)
        encoded = BytesIO()
        image.save(encoded, format="WEBP", quality=50)
    write_bytes(path, encoded.getvalue(), overwrite=True)


def thumbnail(frame: np.ndarray, height: int) -> np.ndarray:
    """Return a scaled copy of a frame with its aspect ratio. Shape: (height, width, 3), uint8."""
    width = max(1, round(frame.shape[1] * height / frame.shape[0]))
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


# Draw and encode films on threads beside the rollout loop, so that control steps do not wait for them.

TASKS_UNDONE = 64  # most unfinished tasks per thread, which bounds their memory; then the loop waits
Task: TypeAlias = Callable[[], None]


@dataclass(eq=False)
class FilmThreads:
    """Run the tasks of a job's films on `number` threads: in order within a film; a failure stops no later task."""

    # A thread takes the next task of any film, so none is idle while tasks of several films wait. One core is the
    # loop's: of several threads one rests, unless the loop itself waits for films. Threads start with the first film.
    number: int
    _threads: list[Thread] = field(default_factory=list)
    _waiting: deque[deque[Task]] = field(default_factory=deque)  # tasks of each film that no thread works on
    _num_undone: int = 0
    _num_at_work: int = 0
    _loop_waits: bool = False
    _is_closing: bool = False
    _changed: Condition = field(default_factory=Condition)
    _failure: BaseException | None = None

    def for_a_film(self) -> Callable[[Task], None]:
        """Return a function that queues tasks of a new film; it blocks while too many tasks are unfinished."""
        while len(self._threads) < self.number:
            # Daemons: a program that ends without `close` must not wait for films.
            self._threads.append(Thread(target=self._work, name="film", daemon=True))
            self._threads[-1].start()
        return partial(self._do, deque())

    def raise_failure(self) -> None:
        """Raise the error of the first failed task, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait until all tasks are done, and raise the error of a failed one. May be called more than once."""
        with self._changed:
            self._is_closing = self._loop_waits = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.raise_failure()

    def _do(self, film: deque[Task], task: Task) -> None:
        with self._changed:
            # Wait for room. The resting thread may work meanwhile.
            while self._num_undone >= self.number * TASKS_UNDONE:
                self._loop_waits = True
                self._changed.notify_all()
                self._changed.wait()
                self._loop_waits = False
            self._num_undone += 1
            film.append(task)
            # A thread that works on the film finds the next task itself.
            if len(film) == 1:
                self._waiting.append(film)
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (
                    (self._waiting and self._num_at_work < max(1, self.number - (0 if self._loop_waits else 1)))
                    or (self._is_closing and not self._num_undone)
                ):
                    self._changed.wait()
                # All tasks are done, and `close` was called.
                if not self._waiting:
                    return
                self._num_at_work += 1
                film = self._waiting.popleft()
            try:
                film[0]()
            except BaseException as error:  # noqa: BLE001  it is raised in the loop's thread, by `raise_failure`
                self._failure = self._failure or error
            with self._changed:
                film.popleft()
                self._num_undone -= 1
                self._num_at_work -= 1
                if film:
                    self._waiting.append(film)
                self._changed.notify_all()


# The macroblock tree of x264 core 165 is not deterministic. Without it, equal frames make equal files, an eighth larger
# at the same quality.
_ENCODER = {"preset": "veryfast", "crf": "18", "x264-params": "mbtree=0"}


class VideoFile:
    """Write an MP4 file, H.264 in YUV 4:2:0, which every player and browser shows. Equal frames make equal bytes."""

    def __init__(self, path: Path, *, frames_per_second: float, title: str) -> None:
        # The directory of `path` is created. The container is a temporary file until `finish`.
        self.path = path
        self._temporary = temporary_path(path)
        self._rate = Fraction(frames_per_second).limit_denominator(1000)
        with storage_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._temporary), mode="w", format="mp4")
        self._container.metadata["title"] = title
        self._stream: VideoStream | None = None

    def add(self, frame: np.ndarray) -> None:
        """Append a frame of shape (height, width, 3), uint8, equal for all frames."""
        height, width = frame.shape[:2]
        # YUV 4:2:0 requires an even size: repeat the lower or right edge. An empty pad costs as much as a real one.
        if height % 2 or width % 2:
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            stream = self._container.add_stream("libx264", rate=self._rate, options=dict(_ENCODER))
            self._stream = cast(VideoStream, stream)
            self._stream.height, self._stream.width = frame.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            # Encoding must not take cores from other ranks.
            self._stream.codec_context.thread_count = 1
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        with storage_errors("write", self.path):
            self._container.mux(self._stream.encode(picture))

    def finish(self) -> None:
        """Complete the file and move it to its path, over an existing one. StorageError if it has no frames."""
        if self._stream is None:
            self.discard()
            raise StorageError(f"cannot write {self.path}: it has no frames")
        with storage_errors("write", self.path):
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._temporary.replace(self.path)

    def discard(self) -> None:
        """Delete the unfinished video."""
        with storage_errors("remove", self._temporary):
            self._container.close()
            self._temporary.unlink(missing_ok=True)


# Draw the contact sheet of a job: a strip per episode with its first, middle and last frame and its outcome.

MAX_EPISODES = 200  # maximum number of episodes on a sheet; more would be too small to see
_STRIP_HEIGHT = 96
_TEXT_WIDTH = 150
_GAP = 4
_STRIPS_PER_COLUMN = 20
_SAMPLES = 8
_COLOURS: dict[Outcome | None, tuple[int, int, int]] = {
    Outcome.SUCCESS: (120, 220, 120),
    Outcome.FAILURE: (250, 120, 110),
    Outcome.TIMEOUT: (250, 190, 90),
    Outcome.ERROR: (230, 110, 230),
    None: (200, 200, 200),
}
_LARGEST_KEPT_BYTES = 2**20  # largest frame that is kept whole; larger ones are scaled at once


@dataclass(eq=False)
class FrameSamples:
    """A few frames spread over an episode of unknown length."""

    _frames: list[np.ndarray] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def add(self, frame: np.ndarray) -> None:
        """Take the next frame, which must not change afterwards. Shape: (height, width, 3), uint8."""
        # If the buffer is full, every second frame is dropped and the stride doubles. The frame is due then too, as the
        # buffer has room for an even number.
        if self._seen % self._stride == 0:
            if len(self._frames) == _SAMPLES:
                self._frames = self._frames[::2]
                self._stride *= 2
            is_large = frame.nbytes > _LARGEST_KEPT_BYTES
            self._frames.append(thumbnail(frame, _STRIP_HEIGHT) if is_large else frame)
        self._seen += 1

    def first_and_middle(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame and one near the middle, off by at most an eighth of the episode."""
        middle = round((self._seen - 1) / 2 / self._stride)
        return self._frames[0], self._frames[min(middle, len(self._frames) - 1)]


Strip: TypeAlias = tuple[EpisodeRecord, Sequence[np.ndarray]]
"""An episode, and its first, middle and last frame at strip height. Shape of each: (height, width, 3), uint8."""


Draw: TypeAlias = Callable[[], Mapping[str, np.ndarray]]
"""Returns a frame of each camera, by its name. Shape of each: (height, width, 3), uint8."""


@dataclass(eq=False, kw_only=True)
class EpisodeVideo:
    """The videos of one episode. Each frame is written with the next one, so the last one can show the outcome."""

    # The loop calls `queue` and `discard`, which wait only for room for a task. A video with a frame that could not be
    # drawn or written never gets its final name.
    episode: str  # in words
    job: str
    files: Mapping[str, VideoFile]  # by camera
    do: Callable[[Task], None]  # queues tasks of this film in order
    steps_per_frame: int
    shows_latest_step: bool = True  # the last counted step has a frame
    num_steps: int = 0  # control steps since the first frame
    _is_wanted: bool = True
    _latest: Mapping[str, np.ndarray] = field(default_factory=dict)
    _samples: FrameSamples = field(default_factory=FrameSamples)
    _bars: dict[int, np.ndarray] = field(default_factory=dict)

    def queue(self, task: Callable[..., None], *of: Any) -> None:
        """Queue a task of this film, `add` or `finish`. After a task that fails the video is given up."""

        def do() -> None:
            if not self._is_wanted:
                return
            try:
                task(*of)
            except BaseException:
                self._is_wanted = False
                with suppress(StorageError):
                    self._discard_files()
                raise

        self.do(do)

    def add(self, draw: Draw) -> None:
        """Draw a frame, and write the one before it."""
        self._write_latest()
        self._latest = draw()
        self._samples.add(self._latest[next(iter(self.files))])

    def finish(self, record: EpisodeRecord, sheet: list[Strip] | None) -> None:
        """Complete the videos and their posters of the last frame, and append a strip to the contact sheet, if any."""
        self._bars = {}
        self._write_latest(f": {record.outcome or 'not measured'}")
        for camera, file in self.files.items():
            # The poster is written first: a finished video always has one.
            write_poster(layout.poster_file(file.path), self._latest[camera])
            file.finish()
        if sheet is not None:
            frames = *self._samples.first_and_middle(), self._latest[next(iter(self.files))]
            sheet.append((record, [thumbnail(each, _STRIP_HEIGHT) for each in frames]))

    def discard(self) -> None:
        """Delete the videos; queued frames are not drawn any more."""
        self._is_wanted = False
        self.do(self._discard_files)

    def _discard_files(self) -> None:
        for file in self.files.values():
            file.discard()

    def _write_latest(self, ending: str = "") -> None:
        for camera, frame in self._latest.items():
            width = frame.shape[1]
            if width not in self._bars:
                text = f"{self.episode}{ending}"
                self._bars[width] = caption_bar(width, [f"{self.job}, {text}", text, text.removeprefix("episode ")])
            self.files[camera].add(np.concatenate([frame, self._bars[width]]))


_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class VideoRecorder(Observer):
    """Film the episodes of one job, from the frame before the first step to the one after the last."""

    # Films only read the simulation: policy, recording and results do not change. The loop copies the state; threads
    # draw and encode it. Their errors are raised by the next call.
    directory: Path  # of the job
    job: str
    options: VideoOptions
    _: KW_ONLY
    threads: FilmThreads = field(default_factory=partial(FilmThreads, 1))
    # Env slot among all of the job, and rebuild, of each episode of a finished run; by default those in which it runs.
    places: Mapping[int, tuple[int, int | None]] = field(default_factory=dict)
    _rebuild: int | None = None
    _first_slots: Mapping[Environment, int] = field(default_factory=dict)
    films: dict[Environment, dict[int, EpisodeVideo]] = field(default_factory=dict, init=False)  # of running episodes
    _sheet: list[Strip] = field(default_factory=list)
    _num_strips: int = 0
    _said_no_cameras: bool = False

    def begin_rebuild(self, environments: Sequence[Environment], rebuild: int | None = None) -> None:
        """Discard the videos of running episodes, and set the environments of the next ones, if any."""
        # `rebuild` is part of the names of films; None for a job with a single rebuild.
        self._rebuild = rebuild
        # The env slots of several environments are numbered consecutively.
        sizes = accumulate((environment.num_envs for environment in environments), initial=0)
        self._first_slots = dict(zip(environments, sizes, strict=False))
        while self.films:
            _, films = self.films.popitem()
            for film in films.values():
                film.discard()

    def pictures_to_see(self, environment: Environment, starting: Sequence[EpisodeStart]) -> Sequence[int] | None:
        """Return the env slots to render if a film can only use images that a step has rendered, else none."""
        # Any step may be the last, and the last one always has a frame, so these slots render after every step.
        if not self.options.camera or not environment.films_only_drawn:
            return ()
        most = self.options.first_episodes
        filmed = (start for start in starting if most is None or start.episode.episode_index < most)
        return [*self.films.get(environment, ()), *(start.env_id for start in filmed)]

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Open the videos and add the first frame."""
        del observation
        self.threads.raise_failure()
        # The viewport comes first.
        cameras = [name for name in environment.filmable if name == VIEWPORT and self.options.viewport]
        cameras += [name for name in environment.filmable if name != VIEWPORT and self.options.camera]
        if not cameras and not self._said_no_cameras:
            self._said_no_cameras = True
            message = "job '%s' has no videos: its environment has no such cameras%s"
            _LOG.warning(message, self.job, environment.filming_hint)

        most = self.options.first_episodes
        filmed = [start for start in starts if cameras and (most is None or start.episode.episode_index < most)]
        steps_per_frame = max(1, round(1 / (self.options.frames_per_second * environment.control_dt)))
        for start in filmed:
            index = start.episode.episode_index
            here = self._first_slots.get(environment, 0) + start.env_id, self._rebuild
            env_id, rebuild = self.places.get(index, here)
            files = {}
            for camera in cameras:
                shown = None if camera == VIEWPORT else camera
                name = layout.video_file_name(shown, env_id=env_id, episode_index=index, rebuild=rebuild)
                # A film plays in real time: its rate follows from the control steps per frame.
                files[camera] = VideoFile(
                    self.directory / layout.VIDEOS_DIRECTORY / name,
                    frames_per_second=1 / (steps_per_frame * environment.control_dt),
                    title=f"{self.job}, episode {index}, {camera}",
                )
            film = EpisodeVideo(
                episode=f"episode {index}",
                job=self.job,
                files=files,
                do=self.threads.for_a_film(),
                steps_per_frame=steps_per_frame,
            )
            self.films.setdefault(environment, {})[start.env_id] = film
        self._film(environment, [start.env_id for start in filmed])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add a frame if the step is due for one."""
        del transition
        self.threads.raise_failure()
        # A filmed slot is running, so no GPU synchronization is needed to find the running slots.
        films = self.films.get(environment, {})
        for film in films.values():
            film.num_steps += 1
            film.shows_latest_step = film.num_steps % film.steps_per_frame == 0
        self._film(environment, [env_id for env_id, film in films.items() if film.shows_latest_step])

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Complete the videos, or delete them if the options do not keep them."""
        self.threads.raise_failure()
        films = self.films.get(environment, {})
        film = films.get(record.env_id)
        shown = self.shown(record, [] if film is None else [file.path for file in film.files.values()])
        if film is None:
            return
        if shown is not None and not film.shows_latest_step:
            self._film(environment, [record.env_id])
        del films[record.env_id]
        if shown is None:
            film.discard()
            return
        self._num_strips += 1
        film.queue(film.finish, shown, self._sheet if self._num_strips <= MAX_EPISODES else None)

    def shown(self, record: EpisodeRecord, films: Sequence[Path]) -> EpisodeRecord | None:
        """Return the end that the `films` of a finished episode show, None to delete them."""
        del films
        return None if self.options.only_failures and record.success is True else record

    def close(self) -> None:
        """Complete the videos of finished episodes and write the contact sheet; delete all others."""
        self.begin_rebuild(())
        try:
            self.threads.close()
        finally:
            if self._sheet:
                images = []
                for record, frames in sorted(self._sheet, key=lambda strip: strip[0].episode.episode_index):
                    lines = [str(record.outcome or "not measured"), f"episode {record.episode.episode_index}"]
                    lines += [f"{record.length} steps", f"return {record.episode_return:.2f}"]
                    text = text_block(_TEXT_WIDTH, _STRIP_HEIGHT, lines, colour=_COLOURS[record.outcome])
                    images.append(np.concatenate([*frames, text], axis=1))
                # The strips stand in columns with gaps.
                height, width = images[0].shape[:2]
                num_strips = min(len(images), _STRIPS_PER_COLUMN)
                num_columns = -(-len(images) // num_strips)
                size = num_strips * (height + _GAP) - _GAP, num_columns * (width + _GAP) - _GAP
                sheet = np.zeros((*size, 3), np.uint8)
                for index, image in enumerate(images):
                    column, row = divmod(index, num_strips)
                    top, left = row * (height + _GAP), column * (width + _GAP)
                    sheet[top : top + height, left : left + width] = image
                write_png(self.directory / layout.CONTACT_SHEET_FILE, sheet)
                self._sheet = []

    def _film(self, environment: Environment, env_ids: Sequence[int]) -> None:
        """Queue the current frames of env slots, which are drawn later if the environment can do so."""
        if not env_ids:
            return
        films = self.films[environment]
        cameras = tuple(films[env_ids[0]].files)
        for env_id, draw in zip(env_ids, environment.film_later(env_ids, cameras), strict=True):
            films[env_id].queue(films[env_id].add, draw)
