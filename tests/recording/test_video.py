"""Films of episodes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread, Timer, current_thread
from time import sleep

import av
import numpy as np
import pytest
from PIL import Image

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.video import (
    BAR_HEIGHT,
    POSTER_BYTES,
    TASKS_UNDONE,
    FilmThreads,
    FrameSamples,
    VideoFile,
    VideoRecorder,
    caption_bar,
    write_poster,
)
from isaaclab_arena.storage.layout import poster_file
from tests.fakes_environment import PushPolicy, ScriptedEnvironment, episodes, files_below

HEIGHT, WIDTH = 33, 161
GREY_PER_STEP = 25
EVERY_STEP = 20.0
"""Frames per second of the environment's control steps."""


class FilmedEnvironment(ScriptedEnvironment):
    """Shows grey pictures, brighter with every step; env slot and camera do not matter."""

    filmable = ("front_rgb", VIEWPORT)

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        grey = (self._clock[list(env_ids)] * GREY_PER_STEP).numpy().astype(np.uint8)
        frames = np.broadcast_to(grey[:, None, None, None], (len(env_ids), HEIGHT, WIDTH, 3))
        return dict.fromkeys(cameras, frames)


class Records(Observer):
    """Keeps what is known of finished episodes."""

    def __init__(self) -> None:
        self.of: dict[int, EpisodeRecord] = {}

    def on_episode_end(self, environment, record) -> None:
        self.of[record.episode.episode_index] = record


