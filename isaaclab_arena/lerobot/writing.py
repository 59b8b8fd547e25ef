"""Recordings as a LeRobot dataset, one episode at a time."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean, refuse
from isaaclab_arena.interfaces.specs import in_colours, picture_layout
from isaaclab_arena.lerobot import layout
from isaaclab_arena.lerobot.layout import (
    Camera,
    Column,
    Columns,
    DatasetFeatures,
    DatasetVersion,
    VideoWriter,
    whole_arrays,
)
from isaaclab_arena.paths import given_path
from isaaclab_arena.storage import atomic
from isaaclab_arena.storage import episodes as recordings
from isaaclab_arena.storage import layout as recorded

# Find the recorded episodes for a dataset: those of a file, of a job, or of all jobs of a run.

DATASET_OPTION = "--dataset"


@dataclass(frozen=True, kw_only=True)
class SourceEpisode:
    """A recorded episode."""

    file: Path
    episode_index: int  # in the recording
    instruction: str
    control_dt: float | None  # time between two control steps [s], None if not recorded

    @property
    def name(self) -> str:
        """Name of the episode in messages."""
        return f"{self.file}: {recorded.demo_name(self.episode_index)}"


def find_episodes(dataset: Path, *, only_successes: bool, default_instruction: str = "") -> list[SourceEpisode]:
    """Return the episodes of a recording, pattern, job or run; ConfigError if there are none or without instruction."""
    found: list[SourceEpisode] = []
    num_recorded = 0
    for files in recordings.jobs_of(dataset, key=DATASET_OPTION):
        places = recordings.index_episodes(files, key=DATASET_OPTION)
        num_recorded += len(places)
        told: dict[int, Mapping[str, Any]] = {}
        for file in dict.fromkeys(places.values()):
            # Read the attributes of a file's episodes at once, because opening a file is slow.
            indices = [index for index, place in places.items() if place == file]
            with recordings.opened(file) as recording:
                told |= {index: recording.attributes(recording.group(index)) for index in indices}
        for index, file in places.items():
            if only_successes and told[index].get("success") is not True:
                continue
            # Foreign recordings may hold any value; a microsecond to a quarter of an hour is a plausible step.
            step, words = told[index].get("control_dt"), told[index].get("language_instruction")
            found.append(
                SourceEpisode(
                    file=file,
                    episode_index=index,
                    instruction=(words if isinstance(words, str) else "") or default_instruction,
                    control_dt=float(step) if isinstance(step, int | float) and 1e-6 <= step <= 1e3 else None,
                )
            )
    if not found:
        reason = f"none of its {num_recorded} episodes succeeded" if num_recorded else "it holds no episodes"
        raise ConfigError(f"'{dataset}' gives no episode: {reason}", key=DATASET_OPTION)

    # Every episode of a dataset needs an instruction.
    silent = [episode for episode in found if not episode.instruction]
    if silent:
        which = f"{silent[0].name} and {len(silent) - 1} others"
        raise ConfigError(f"{which} have no instruction; give one with --language_instruction", key=DATASET_OPTION)
    return found


def frames_per_second(episodes: Iterable[SourceEpisode]) -> int:
    """Return the number of control steps per second; ConfigError if unknown, not whole, or different among episodes."""
    found: dict[float | None, SourceEpisode] = {}
    for episode in episodes:
        found.setdefault(episode.control_dt, episode)
    if len(found) > 1:
        (first, one), (second, another) = list(found.items())[:2]
        message = f"{one.name} has control steps of {first} s, {another.name} of {second} s; a dataset has one rate"
        raise ConfigError(message, key=DATASET_OPTION)
    ((control_dt, episode),) = found.items()
    if control_dt is None:
        message = f"{episode.name} does not say how long a control step is; give --fps"
        raise ConfigError(message, key=DATASET_OPTION)
    # LeRobot's rate is a whole number; a rounded one would shift all timestamps.
    rate = 1 / control_dt
    if round(rate) < 1 or abs(rate - round(rate)) > 1e-6 * rate:
        message = f"{episode.name} has {rate:.6g} control steps per second, and LeRobot takes whole numbers; give --fps"
        raise ConfigError(message, key=DATASET_OPTION)
    return round(rate)


# Convert recordings to a LeRobot dataset, one episode at a time; ``info.json`` is written last.


@dataclass(frozen=True, kw_only=True)
class LeRobotOptions:
    """Options of a conversion."""

    version: DatasetVersion = DatasetVersion.V21
    """v2.1 with modality.json, which GR00T's finetuning reads, or v3.0, LeRobot's newest."""
    only_successes: bool = False
    """Leave out episodes that did not succeed."""
    state_names: tuple[str, ...] = ()
    """Put this observation into observation.state; may be given several times. By default the robot's own state."""
    environment_state: bool = False
    """Also put the other observations, which a real robot does not have, into observation.environment_state."""
    no_videos: bool = False
    """Leave out camera pictures."""
    lossless: bool = False
    """Keep every pixel exactly; the files grow, and some players do not show them."""
    png: bool = False
    """Keep pictures as PNG in the tables instead of in videos, for trainings without a video reader."""
    language_instruction: str = ""
    """Instruction of episodes that were recorded without one."""
    fps: int | None = None
    """Control steps per second, if the recording does not give a whole number."""
    robot_type: str | None = None
    """Name of the robot; by default as recorded."""
    sizes: layout.FileSizes = field(default_factory=layout.FileSizes)
    """Largest sizes of files and directories."""


