"""Recorded episodes as Rerun recordings: cameras, joint states, observations, actions, rewards and the outcome."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean
from isaaclab_arena.interfaces.pictures import in_colours
from isaaclab_arena.registry import optional_library
from isaaclab_arena.storage.atomic import storage_errors, temporary_path
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import locate_episodes, read_episode
from isaaclab_arena.storage.layout import ACTIONS, CAMERA_OBSERVATIONS, OBSERVATIONS, REWARDS, STATES
from isaaclab_arena.storage.ledger import read_run_plan, videos_of_job

_STEP, _TIME = "step", "time"
_PROPERTIES = (
    *("job", "episode_index", "outcome", "success", "termination", "episode_return", "num_samples"),
    *("language_instruction", "seed", "episode_seed", "conditions", "metrics"),
)
"""Attributes of an episode that become properties of its recording, by which the catalog filters."""


def export_rerun(run: Path, output: Path, *, jobs: Sequence[str] = ()) -> Iterator[str]:
    """Write ``<job>/episode_<index>.rrd`` per recorded episode into an empty directory, and yield a note per job."""
    optional_library("rerun", key="--rerun")
    plan, num_episodes = read_run_plan(run), 0
    names = [job.name for job in plan.jobs]
    # ConfigError for an unknown job and for a run without recordings. No `jobs` means all.
    for name in jobs:
        if name not in names:
            raise ConfigError(Problem(f"the run has no job '{name}'{did_you_mean(name, names)}", key="--job"))
    for name in jobs or names:
        found, problems = locate_episodes(run / name, name)
        films: dict[int, dict[str, Path]] = {}
        for said, film in videos_of_job(run, name):
            films.setdefault(said.episode_index, {})[said.camera or "viewport"] = film
        for index, files in sorted(found.items()):
            path = output / name / f"episode_{index:06d}.rrd"
            recording_id = f"{plan.run_id}_{name}_{index}"
            write_rerun_recording(path, read_episode(files[0], index), recording_id, films.get(index, {}))
        num_episodes += len(found)
        if found:
            yield f"{output / name}: episodes {len(found)}; look with: rerun {output / name}"
        yield from problems
    if not num_episodes:
        raise ConfigError(Problem("holds no recorded episode; run without --no_dataset", file=str(run)))


def write_rerun_recording(path: Path, episode: RecordedEpisode, recording_id: str, films: Mapping[str, Path]) -> None:
    """Write one episode atomically. Cameras without recorded images show their films."""
    library = optional_library("rerun", key="--rerun")
    temporary = temporary_path(path)
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # `recording_id` is unique among all episodes of all runs.
    stream = library.RecordingStream("isaaclab_arena", recording_id=recording_id)
    try:
        stream.save(str(temporary))
        _log_episode(library, stream, episode, films)
        stream.flush()
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error
    finally:
        stream.disconnect()
    with storage_errors("write", path):
        temporary.replace(path)


def _log_episode(library: Any, stream: Any, episode: RecordedEpisode, films: Mapping[str, Path]) -> None:
    """Log an episode: its properties and outcome, its arrays, and films of cameras without recorded images."""
    said = {name: episode.attributes[name] for name in _PROPERTIES if name in episode.attributes}
    outcome = said.get("outcome", "unknown")
    stream.send_recording_name(f"{said.get('job', 'episode')} {episode.episode_index}: {outcome}")
    stream.send_property("episode", library.AnyValues(**said))
    lines = "".join(f"- {name}: {value}\n" for name, value in said.items())
    text = library.TextDocument(f"# {outcome}\n{lines}", media_type="text/markdown")
    stream.log("outcome", text, static=True)

    dt_s = float(episode.attributes.get("control_dt", 0) or 0)
    recorded = set()
    for name, array in episode.arrays.items():
        group, _, camera = name.partition("/")
        if group == CAMERA_OBSERVATIONS and (array.ndim in (3, 4) or array.dtype == np.uint8):
            recorded.add(camera)
            _log_pictures(library, stream, f"cameras/{camera}", array, dt_s)
            continue
        is_numeric = array.ndim in (1, 2) and np.issubdtype(array.dtype, np.number)
        if group in (OBSERVATIONS, STATES, ACTIONS, REWARDS) and len(array) and is_numeric:
            columns = library.Scalars.columns(scalars=array.astype(np.float64).reshape(-1))
            steps = np.arange(len(array))
            indexes = [library.TimeColumn(_STEP, sequence=steps)]
            if dt_s:
                indexes.append(library.TimeColumn(_TIME, duration=steps * dt_s))
            width = array.size // len(array)
            stream.send_columns(name, indexes=indexes, columns=columns.partition([width] * len(array)))

    # Films follow the time of the control steps, if their length is known.
    for camera, film in films.items():
        if camera in recorded:
            continue
        video = library.AssetVideo(path=film)
        times_ns = np.asarray(video.read_frame_timestamps_nanos())
        steps = np.round(times_ns / 1e9 / dt_s).astype(np.int64) if dt_s else np.arange(len(times_ns))
        stream.log(f"cameras/{camera}", video, static=True)
        stream.send_columns(
            f"cameras/{camera}",
            indexes=[
                library.TimeColumn(_STEP, sequence=steps),
                library.TimeColumn(_TIME, duration=times_ns.astype("timedelta64[ns]")),
            ],
            columns=library.VideoFrameReference.columns_nanos(times_ns),
        )


def _log_pictures(library: Any, stream: Any, entity: str, pictures: np.ndarray, dt_s: float) -> None:
    """Log a camera's images: uint8 colours, depth [m] or segmentation ids; or the reason that this is impossible."""
    if pictures.dtype == np.uint8:
        try:
            pictures = in_colours(pictures)
        except ValueError as reason:
            stream.log(entity, library.TextDocument(f"{entity} {reason}"), static=True)
            return
    for step, picture in enumerate(pictures):
        stream.set_time(_STEP, sequence=step)
        if dt_s:
            stream.set_time(_TIME, duration=step * dt_s)
        flat = picture[..., 0] if picture.ndim == 3 else picture
        if picture.ndim == 3 and picture.shape[-1] == 3:
            shown = library.Image(picture).compress(jpeg_quality=90)
        elif np.issubdtype(flat.dtype, np.floating):
            shown = library.DepthImage(flat.astype(np.float32), meter=1.0)
        else:
            shown = library.SegmentationImage(flat.astype(np.uint16))
        stream.log(entity, shown)
