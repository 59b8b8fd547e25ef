"""Recordings as a LeRobot dataset, one episode at a time."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean, refuse
from isaaclab_arena.interfaces.specs import ArraySpec, in_colours, picture_layout
from isaaclab_arena.paths import given_path
from isaaclab_arena.storage import atomic, json_values
from isaaclab_arena.storage import episodes as recordings
from isaaclab_arena.storage import layout as recorded
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyConfig, JointFiles, read_joint_files, read_policy_config
from isaaclab_arena_gr00t.data import layout, tables
from isaaclab_arena_gr00t.data.features import Camera, Column, DatasetFeatures, VideoWriter, whole_arrays
from isaaclab_arena_gr00t.data.layout import DatasetVersion
from isaaclab_arena_gr00t.observations import wired_action, wired_state

# Find the recorded episodes for a dataset: those of a file, of a job, or of all jobs of a run.


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
    for files in layout.jobs_of(dataset):
        places = recordings.index_episodes(files, key=layout.DATASET_OPTION)
        num_recorded += len(places)
        of_job: list[SourceEpisode] = []
        for file in dict.fromkeys(places.values()):
            # Read the attributes of a file's episodes at once, because opening a file is slow.
            indices = [index for index, place in places.items() if place == file]
            with recordings.opened(file) as recording:
                told = [recording.attributes(recording.group(index)) for index in indices]
            for index, attributes in zip(indices, told, strict=True):
                if only_successes and attributes.get("success") is not True:
                    continue
                # Foreign recordings may hold any value; a microsecond to a quarter of an hour is a plausible step.
                control_dt = attributes.get("control_dt")
                if not (isinstance(control_dt, int | float) and 1e-6 <= control_dt <= 1e3):
                    control_dt = None
                instruction = attributes.get("language_instruction")
                of_job.append(
                    SourceEpisode(
                        file=file,
                        episode_index=index,
                        instruction=(instruction if isinstance(instruction, str) else "") or default_instruction,
                        control_dt=None if control_dt is None else float(control_dt),
                    )
                )
        found += sorted(of_job, key=lambda episode: episode.episode_index)
    if not found:
        reason = f"none of its {num_recorded} episodes succeeded" if num_recorded else "it holds no episodes"
        raise ConfigError(f"'{dataset}' gives no episode: {reason}", key=layout.DATASET_OPTION)

    # Every episode of a dataset needs an instruction.
    silent = [episode for episode in found if not episode.instruction]
    if silent:
        message = (
            f"{silent[0].name} and {len(silent) - 1} others have no instruction; give one with --language_instruction"
        )
        raise ConfigError(message, key=layout.DATASET_OPTION)
    return found


def frames_per_second(episodes: Iterable[SourceEpisode]) -> int:
    """Return the number of control steps per second; ConfigError if unknown, not whole, or different among episodes."""
    found: dict[float | None, SourceEpisode] = {}
    for episode in episodes:
        found.setdefault(episode.control_dt, episode)
    if len(found) > 1:
        first, second = list(found)[:2]
        message = (
            f"{found[first].name} has control steps of {first} s, {found[second].name} of {second} s; "
            "a dataset has one rate"
        )
        raise ConfigError(message, key=layout.DATASET_OPTION)
    ((control_dt, episode),) = found.items()
    if control_dt is None:
        message = f"{episode.name} does not say how long a control step is; give --fps"
        raise ConfigError(message, key=layout.DATASET_OPTION)
    # LeRobot's rate is a whole number; a rounded one would shift all timestamps.
    rate = 1 / control_dt
    if round(rate) < 1 or abs(rate - round(rate)) > 1e-6 * rate:
        message = f"{episode.name} has {rate:.6g} control steps per second, and LeRobot takes whole numbers; give --fps"
        raise ConfigError(message, key=layout.DATASET_OPTION)
    return round(rate)


# Write episodes into the files of each version of the layout.

_V21_STATISTICS = ("min", "max", "mean", "std", "count")


@dataclass(frozen=True, kw_only=True)
class EpisodeContent:
    """One episode of a new dataset."""

    episode_index: int
    num_steps: int  # control steps
    columns: Mapping[str, np.ndarray]  # shape of each: (num_steps,) or (num_steps, size)
    pictures: Mapping[str, np.ndarray]  # by video feature; shape of each: (num_steps, height, width, 3), uint8
    encoded: Mapping[str, Sequence[bytes]]  # by picture feature: one PNG file per control step
    task: str
    statistics: Mapping[str, tables.Statistics]  # of every column and video feature in this episode


@dataclass(frozen=True)
class EpisodeWriterV21:
    """Writes version 2.1: every episode has a table and videos of its own, and a line in each of two files."""

    root: Path
    fps: int
    lossless: bool
    sizes: layout.FileSizes

    def add(self, episode: EpisodeContent) -> None:
        """Write an episode; StorageError if this fails."""
        index = episode.episode_index
        place = {"episode_chunk": index // self.sizes.chunk, "episode_index": index}
        table = tables.steps_table(episode.columns, episode.encoded)
        path = self.root / layout.DATA_PATHS[DatasetVersion.V21].format(**place)
        with tables.parquet_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, path, compression="snappy")
        for key, frames in episode.pictures.items():
            path = self.root / layout.VIDEO_PATHS[DatasetVersion.V21].format(**place, video_key=key)
            video = VideoWriter(path, fps=self.fps, lossless=self.lossless)
            video.add(frames)
            video.close()
        line = {"episode_index": index, "tasks": [episode.task], "length": episode.num_steps}
        append_lines(self.root / layout.EPISODES_LINES_FILE, [line])
        statistics = _chosen(episode.statistics, _V21_STATISTICS)
        append_lines(self.root / layout.EPISODES_STATS_FILE, [{"episode_index": index, "stats": statistics}])

    def finish(self, tasks: Sequence[str], statistics: Mapping[str, tables.Statistics]) -> None:
        """Write the files of all episodes except ``info.json``; `tasks` are in number order."""
        lines = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
        append_lines(self.root / layout.TASKS_LINES_FILE, lines)
        # Version 2.1 itself has no such file, but GR00T's finetuning reads it.
        chosen = _chosen(statistics, (*_V21_STATISTICS, "q01", "q99"))
        atomic.write_text(self.root / layout.STATS_FILE, json_values.json_line(chosen))


class EpisodeWriterV30:
    """Writes version 3.0: many episodes share a table and a video, and an index table locates each."""

    def __init__(self, root: Path, *, fps: int, lossless: bool, sizes: layout.FileSizes) -> None:
        self.root, self.fps, self.lossless, self.sizes = root, fps, lossless, sizes
        self._data = tables.TableFiles(root, layout.DATA_PATHS[DatasetVersion.V30], sizes)
        self._episodes = tables.TableFiles(root, layout.EPISODES_TABLE_PATH, sizes)
        self._rows: list[dict[str, Any]] = []
        self._videos: dict[str, VideoWriter] = {}
        self._video_numbers: dict[str, int] = {}

    def add(self, episode: EpisodeContent) -> None:
        """Write an episode; StorageError if this fails."""
        first = int(episode.columns[layout.INDEX][0])
        row: dict[str, Any] = {
            "episode_index": episode.episode_index,
            "tasks": [episode.task],
            "length": episode.num_steps,
            "dataset_from_index": first,
            "dataset_to_index": first + episode.num_steps,
            **_place("data", self._data.next_number(), self.sizes),
        }
        # The row has been made first, because its file number is the one before this table is added.
        self._data.append(tables.steps_table(episode.columns, episode.encoded))
        for key, frames in episode.pictures.items():
            video = self._videos.get(key)
            # A full video is completed, and the next one begins. Its file is empty until a frame leaves the encoder.
            num_bytes = video.path.stat().st_size if video is not None and video.path.exists() else 0
            if video is None or num_bytes >= self.sizes.video_mb * layout.MEGABYTE:
                if video is not None:
                    video.close()
                number = self._video_numbers[key] = self._video_numbers.get(key, -1) + 1
                chunk, file = divmod(number, self.sizes.chunk)
                template = layout.VIDEO_PATHS[DatasetVersion.V30]
                path = self.root / template.format(chunk_index=chunk, file_index=file, video_key=key)
                video = self._videos[key] = VideoWriter(path, fps=self.fps, lossless=self.lossless)
            first_frame = video.num_frames
            video.add(frames)
            row |= {
                **_place(f"videos/{key}", self._video_numbers[key], self.sizes),
                f"videos/{key}/from_timestamp": first_frame / self.fps,
                f"videos/{key}/to_timestamp": video.num_frames / self.fps,
            }
        for feature, statistics in episode.statistics.items():
            row |= {f"stats/{feature}/{name}": values.tolist() for name, values in statistics.items()}
        self._rows.append(row)
        if len(self._rows) == 100:
            self._write_rows()

    def finish(self, tasks: Sequence[str], statistics: Mapping[str, tables.Statistics]) -> None:
        """Complete the shared files, and write those of all episodes except ``info.json``."""
        self._write_rows()
        self._data.close()
        self._episodes.close()
        for video in self._videos.values():
            video.close()
        path = self.root / layout.TASKS_TABLE_FILE
        frame = pd.DataFrame({"task_index": range(len(tasks))}, index=pd.Index(tasks, dtype=object))
        with tables.parquet_errors("write", path):
            frame.to_parquet(path)
        atomic.write_text(self.root / layout.STATS_FILE, json_values.json_line(json_values.plain(statistics)))

    def _write_rows(self) -> None:
        if self._rows:
            place = _place("meta/episodes", self._episodes.next_number(), self.sizes)
            self._episodes.append(pa.Table.from_pylist([row | place for row in self._rows]))
            self._rows.clear()


def append_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append lines of JSON to a file; StorageError if this fails."""
    with atomic.storage_errors("append to", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{json_values.json_line(json_values.plain(value))}\n" for value in values)


def _place(prefix: str, number: int, sizes: layout.FileSizes) -> dict[str, int]:
    chunk, file = divmod(number, sizes.chunk)
    return {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}


def _chosen(statistics: Mapping[str, tables.Statistics], names: Sequence[str]) -> dict[str, Any]:
    chosen = {feature: {name: values[name] for name in names} for feature, values in statistics.items()}
    return json_values.plain(chosen)


# Convert recordings to a LeRobot dataset, one episode at a time; ``info.json`` is written last.


@dataclass(frozen=True, kw_only=True)
class LeRobotOptions:
    """Options of a conversion."""

    version: DatasetVersion = DatasetVersion.V21
    """v2.1 with modality.json, which GR00T's finetuning reads, or v3.0, LeRobot's newest."""
    policy_config_yaml_path: Path | None = None
    """YAML file of the policy to train, for its cameras and groups of joints. By default all cameras, whole arrays."""
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


ACTION_KEY = "action"
ROBOT_PREFIXES = ("robot_", "gripper_", "eef_")
"""Prefixes of observations that a real robot has; a policy should not see others."""


def plan_features(
    arrays: Mapping[str, recordings.ArrayPlace], policy: Gr00tClosedloopPolicyConfig | None, options: LeRobotOptions
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

    # The state is the first of these that is not empty: the given names, the policy's, the robot's, all observations.
    names = tuple(dict.fromkeys(options.state_names)) or (policy.state_names if policy is not None else ())
    names = names or tuple(name for name in observed if name.startswith(ROBOT_PREFIXES)) or tuple(observed)
    has_joints = policy is not None and policy.policy_joints_config_path is not None
    files = read_joint_files(policy) if has_joints else JointFiles()
    vectors: dict[str, Column] = {}
    whole: dict[str, Sequence[str]] = {}  # by column, observations that are a group each
    problems = [
        Problem(f"the recording has no observation '{name}'{did_you_mean(name, observed)}", key="state_names")
        for name in names
        if name not in observed
    ]
    refuse(problems)
    if names and files.policy is None:
        # Without joint files each observation is a group of its own.
        whole[layout.STATE] = names
    elif names and files.policy is not None:
        specs = {name: ArraySpec(shape=(observed[name],)) for name in names}
        wired_terms, groups, problems = wired_state(specs, list(files.policy.state), names, files)
        refuse(problems)
        vectors[layout.STATE] = Column(
            sources={f"{recorded.OBSERVATIONS}/{name}": observed[name] for name in wired_terms},
            groups=groups,
            names=tuple(joint for joints in files.policy.state.values() for joint in joints),
        )

    # `environment_state` stores the other observations in a column of their own, which a policy should not see.
    others = [name for name in observed if name not in names]
    if options.environment_state and others:
        whole[layout.ENVIRONMENT_STATE] = others
    for column, of_column in whole.items():
        terms = {name.replace("/", "."): (f"{recorded.OBSERVATIONS}/{name}", observed[name]) for name in of_column}
        vectors[column] = whole_arrays(terms)

    # Without joint files the action is one group.
    action_dim = shapes[recorded.ACTIONS][1]
    if files.policy is None:
        vectors[layout.ACTION] = whole_arrays({ACTION_KEY: (recorded.ACTIONS, action_dim)})
    else:
        groups, problems = wired_action(ArraySpec(shape=(action_dim,)), list(files.policy.action), files)
        refuse(problems)
        joints = tuple(joint for group in files.policy.action.values() for joint in group)
        vectors[layout.ACTION] = Column(sources={recorded.ACTIONS: action_dim}, groups=groups, names=joints)

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
    if policy is None:
        refuse([Problem(reason, key="--dataset") for reason in unclear.values()])
        cameras = {name.replace("/", "."): camera for name, camera in cameras.items()}
    elif not options.no_videos:
        problems = [
            Problem(
                unclear.get(name)
                or f"the recording has no pictures of '{name}'{did_you_mean(name, cameras)}; record them with "
                "--enable_cameras and --record_observations all, or leave out videos with --no_videos",
                key="pov_cam_name_sim",
            )
            for name in policy.cameras.values()
            if name not in cameras
        ]
        refuse(problems)
        cameras = {key: cameras[name] for key, name in policy.cameras.items()}
    return DatasetFeatures(vectors=vectors, cameras=cameras, rewards=recorded.REWARDS in shapes)


def write_lerobot_dataset(
    dataset: Path, output_dir: Path, options: LeRobotOptions, told: Callable[[int, int], None] = lambda *_: None
) -> dict[str, int]:
    """Convert recordings to a LeRobot dataset in a missing or empty directory; return its counts by their names."""
    # ``told(done, total)`` is called after each episode. ConfigError: a recording is missing or lacks an input.
    # StorageError: reading or writing failed. Files written by then stay, without ``info.json``.
    if options.fps is not None and options.fps < 1:
        raise ConfigError(f"must be at least 1, got {options.fps}", key="--fps")
    output_dir = given_path(output_dir)
    policy = None if options.policy_config_yaml_path is None else read_policy_config(options.policy_config_yaml_path)
    instruction = options.language_instruction or ("" if policy is None else policy.language_instruction)
    episodes = find_episodes(dataset, only_successes=options.only_successes, default_instruction=instruction)
    first = recordings.locate_arrays(episodes[0].file, episodes[0].episode_index)
    features = plan_features(first, policy, options)
    # All episodes share one layout, so a deviating one must fail before any file is written.
    wanted = {path: first[path] for path in features.paths()}
    for episode in episodes:
        arrays = recordings.locate_arrays(episode.file, episode.episode_index)
        num_steps = next(iter(arrays[recorded.ACTIONS].shape), 0) if recorded.ACTIONS in arrays else 0
        if num_steps == 0:
            raise ConfigError(f"{episode.name} has no control step", key=layout.DATASET_OPTION)
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
            message = f"{episode.name}: '{path}' {has}; {due} is due, as in the first episode"
            raise ConfigError(message, key=layout.DATASET_OPTION)
    fps = options.fps or frames_per_second(episodes)

    layout.check_empty(output_dir)
    with atomic.storage_errors("make", output_dir):
        (output_dir / "meta").mkdir(parents=True, exist_ok=True)
    conversion = _Conversion(output_dir, features, options, fps)
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


class _Conversion:
    """Converts episodes one by one, and accumulates statistics and instructions."""

    def __init__(self, root: Path, features: DatasetFeatures, options: LeRobotOptions, fps: int) -> None:
        self.num_frames = 0
        self.tasks: dict[str, int] = {}  # each instruction with its number
        self._root = root
        self._features = features
        self._options = options
        self._fps = fps
        writer = EpisodeWriterV21 if options.version is DatasetVersion.V21 else EpisodeWriterV30
        self._writer = writer(root, fps=fps, lossless=options.lossless, sizes=options.sizes)
        self._spools: dict[str, tables.ColumnSpool] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._env_args: dict[Path, Mapping[str, Any]] = {}

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
                raise StorageError(
                    f"{episode.name}: '{name}' holds values that are no finite numbers; leave the episode out"
                )
        pictures = {
            layout.PICTURES_PREFIX + key: in_colours(arrays[camera.path])
            for key, camera in self._features.cameras.items()
        }
        png = self._options.png
        encoded: dict[str, list[bytes]] = {}
        for name, shown in pictures.items() if png else ():
            encoded[name] = []
            for frame in shown:
                file = BytesIO()
                Image.fromarray(frame).save(file, format="PNG")
                encoded[name].append(file.getvalue())

        # Statistics of this episode, and the values for those of the whole dataset.
        statistics: dict[str, tables.Statistics] = {}
        for name, values in columns.items():
            flat = values.reshape(num_steps, -1)
            if name not in self._spools:
                self._spools[name] = tables.ColumnSpool(self._root, flat.shape[1])
            self._spools[name].append(flat)
            statistics[name] = tables.array_statistics(flat)
        for name, shown in pictures.items():
            # The number of pixels of each intensity in each channel.
            counts = np.zeros((3, 256), np.int64)
            for frame in shown:
                counts += np.stack(
                    [np.bincount(frame[..., channel].reshape(-1), minlength=256) for channel in range(3)]
                )
            self._counts[name] = self._counts.get(name, 0) + counts
            statistics[name] = tables.picture_statistics(counts, num_steps)
        self._writer.add(
            EpisodeContent(
                episode_index=number,
                num_steps=num_steps,
                columns=columns,
                pictures={} if png else pictures,
                encoded=encoded,
                task=episode.instruction,
                statistics=statistics,
            )
        )

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
        statistics |= {
            name: tables.picture_statistics(counts, self.num_frames) for name, counts in self._counts.items()
        }
        self._writer.finish(tuple(self.tasks), statistics)
        vectors = self._features.vectors
        modalities: dict[str, Any] = {
            modality: {
                key: {"start": start, "end": end}
                for key, (start, end) in (vectors[column].spans() if column in vectors else {}).items()
            }
            for modality, column in layout.COLUMN_OF_MODALITY.items()
        }
        modalities["video"] = {key: {"original_key": layout.PICTURES_PREFIX + key} for key in self._features.cameras}
        modalities["annotation"] = {layout.ANNOTATION.removeprefix("annotation."): {"original_key": layout.ANNOTATION}}
        atomic.write_text(self._root / layout.MODALITY_FILE, json_values.json_text(modalities))
        arena = {"schema_version": layout.ARENA_SCHEMA_VERSION, "features": asdict(self._features)}
        atomic.write_text(self._root / layout.ARENA_FILE, json_values.json_text(arena))

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
        described = self._features.described(fps=self._fps, lossless=options.lossless, png=options.png)
        num_videos = sum(feature["dtype"] == "video" for feature in described.values())
        if options.version is DatasetVersion.V21:
            files = {
                "total_videos": num_videos * len(episodes),
                "total_chunks": -(-len(episodes) // options.sizes.chunk),
            }
        else:
            files = {"data_files_size_in_mb": options.sizes.data_mb, "video_files_size_in_mb": options.sizes.video_mb}
        info: dict[str, Any] = {
            "codebase_version": str(options.version),
            "robot_type": robot_type,
            "total_episodes": len(episodes),
            "total_frames": self.num_frames,
            "total_tasks": len(self.tasks),
            "chunks_size": options.sizes.chunk,
            **files,
            "fps": self._fps,
            "splits": {"train": f"0:{len(episodes)}"},
            "data_path": layout.DATA_PATHS[options.version],
            "video_path": layout.VIDEO_PATHS[options.version] if num_videos else None,
            "features": described,
        }
        # Readers begin with this file, so an interrupted conversion is not mistaken for a dataset.
        atomic.write_text(self._root / layout.INFO_FILE, json_values.json_text(info))