@dataclass(frozen=True, kw_only=True)
class ModelColumns:
    """The observations, columns and cameras of a model to train; by default whole arrays, and all cameras."""

    language_instruction: str = ""  # of episodes without one
    state_names: tuple[str, ...] = ()  # observations of the state
    # Takes the sizes of the state's observations and of the action, and returns the columns of either that regroup
    # them; ConfigError if they do not fit.
    regrouped: Callable[[Mapping[str, int], int], Mapping[str, Column]] = lambda *_: {}
    cameras: Mapping[str, str] | None = None  # recorded camera of each video key
    cameras_key: str = DATASET_OPTION  # the setting with the cameras, for messages


ANY_MODEL = ModelColumns()
ACTION_KEY = "action"
ROBOT_PREFIXES = ("robot_", "gripper_", "eef_")
"""Prefixes of observations that a real robot has; a policy should not see others."""


def plan_features(
    arrays: Mapping[str, recordings.ArrayPlace], model: ModelColumns, options: LeRobotOptions
) -> DatasetFeatures:
    """Return the columns and videos of a new dataset; ConfigError if the recording lacks one or a layout is unclear."""
    shapes = {path: array.shape for path, array in arrays.items()}
    # The observations of the group ``policy`` that are vectors, and their sizes.
    prefix = f"{recorded.OBSERVATIONS}/"
    observed = {
        path.removeprefix(prefix): shape[1]
        for path, shape in shapes.items()
        if path.startswith(prefix) and len(shape) == 2 and shape[1]
    }
    if len(shapes.get(recorded.ACTIONS, ())) != 2:
        raise ConfigError("the recording has no actions of shape (num_steps, action_dim)")

    # The state is the first of these that is not empty: the given names, the model's, the robot's, all observations.
    names = tuple(dict.fromkeys(options.state_names)) or model.state_names
    names = names or tuple(name for name in observed if name.startswith(ROBOT_PREFIXES)) or tuple(observed)
    problems = [
        Problem(f"the recording has no observation '{name}'{did_you_mean(name, observed)}", key="state_names")
        for name in names
        if name not in observed
    ]
    refuse(problems)

    # A column that the model does not regroup has a group for each observation, or one for the action.
    # `environment_state` stores the other observations in a column of their own, which a policy should not see.
    action_dim = shapes[recorded.ACTIONS][1]
    regrouped = model.regrouped({name: observed[name] for name in names}, action_dim)
    others = [name for name in observed if name not in names] if options.environment_state else []
    vectors: dict[str, Column] = {}
    for column, of_column in ((layout.STATE, names), (layout.ENVIRONMENT_STATE, others)):
        terms = {name.replace("/", "."): (f"{recorded.OBSERVATIONS}/{name}", observed[name]) for name in of_column}
        if terms:
            vectors[column] = regrouped.get(column) or whole_arrays(terms)
    whole_action = whole_arrays({ACTION_KEY: (recorded.ACTIONS, action_dim)})
    vectors[layout.ACTION] = regrouped.get(layout.ACTION, whole_action)

    # Depth and segmentation are no pictures in bytes.
    prefix = f"{recorded.CAMERA_OBSERVATIONS}/"
    cameras: dict[str, Camera] = {}
    unclear: dict[str, str] = {}
    for path, array in arrays.items() if not options.no_videos else ():
        if path.startswith(prefix) and array.dtype == np.uint8:
            name = path.removeprefix(prefix)
            try:
                lies = picture_layout(array.shape[1:], array.dtype)
                cameras[name] = Camera(path=path, height=lies.height, width=lies.width)
            except ValueError as reason:
                unclear[name] = f"camera '{name}' {reason}, or leave out videos with --no_videos"
    named = {name.replace("/", "."): name for name in (*cameras, *unclear)} if model.cameras is None else model.cameras
    chosen = {} if options.no_videos else named
    problems = [
        Problem(
            unclear.get(name)
            or f"the recording has no pictures of '{name}'{did_you_mean(name, cameras)}; record them with "
            "--enable_cameras and --record_observations all, or leave out videos with --no_videos",
            key=model.cameras_key,
        )
        for name in chosen.values()
        if name not in cameras
    ]
    refuse(problems)
    cameras = {key: cameras[name] for key, name in chosen.items()}
    return DatasetFeatures(vectors=vectors, cameras=cameras, rewards=recorded.REWARDS in shapes)


