"""The paths and JSON documents of a LeRobot dataset, the recordings for one, and checks of foreign files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import given_path, not_a_plain_file
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.episodes import find_recordings
from isaaclab_arena.storage.layout import EPISODES_DIRECTORY

# Version 2.1 has a table and a video per episode; GR00T's finetuning reads it, together with ``modality.json``.
# Version 3.0 puts many episodes into one file. Two further files of this program hold the rest of a recording.

INFO_FILE = "meta/info.json"
STATS_FILE = "meta/stats.json"
MODALITY_FILE = "meta/modality.json"
ARENA_FILE = "meta/arena.json"
ARENA_EPISODES_FILE = "meta/arena_episodes.jsonl"
TASKS_LINES_FILE = "meta/tasks.jsonl"
EPISODES_LINES_FILE = "meta/episodes.jsonl"
EPISODES_STATS_FILE = "meta/episodes_stats.jsonl"
TASKS_TABLE_FILE = "meta/tasks.parquet"
EPISODES_TABLE_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

MEGABYTE = 1 << 20
ARENA_SCHEMA_VERSION = 1
"""Of `ARENA_FILE` and `ARENA_EPISODES_FILE`."""

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
ACTION = "action"
ACTIONS = "actions"
REWARD = "next.reward"
DONE = "next.done"
SUCCESS = "next.success"
PICTURES_PREFIX = "observation.images."
ANNOTATION = "annotation.human.task_description"
TASK_INDEX = "task_index"
TIMESTAMP = "timestamp"
FRAME_INDEX = "frame_index"
EPISODE_INDEX = "episode_index"
INDEX = "index"


class DatasetVersion(StrEnum):
    """A version of the layout that is written: ``V21`` for GR00T, ``V30`` for LeRobot itself."""

    V21 = "v2.1"
    V30 = "v3.0"


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """Largest sizes of the files and directories of a dataset."""

    chunk: int = 1000  # files in a directory ``chunk-000``
    # A table, or video, of this size [MiB] is full, and the next begins a new file (version 3.0).
    data_mb: int = 100
    video_mb: int = 200


DATA_PATHS = {
    DatasetVersion.V21: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    DatasetVersion.V30: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATHS = {
    DatasetVersion.V21: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    DatasetVersion.V30: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


# Check foreign files field by field; every error names file, key and value.


@dataclass(frozen=True)
class Fields:
    """The fields of a mapping in a file."""

    values: Mapping[Any, Any]
    place: str  # the file, and the path in it, for messages

    def wrong(self, key: str, due: str) -> StorageError:
        """Return an error with the expected and the actual value of a field."""
        found = shown(self.values[key]) if key in self.values else "nothing"
        return StorageError(f"{self.place}: {plain_text(key)}: must be {due}, got {found}")

    def integer(self, key: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``; floats with a whole value are accepted."""
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """Return a number from ``least`` to ``most``."""
        value = self.values.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text, the default if there is one and the text is missing or empty."""
        value = self.values.get(key)
        if default is not None and (value is None or value == ""):
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def integers(self, key: str, length: int, most: int) -> tuple[int, ...]:
        """Return a list of a given number of whole numbers, each from 0 to ``most``."""
        items = self.items(key)
        if len(items) != length:
            raise self.wrong(key, f"a list of {length} whole numbers")
        numbers = {str(position): item for position, item in enumerate(items)}
        return tuple(Fields(numbers, f"{self.place}: {plain_text(key)}").integer(name, 0, most) for name in numbers)

    def mapping(self, key: str, *, or_empty: bool = False) -> "Fields":
        """Return the fields of a mapping; with `or_empty` a missing one has none."""
        value = self.values.get(key)
        if or_empty and value is None:
            return Fields({}, self.place)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return Fields(value, f"{self.place}: {plain_text(key)}")

    def mappings(self) -> dict[str, "Fields"]:
        """Return the fields of every value; each value must be a mapping."""
        return {str(key): self.mapping(key) for key in self.values}


def shown(value: object) -> str:
    """Return a value of a file as short text, without control characters."""
    longest = 80
    if isinstance(value, float):
        words = f"{value:.6g}"
    elif isinstance(value, str):
        words = repr(value[:longest])
    elif isinstance(value, list | dict):
        words = f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    else:
        # Python refuses to print very long numbers.
        is_long = isinstance(value, int) and value.bit_length() > 200
        words = "a number of many digits" if is_long else repr(value)
    return plain_text(words[:longest])


def regular_file(path: Path, root: Path) -> Path:
    """Return `path`; StorageError if it is missing, no regular file (pipe, device), or outside of the dataset."""
    if not is_inside(path, root):
        raise StorageError(f"{root} has a file outside of the dataset: {plain_text(path)}")
    wrong = not_a_plain_file(path)
    if wrong is not None:
        raise StorageError(f"cannot read {plain_text(path)}: {wrong}")
    return path


def check_empty(output_dir: Path) -> None:
    """Refuse a directory for new files that holds some already: ConfigError."""
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ConfigError(f"'{output_dir}' is not empty; name a directory that is, or remove it", key="--output_dir")


def is_inside(path: Path, root: Path) -> bool:
    """True if a path, with all links followed, is inside `root` or in the hub's cache of `root`."""
    try:
        with storage_errors("find", path):
            found, inside = path.resolve(), root.resolve()
            # The cache keeps the files of all revisions in ``blobs``; ``snapshots/<revision>`` contains links to them.
            caches = [each.parent for each in (inside, *inside.parents) if each.parent.name == "snapshots"]
            blobs = [each.parent / "blobs" for each in caches if not (each.parent / "blobs").is_symlink()]
            return found.is_relative_to(inside) or found.parent in blobs
    except RuntimeError as error:
        raise StorageError(f"cannot find {plain_text(path)}: its links lead in a circle") from error


# ``modality.json`` assigns a dataset's numbers and videos to a model's groups and pictures.

COLUMN_OF_MODALITY = {"state": STATE, "action": ACTION}


def groups_of(document: Mapping[str, Any], modality: str) -> dict[str, tuple[str, int, int]]:
    """Return column, begin and end of each group of a modality in ``modality.json``; StorageError if it is wrong."""
    default, most = COLUMN_OF_MODALITY[modality], 65_536
    found = {}
    for key, group in Fields(document, MODALITY_FILE).mapping(modality, or_empty=True).mappings().items():
        start = group.integer("start", 0, most)
        found[key] = (group.text("original_key", default), start, group.integer("end", start, most))
    return found


# Find the recordings for a dataset or a training.

DATASET_OPTION = "--dataset"


def jobs_of(dataset: Path) -> Iterator[Sequence[Path]]:
    """Yield the recordings of each job; ConfigError if there is none."""
    directory = given_path(dataset)
    below = sorted(path for path in directory.glob("*") if path.is_dir()) if directory.is_dir() else []
    files: dict[Path, list[Path]] = {}
    for job in [directory, *below]:
        try:
            recordings = find_recordings(str(job), key=DATASET_OPTION)
        except ConfigError:
            continue
        for file in recordings:
            owner = file.parent.parent if file.parent.name == EPISODES_DIRECTORY else file.parent
            # If a job's directory was given as a run, its directory of episodes looks like that of a job.
            known = files.setdefault(owner, [])
            if file not in known:
                known.append(file)
    if not files:
        raise ConfigError(f"no recording at '{dataset}', nor in its directories", key=DATASET_OPTION)
    yield from files.values()