class DrawnLaterEnvironment(FilmedEnvironment):
    """Copies the greys at once and makes pictures of them later, in the order in which it is asked to."""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.may_draw = Event()
        self.may_draw.set()
        self.threads: set[str] = set()
        self.num_drawn = 0

    def film_later(self, env_ids: Sequence[int], cameras: Sequence[str]) -> list[Callable[[], dict[str, np.ndarray]]]:
        frames = self.film(env_ids, cameras)
        return [
            partial(self._draw, {name: each[number] for name, each in frames.items()}) for number in range(len(env_ids))
        ]

    def _draw(self, frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self.may_draw.wait(timeout=60)
        self.threads.add(current_thread().name)
        self.num_drawn += 1
        return frames


def film(
    directory: Path,
    *,
    num_episodes: int = 6,
    num_envs: int = 2,
    rebuild: int | None = None,
    num_threads: int = 1,
    environment: FilmedEnvironment | None = None,
    **options,
) -> Records:
    records = Records()
    wanted = VideoOptions(**{"frames_per_second": EVERY_STEP, **options})
    recorder = VideoRecorder(directory, "push", wanted, threads=FilmThreads(num_threads))
    environment = environment or FilmedEnvironment(num_envs)
    recorder.begin_rebuild([environment], rebuild)
    rollout(environment, PushPolicy(None), episodes(num_episodes), [recorder, records])
    recorder.close()
    return records


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def video_of(directory: Path, index: int, *, pattern: str = "viewport-env*-episode-{}.mp4") -> Path:
    [path] = (directory / "videos").glob(pattern.format(index))
    return path


@pytest.mark.parametrize(("rebuild", "named"), [(None, ""), (0, "rebuild0-")])
def test_every_episode_has_a_video_per_camera_under_arenas_name_and_a_poster_beside_each(tmp_path, rebuild, named):
    records = film(tmp_path, camera=True, viewport=True, rebuild=rebuild)
    expected = {"contact_sheet.png"}
    for index, record in records.of.items():
        for ending in ("mp4", "webp"):
            expected.add(f"videos/robot-cam-{named}env{record.env_id}-front_rgb-episode-{index}.{ending}")
            expected.add(f"videos/viewport-{named}env{record.env_id}-episode-{index}.{ending}")
    assert files_below(tmp_path) == expected


def test_a_poster_is_small_whatever_it_shows(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (720, 1280, 3), dtype=np.uint8)
    write_poster(tmp_path / "noise.webp", noise)
    assert (tmp_path / "noise.webp").stat().st_size <= POSTER_BYTES
    width, height = Image.open(tmp_path / "noise.webp").size
    assert width / height == pytest.approx(1280 / 720, rel=0.05)


def test_a_poster_and_the_last_frame_show_how_the_episode_ended_and_a_video_plays_as_fast(tmp_path):
    records = film(tmp_path, num_episodes=1, viewport=True)
    path = video_of(tmp_path, 0)
    poster = Image.open(poster_file(path))
    assert poster.size == (WIDTH, HEIGHT)
    assert np.asarray(poster).mean() == pytest.approx(records.of[0].length * GREY_PER_STEP, abs=3)
    bars = [frame[HEIGHT : HEIGHT + BAR_HEIGHT].astype(int) for frame in frames_of(path)]
    changes = [np.abs(bar - bars[0]).max() for bar in bars]
    assert max(changes[:-1]) < 60
    assert changes[-1] > 120
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 20
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert container.metadata["title"] == "push, episode 0, viewport"


@pytest.mark.parametrize(("frames_per_second", "every"), [(EVERY_STEP, 1), (VideoOptions().frames_per_second, 2)])
def test_a_video_goes_from_before_the_first_step_to_after_the_last_by_default_ten_times_a_second(
    tmp_path, frames_per_second, every
):
    records = film(tmp_path, viewport=True, frames_per_second=frames_per_second)
    assert {record.length % 2 for record in records.of.values()} == {0, 1}
    for index, record in records.of.items():
        path = video_of(tmp_path, index)
        shown = sorted({*range(0, record.length + 1, every), record.length})
        greys = [frame[:HEIGHT].mean() for frame in frames_of(path)]
        assert greys == pytest.approx([step * GREY_PER_STEP for step in shown], abs=3)
        with av.open(str(path)) as container:
            assert container.streams.video[0].average_rate == 20 / every


@pytest.mark.parametrize("num_threads", [1, 3])
def test_frames_that_are_drawn_later_are_the_same_frames_in_the_same_order(tmp_path, num_threads):
    film(tmp_path / "at_once", viewport=True, num_envs=3)
    environment = DrawnLaterEnvironment(3)
    film(tmp_path / "later", viewport=True, environment=environment, num_threads=num_threads)
    assert environment.threads == {"film"}
    assert files_below(tmp_path / "later") == files_below(tmp_path / "at_once")
    for path in (tmp_path / "at_once" / "videos").glob("*.mp4"):
        assert path.read_bytes() == (tmp_path / "later" / "videos" / path.name).read_bytes()


def test_the_loop_does_not_wait_until_frames_are_drawn(tmp_path):
    environment, records = DrawnLaterEnvironment(1), Records()
    environment.may_draw.clear()
    recorder = VideoRecorder(tmp_path, "push", VideoOptions(viewport=True))
    rollout(environment, PushPolicy(None), episodes(2), [recorder, records])
    assert (len(records.of), environment.num_drawn) == (2, 0)
    assert not list((tmp_path / "videos").glob("[!.]*"))
    environment.may_draw.set()
    recorder.close()
    assert environment.num_drawn > 0
    assert len(list((tmp_path / "videos").glob("[!.]*.mp4"))) == 2


def test_no_more_than_a_bounded_number_of_frames_waits(tmp_path):
    environment = DrawnLaterEnvironment(1)
    environment.may_draw.clear()
    Timer(0.2, environment.may_draw.set).start()
    undrawn: list[bool] = []

    class Counts(Observer):
        def on_step(self, environment: Environment, transition: Transition) -> None:
            undrawn.append(isinstance(environment, DrawnLaterEnvironment) and environment.num_drawn == 0)

    options = VideoOptions(viewport=True, frames_per_second=EVERY_STEP)
    with closing(VideoRecorder(tmp_path, "push", options)) as recorder:
        rollout(environment, PushPolicy(None), episodes(24), [recorder, Counts()])
    assert 0 < sum(undrawn) <= TASKS_UNDONE


def test_a_frame_that_cannot_be_drawn_ends_the_job_and_leaves_no_video_of_its_episode(tmp_path):
    class Breaks(DrawnLaterEnvironment):
        def _draw(self, frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            if self.num_drawn == 4:
                raise StorageError("no disk")
            return super()._draw(frames)

    recorder = VideoRecorder(tmp_path, "push", VideoOptions(viewport=True, frames_per_second=EVERY_STEP))
    with pytest.raises(StorageError, match="no disk"), closing(recorder):
        rollout(Breaks(1), PushPolicy(None), episodes(6), [recorder])
    whole = [len(frames_of(path)) for path in (tmp_path / "videos").glob("*.mp4")]
    assert sum(whole) <= 4
    assert not list((tmp_path / "videos").glob(".*"))


def test_only_failures_or_the_first_episodes_are_filmed_where_asked_for(tmp_path):
    def kept(directory: Path) -> set[int]:
        return {int(path.stem.rpartition("-")[2]) for path in (directory / "videos").iterdir()}

    records = film(tmp_path / "failures", num_episodes=12, viewport=True, only_failures=True)
    failed = {index for index, record in records.of.items() if not record.success}
    assert 0 < len(failed) < len(records.of)
    assert kept(tmp_path / "failures") == failed
    film(tmp_path / "first", viewport=True, first_episodes=2)
    assert kept(tmp_path / "first") == {0, 1}


def test_a_rollout_that_is_cut_leaves_no_half_videos(tmp_path):
    recorder = VideoRecorder(tmp_path, "push", VideoOptions(viewport=True))
    rollout(FilmedEnvironment(2), PushPolicy(None), episodes(2), [recorder], limits=RolloutLimits(max_steps=2))
    assert not list((tmp_path / "videos").glob("[!.]*"))
    recorder.close()
    assert files_below(tmp_path) == set()


def test_an_environment_without_cameras_is_not_filmed_and_says_so_once(tmp_path, caplog):
    with closing(VideoRecorder(tmp_path, "push", VideoOptions(viewport=True))) as recorder:
        rollout(ScriptedEnvironment(2), PushPolicy(None), episodes(4), [recorder])
    [message] = caplog.messages
    assert "has no videos" in message
    assert files_below(tmp_path) == set()


def test_the_contact_sheet_has_a_line_of_pictures_per_episode(tmp_path):
    film(tmp_path, num_episodes=3, viewport=True)
    sheet = np.asarray(Image.open(tmp_path / "contact_sheet.png"))
    lines = [sheet[top : top + 96] for top in range(0, len(sheet), 100)]
    assert len(lines) == 3
    for line in lines:
        first, middle, last = (line[:, round((third + 0.5) * WIDTH * 96 / HEIGHT)].mean() for third in range(3))
        assert first < 3
        assert first < middle < last


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 17, 100])
def test_the_middle_of_an_episode_is_found_without_keeping_it_all(length):
    samples = FrameSamples()
    for step in range(length):
        samples.add(np.full((96, 4, 3), step * 255 // max(1, length - 1), np.uint8))
    first, middle = samples.first_and_middle()
    assert first.max() == 0
    assert abs(int(middle.mean()) - (255 // 2 if length > 1 else 0)) <= 255 / 8 + (255 / length if length < 4 else 0)


def test_an_odd_size_loses_nothing_and_equal_frames_make_equal_files(tmp_path):
    picture = np.zeros((7, 9, 3), np.uint8)
    picture[-1], picture[:, -1] = 255, 255
    paths = [tmp_path / f"{number}.mp4" for number in range(3)]
    for path in paths:
        video = VideoFile(path, frames_per_second=10, title="odd")
        video.add(picture)
        video.finish()
    [frame] = frames_of(paths[0])
    assert frame.shape == (8, 10, 3)
    assert frame[6:].mean() > 200
    assert len({path.read_bytes() for path in paths}) == 1


def test_a_video_that_cannot_be_written_or_has_no_frames_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="no frames"):
        VideoFile(tmp_path / "empty.mp4", frames_per_second=10, title="none").finish()
    assert files_below(tmp_path) == set()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        VideoFile(tmp_path / "file" / "video.mp4", frames_per_second=10, title="none")


@pytest.mark.parametrize("name", ["<script>alert(1)<", "=HYPERLINK()", "\u5b57" * 60, "\U0001f916", "x" * 80])
def test_any_name_that_is_accepted_fits_into_a_caption(name):
    assert caption_bar(320, [f"{name}, episode 1", "episode 1"]).shape[1] == 320


PATIENCE_S = 30.0


def waits(for_what: Event | Barrier) -> None:
    for_what.wait(PATIENCE_S)


def fails() -> None:
    raise ZeroDivisionError


def test_a_film_that_takes_long_keeps_one_thread_and_no_other_film_whose_tasks_are_done_in_order():
    threads, may_end, done = FilmThreads(3), Event(), Event()
    drawn: dict[int, list[int]] = {film: [] for film in range(3)}
    films = {film: threads.for_a_film() for film in drawn}
    threads.for_a_film()(partial(waits, may_end))
    for number in range(200):
        for film, do in films.items():
            do(partial(drawn[film].append, number))
    films[2](done.set)
    assert done.wait(PATIENCE_S)
    may_end.set()
    threads.close()
    assert drawn == {film: list(range(200)) for film in drawn}


def test_a_task_that_fails_is_told_once_and_stops_none_behind_it():
    threads, done = FilmThreads(1), Event()
    do = threads.for_a_film()
    do(fails)
    do(done.set)
    assert done.wait(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        threads.raise_failure()
    threads.close()


def test_one_core_is_the_loops_until_it_waits_for_films():
    threads, begun = FilmThreads(2), Barrier(3)
    at_work: list[int] = []

    def draw(number: int) -> None:
        at_work.append(number)
        begun.wait(PATIENCE_S)

    for number in range(2):
        threads.for_a_film()(partial(draw, number))
    ended = Thread(target=threads.close)
    sleep(0.05)
    assert len(at_work) == 1
    ended.start()
    begun.wait(PATIENCE_S)
    ended.join()
    assert sorted(at_work) == [0, 1]


def test_a_loop_without_room_for_a_task_lends_its_core():
    threads, begun = FilmThreads(2), Barrier(2)
    films = [threads.for_a_film() for _ in range(2)]
    for film in films:
        # Each waits until the other film's is drawn too, for which two threads are needed.
        film(partial(waits, begun))
    for _ in range(2 * TASKS_UNDONE):
        films[0](lambda: None)
    threads.close()