def write_lerobot_dataset(
    dataset: Path,
    output_dir: Path,
    options: LeRobotOptions,
    model: ModelColumns = ANY_MODEL,
    told: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, int]:
    """Convert recordings to a LeRobot dataset in a missing or empty directory; return its counts by their names."""
    # ``told(done, total)`` is called after each episode. ConfigError: a recording is missing or lacks an input.
    # StorageError: reading or writing failed. Files written by then stay, without ``info.json``.
    if options.fps is not None and options.fps < 1:
        raise ConfigError(f"must be at least 1, got {options.fps}", key="--fps")
    output_dir = given_path(output_dir)
    instruction = options.language_instruction or model.language_instruction
    episodes = find_episodes(dataset, only_successes=options.only_successes, default_instruction=instruction)
    first = recordings.locate_arrays(episodes[0].file, episodes[0].episode_index)
    features = plan_features(first, model, options)
    # All episodes share one layout, so a deviating one must fail before any file is written.
    wanted = {path: first[path] for path in features.paths()}
    for episode in episodes:
        arrays = recordings.locate_arrays(episode.file, episode.episode_index)
        num_steps = next(iter(arrays[recorded.ACTIONS].shape), 0) if recorded.ACTIONS in arrays else 0
        if num_steps == 0:
            raise ConfigError(f"{episode.name} has no control step", key=DATASET_OPTION)
        for path, place in wanted.items():
            due, found = (num_steps, *place.shape[1:]), arrays.get(path)
            if found is None:
                has = "is missing"
            elif found.shape != due:
                has = f"has shape {found.shape}"
            # Only pictures must keep their type; numbers are converted.
            elif place.dtype == np.uint8 != found.dtype:
                has = f"holds {found.dtype}, and no pictures"
            else:
                continue
            message = f"{episode.name}: '{path}' {has}, expected {due} as in the first episode"
            raise ConfigError(message, key=DATASET_OPTION)
    fps = options.fps or frames_per_second(episodes)

    layout.check_empty(output_dir)
    with atomic.storage_errors("make", output_dir):
        (output_dir / "meta").mkdir(parents=True, exist_ok=True)
    conversion = _CONVERSIONS[options.version](output_dir, features, options, fps)
    for number, episode in enumerate(episodes):
        conversion.add(number, episode)
        told(number + 1, len(episodes))
    conversion.finish(episodes)
    return {
        "episodes": len(episodes),
        "control steps": conversion.num_frames,
        "instructions": len(conversion.tasks),
        "cameras": len(features.cameras),
    }


Arrays: TypeAlias = Mapping[str, np.ndarray]
AllStatistics: TypeAlias = Mapping[str, layout.Statistics]  # of every column and video feature


class _Conversion(ABC):
    """Converts episodes one by one, and accumulates statistics and instructions; a subclass writes the files."""

    def __init__(self, root: Path, features: DatasetFeatures, options: LeRobotOptions, fps: int) -> None:
        self.num_frames = 0
        self.tasks: dict[str, int] = {}  # each instruction with its number
        self._root, self._features, self._options, self._fps = root, features, options, fps
        self._num_videos = 0 if options.png else len(features.cameras)  # per episode
        self._spools: dict[str, layout.ColumnSpool] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._env_args: dict[Path, Mapping[str, Any]] = {}

    # Columns have the shape (num_steps,) or (num_steps, size); a column of pictures has a PNG file per control step.
    # Videos have the shape (num_steps, height, width, 3), uint8.
    @abstractmethod
    def _write(self, number: int, task: str, columns: Columns, videos: Arrays, statistics: AllStatistics) -> None:
        """Write an episode; StorageError if this fails."""

    @abstractmethod
    def _write_rest(self, num_episodes: int, statistics: AllStatistics) -> dict[str, int]:
        """Complete the files of all episodes except ``info.json``, and return the version's own entries there."""

    def add(self, number: int, episode: SourceEpisode) -> None:
        """Write an episode as number `number` of the dataset."""
        steps, index = recordings.RecordedSteps(), episode.episode_index
        arrays = {path: steps.array(episode.file, index, path) for path in self._features.paths()}
        # An instruction gets its number when it first occurs.
        task = self.tasks.setdefault(episode.instruction, len(self.tasks))
        columns = {name: column.packed(arrays) for name, column in self._features.vectors.items()}
        num_steps = len(columns[layout.ACTION])
        if self._features.rewards:
            columns[layout.REWARD] = np.asarray(arrays[recorded.REWARDS], np.float32)
        frames = np.arange(num_steps, dtype=np.int64)
        columns |= {
            layout.DONE: frames == num_steps - 1,
            layout.ANNOTATION: np.full(num_steps, task, np.int64),
            layout.TIMESTAMP: (frames / self._fps).astype(np.float32),
            layout.FRAME_INDEX: frames,
            layout.EPISODE_INDEX: np.full(num_steps, number, np.int64),
            layout.INDEX: frames + self.num_frames,
            layout.TASK_INDEX: np.full(num_steps, task, np.int64),
        }
        for name, values in columns.items():
            if not np.isfinite(values).all():
                message = f"{episode.name}: '{name}' holds values that are no finite numbers; leave the episode out"
                raise StorageError(message)

        # Statistics of this episode, and the values for those of the whole dataset.
        statistics: dict[str, layout.Statistics] = {}
        for name, values in columns.items():
            flat = values.reshape(num_steps, -1)
            if name not in self._spools:
                self._spools[name] = layout.ColumnSpool(self._root, flat.shape[1])
            self._spools[name].append(flat)
            statistics[name] = layout.array_statistics(flat)
        pictures: dict[str, np.ndarray] = {}
        encoded: dict[str, list[bytes]] = {}
        for key, camera in self._features.cameras.items():
            name = layout.PICTURES_PREFIX + key
            pictures[name] = in_colours(arrays[camera.path])
            # The number of pixels of each intensity in each channel.
            counts = np.zeros((3, 256), np.int64)
            for frame in pictures[name]:
                counts += np.stack([np.bincount(plane, minlength=256) for plane in frame.reshape(-1, 3).T])
            self._counts[name] = self._counts.get(name, 0) + counts
            statistics[name] = layout.picture_statistics(counts, num_steps)
            if self._options.png:
                encoded[name] = []
                for frame in pictures.pop(name):
                    Image.fromarray(frame).save(file := BytesIO(), format="PNG")
                    encoded[name].append(file.getvalue())
        self._write(number, episode.instruction, {**columns, **encoded}, pictures, statistics)

        # LeRobot's files have no place for a recording's attributes. Some of these concern the recording's file only.
        file_only = {"checksum", "num_samples", recorded.COMMIT_ATTRIBUTE}
        found = recordings.read_attributes(episode.file, index)
        attributes = {name: value for name, value in found.items() if name not in file_only}
        if episode.file not in self._env_args:
            # These values are the same for a whole file.
            self._env_args[episode.file] = recordings.read_episode(episode.file, index).env_args
        env_args = self._env_args[episode.file]
        line = {"episode_index": number, "source": episode.name, "attributes": attributes, "env_args": env_args}
        append_lines(self._root / layout.ARENA_EPISODES_FILE, [line])
        self.num_frames += num_steps

    def finish(self, episodes: Sequence[SourceEpisode]) -> None:
        """Write all files of the whole dataset."""
        statistics = {name: spool.finish() for name, spool in self._spools.items()}
        for name, counts in self._counts.items():
            statistics[name] = layout.picture_statistics(counts, self.num_frames)
        own_entries = self._write_rest(len(episodes), statistics)
        vectors = self._features.vectors
        modalities: dict[str, Any] = {}
        for modality, column in layout.COLUMN_OF_MODALITY.items():
            spans = vectors[column].spans() if column in vectors else {}
            modalities[modality] = {key: {"start": start, "end": end} for key, (start, end) in spans.items()}
        modalities["video"] = {key: {"original_key": layout.PICTURES_PREFIX + key} for key in self._features.cameras}
        modalities["annotation"] = {layout.ANNOTATION.removeprefix("annotation."): {"original_key": layout.ANNOTATION}}
        atomic.write_text(self._root / layout.MODALITY_FILE, atomic.json_text(modalities))
        arena = {"schema_version": layout.ARENA_SCHEMA_VERSION, "features": asdict(self._features)}
        atomic.write_text(self._root / layout.ARENA_FILE, atomic.json_text(arena))

        # The robot's name is an option, or else that of the recorded embodiment.
        options, first = self._options, episodes[0]
        robot_type = options.robot_type
        if not robot_type:
            attributes = recordings.read_attributes(first.file, first.episode_index)
            try:
                provenance = json.loads(str(attributes.get("provenance", "{}")))
            except (ValueError, RecursionError):
                provenance = None
            robot_type = str(provenance.get("embodiment", "unknown")) if isinstance(provenance, dict) else "unknown"
        info: dict[str, Any] = {
            "codebase_version": str(options.version),
            "robot_type": robot_type,
            "total_episodes": len(episodes),
            "total_frames": self.num_frames,
            "total_tasks": len(self.tasks),
            "chunks_size": options.sizes.chunk,
            **own_entries,
            "fps": self._fps,
            "splits": {"train": f"0:{len(episodes)}"},
            "data_path": layout.DATA_PATHS[options.version],
            "video_path": layout.VIDEO_PATHS[options.version] if self._num_videos else None,
            "features": self._features.described(fps=self._fps, lossless=options.lossless, png=options.png),
        }
        # Readers begin with this file, so an interrupted conversion is not mistaken for a dataset.
        atomic.write_text(self._root / layout.INFO_FILE, atomic.json_text(info))


# Write episodes into the files of each version of the layout.


class _ConversionV21(_Conversion):
    """Writes version 2.1: every episode has a table and videos of its own, and a line in each of two files."""

    def _write(self, number: int, task: str, columns: Columns, videos: Arrays, statistics: AllStatistics) -> None:
        place = {"episode_chunk": number // self._options.sizes.chunk, "episode_index": number}
        table = layout.steps_table(columns)
        path = self._root / layout.DATA_PATHS[DatasetVersion.V21].format(**place)
        with layout.parquet_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, path, compression="snappy")
        for key, frames in videos.items():
            path = self._root / layout.VIDEO_PATHS[DatasetVersion.V21].format(**place, video_key=key)
            video = VideoWriter(path, fps=self._fps, lossless=self._options.lossless)
            video.add(frames)
            video.close()
        line = {"episode_index": number, "tasks": [task], "length": table.num_rows}
        append_lines(self._root / layout.EPISODES_LINES_FILE, [line])
        line = {"episode_index": number, "stats": _chosen(statistics, _V21_STATISTICS)}
        append_lines(self._root / layout.EPISODES_STATS_FILE, [line])

    def _write_rest(self, num_episodes: int, statistics: AllStatistics) -> dict[str, int]:
        lines = [{"task_index": number, "task": task} for task, number in self.tasks.items()]
        append_lines(self._root / layout.TASKS_LINES_FILE, lines)
        # Version 2.1 itself has no such file, but GR00T's finetuning reads it.
        chosen = _chosen(statistics, (*_V21_STATISTICS, "q01", "q99"))
        atomic.write_text(self._root / layout.STATS_FILE, atomic.json_line(atomic.plain(chosen)))
        num_chunks = -(-num_episodes // self._options.sizes.chunk)
        return {"total_videos": self._num_videos * num_episodes, "total_chunks": num_chunks}


class _ConversionV30(_Conversion):
    """Writes version 3.0: many episodes share a table and a video, and an index table locates each."""

    def __init__(self, root: Path, features: DatasetFeatures, options: LeRobotOptions, fps: int) -> None:
        super().__init__(root, features, options, fps)
        self._data = layout.TableFiles(root, layout.DATA_PATHS[DatasetVersion.V30], options.sizes)
        self._episodes = layout.TableFiles(root, layout.EPISODES_TABLE_PATH, options.sizes)
        self._rows: list[dict[str, Any]] = []
        self._videos: dict[str, VideoWriter] = {}
        self._video_numbers: dict[str, int] = {}

    def _write(self, number: int, task: str, columns: Columns, videos: Arrays, statistics: AllStatistics) -> None:
        table, sizes = layout.steps_table(columns), self._options.sizes
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [task],
            "length": table.num_rows,
            "dataset_from_index": self.num_frames,
            "dataset_to_index": self.num_frames + table.num_rows,
            **_place("data", self._data.next_number(), sizes),
        }
        # The row has been made first, because its file number is the one before this table is added.
        self._data.append(table)
        for key, frames in videos.items():
            video = self._videos.get(key)
            # A full video is completed, and the next one begins. Its file is empty until a frame leaves the encoder.
            num_bytes = video.path.stat().st_size if video is not None and video.path.exists() else 0
            if video is None or num_bytes >= sizes.video_mb * layout.MEGABYTE:
                if video is not None:
                    video.close()
                file_number = self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
                chunk, file = divmod(file_number, sizes.chunk)
                template = layout.VIDEO_PATHS[DatasetVersion.V30]
                path = self._root / template.format(chunk_index=chunk, file_index=file, video_key=key)
                video = self._videos[key] = VideoWriter(path, fps=self._fps, lossless=self._options.lossless)
            first_frame = video.num_frames
            video.add(frames)
            row |= {
                **_place(f"videos/{key}", self._video_numbers[key], sizes),
                f"videos/{key}/from_timestamp": first_frame / self._fps,
                f"videos/{key}/to_timestamp": video.num_frames / self._fps,
            }
        for feature, found in statistics.items():
            row |= {f"stats/{feature}/{name}": values.tolist() for name, values in found.items()}
        self._rows.append(row)
        if len(self._rows) == 100:
            self._write_rows()

    def _write_rest(self, num_episodes: int, statistics: AllStatistics) -> dict[str, int]:  # noqa: ARG002  as due
        self._write_rows()
        for file in (self._data, self._episodes, *self._videos.values()):
            file.close()
        path = self._root / layout.TASKS_TABLE_FILE
        frame = pd.DataFrame({"task_index": range(len(self.tasks))}, index=pd.Index(list(self.tasks), dtype=object))
        with layout.parquet_errors("write", path):
            frame.to_parquet(path)
        atomic.write_text(self._root / layout.STATS_FILE, atomic.json_line(atomic.plain(statistics)))
        sizes = self._options.sizes
        return {"data_files_size_in_mb": sizes.data_mb, "video_files_size_in_mb": sizes.video_mb}

    def _write_rows(self) -> None:
        if self._rows:
            place = _place("meta/episodes", self._episodes.next_number(), self._options.sizes)
            self._episodes.append(pa.Table.from_pylist([row | place for row in self._rows]))
            self._rows.clear()


_V21_STATISTICS = ("min", "max", "mean", "std", "count")
_CONVERSIONS = {DatasetVersion.V21: _ConversionV21, DatasetVersion.V30: _ConversionV30}


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append lines of JSON to a file; StorageError if this fails."""
    with atomic.storage_errors("append to", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{atomic.json_line(atomic.plain(value))}\n" for value in values)


def _place(prefix: str, number: int, sizes: layout.FileSizes) -> dict[str, int]:
    chunk, file = divmod(number, sizes.chunk)
    return {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}


def _chosen(statistics: AllStatistics, names: Sequence[str]) -> dict[str, Any]:
    return {feature: {name: values[name] for name in names} for feature, values in statistics.items()}
