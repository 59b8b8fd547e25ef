"""Recordings: the files for a path, the episodes in them, their attributes and their control steps."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isaaclab_arena import episode_ranges
from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.paths import given_path, not_a_plain_file
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.commits import CommitLine, parse_line
from isaaclab_arena.storage.hdf5.episodes import ArrayPlace, list_episodes, locate_arrays, read_array, read_attributes
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.recorded_episode import AttributeValue, RecordedEpisode

# Read the attributes of a recorded episode, and compare them with its commit line.

# The place of a recording may change, so its fields are not compared.
_FIELDS = tuple(
    each.name for each in dataclasses.fields(CommitLine) if each.name not in {"dataset_file", "episode_file"}
)


def attributes_of(line: CommitLine) -> dict[str, AttributeValue]:
    """Return the attributes of an episode's group from its commit line; unknown values are left out."""
    named = ("episode_index", "seed", "episode_seed", "placement_seed", "env_id", "success", "outcome", "termination")
    values: dict[str, AttributeValue | None] = {
        "job": line.job_name,
        **{name: getattr(line, name) for name in (*named, "episode_return", "language_instruction")},
        "conditions": json_line(line.variations),
        "metrics": json_line(line.metrics),
        "error": line.error,
        "rank": line.rank,
    }
    return {name: value for name, value in values.items() if value is not None}


def contradiction(line: CommitLine, attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return the first disagreement of a commit line and its recording, None if they agree."""
    # A disagreement means that one of the two was changed later, and it is unknown which. Recordings of
    # `EpisodeRecorder` carry the whole line.
    compared: list[tuple[str, object, object]] = []
    text = attributes.get(layout.COMMIT_ATTRIBUTE)
    if text is not None:
        try:
            carried = parse_line(str(text))
        except ValueError:
            return "its recording holds a commit line that is none"
        compared += [(name, getattr(line, name), getattr(carried, name)) for name in _FIELDS]
    compared += [(name, said, attributes[name]) for name, said in attributes_of(line).items() if name in attributes]
    compared.append(("episode_length", line.episode_length, attributes.get("num_samples", line.episode_length)))
    for name, said, recorded in compared:
        if said != recorded:
            return f"its commit line says {name} {said}, its recording {recorded}"
    return None


def find_recordings(path: str, *, key: str) -> list[Path]:
    """Return the recordings at a file, a job's directory or a pattern, sorted. ConfigError with `key` if none."""
    found: list[Path] = []
    try:
        given = given_path(path)
        is_directory, exists = given.is_dir(), given.exists()
    except (OSError, RuntimeError, ValueError):
        # Too long a path, links in a circle, or an unknown home directory: there is no file.
        pass
    else:
        if is_directory:
            episodes, pattern = given / layout.EPISODES_DIRECTORY, layout.EPISODE_FILE_PATTERN
            found += [*given.glob("*.hdf5"), *given.glob(pattern), *episodes.glob(pattern)]
        elif exists:
            found.append(given)
        else:
            matches = Path(given.anchor or ".").glob(str(given.relative_to(given.anchor)))
            found += [file for file in matches if not file.is_dir()]
    if not found:
        raise ConfigError(Problem(f"no recording at '{path}'", key=key))
    found.sort()
    problems = [
        Problem(f"'{file}': {wrong}", key=key) for file in found if (wrong := not_a_plain_file(file)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return found


def index_episodes(files: Iterable[Path], *, key: str) -> dict[int, Path]:
    """Map each recorded episode of a job to its file, ascending. ConfigError for duplicates or an unreadable file."""
    found: dict[int, Path] = {}
    for file in files:
        try:
            indices = list_episodes(file)
        except StorageError as error:
            raise ConfigError(Problem(str(error), key=key)) from error
        for index in indices:
            if index in found:
                both = f"{found[index]} and {file} both hold {layout.demo_name(index)}"
                raise ConfigError(Problem(f"{both}; name one", key=key))
            found[index] = file
    if not found:
        raise ConfigError(Problem("the recording holds no episodes", key=key))
    return dict(sorted(found.items()))


def in_words(indices: Iterable[int]) -> str:
    """Format indices for messages: ``demo_0 to demo_4, demo_7``."""
    return episode_ranges.in_words(indices, layout.demo_name)


def datasets(job_directory: Path, job: str) -> list[Path]:
    """Return the datasets of a job, of all ranks."""
    return sorted(path for path in job_directory.glob("*") if layout.is_dataset_of(job, path.name))


def episode_files(job_directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the episode files of a job with their indices, in order; files with other names are skipped."""
    for path in sorted((job_directory / layout.EPISODES_DIRECTORY).glob(layout.EPISODE_FILE_PATTERN)):
        index = layout.episode_index_of_file(path.name)
        if index is not None and path.name == layout.episode_file_name(index):
            yield path, index


def recorded_without_arrays(
    job_directory: Path, job: str, checksums: Mapping[int, int | None]
) -> RecordedEpisode | None:
    """Return the first recorded episode with a matching checksum, without arrays. None if there is none."""
    found, _ = locate_episodes(job_directory, job)
    for index, checksum in checksums.items():
        for path in found.get(index, ()):
            with suppress(StorageError):
                attributes = read_attributes(path, index)
                episode = RecordedEpisode(episode_index=index, arrays={}, attributes=attributes, env_args={})
                if attributes.get("checksum") == checksum and episode.provenance:
                    return episode
    return None


def locate_episodes(job_directory: Path, job: str) -> tuple[dict[int, list[Path]], list[str]]:
    """Map each episode to the files that hold it, and return one message per unreadable file."""
    found: dict[int, list[Path]] = {}
    problems = []
    for file in (*datasets(job_directory, job), *(path for path, _ in episode_files(job_directory))):
        try:
            indices = list_episodes(file)
        except StorageError as error:
            problems.append(str(error))
            continue
        for index in indices:
            found.setdefault(index, []).append(file)
    return found, problems


# Read single control steps of recordings of any size; uncompressed arrays are mapped into memory.

KEPT_BYTES = 1 << 30  # size of the cache of compressed arrays [bytes]


@dataclass(frozen=True, kw_only=True)
class RecordedArray:
    """One array of one episode."""

    file: Path
    episode_index: int
    name: str  # path below the episode's group


class RecordedSteps:
    """Access control steps of arrays in recordings without a writer. `read` loads a compressed array."""

    def __init__(self, kept_bytes: int = KEPT_BYTES, read: Callable[[Path, int, str], np.ndarray] = read_array) -> None:
        # Compressed arrays can only be read whole, so the most recent ones are cached up to `kept_bytes`.
        self._read_array = read
        self._places: dict[tuple[Path, int], dict[str, ArrayPlace]] = {}
        self._mapped: dict[Path, np.memmap] = {}
        self._read: OrderedDict[RecordedArray, np.ndarray] = OrderedDict()
        self._kept_bytes = kept_bytes
        self._held_bytes = 0

    def names(self, file: Path, episode_index: int) -> list[str]:
        """Return the paths of an episode's arrays."""
        return sorted(self._places_of(file, episode_index))

    def array(self, wanted: RecordedArray) -> np.ndarray:
        """Return a read-only array; an uncompressed one is mapped and read on access. StorageError if missing."""
        file = wanted.file
        place = self._places_of(file, wanted.episode_index).get(wanted.name)
        if place is None:
            raise StorageError(f"{file}: {layout.demo_name(wanted.episode_index)} holds no '{wanted.name}'")
        if place.offset is not None and 0 not in place.shape:
            if file not in self._mapped:
                with storage_errors("read", file):
                    self._mapped[file] = np.memmap(file, np.uint8, "r")
            end = place.offset + int(np.prod(place.shape)) * place.dtype.itemsize
            return self._mapped[file][place.offset : end].view(place.dtype).reshape(place.shape)

        if wanted in self._read:
            self._read.move_to_end(wanted)
            return self._read[wanted]
        array = self._read_array(file, wanted.episode_index, wanted.name)
        self._read[wanted] = array
        self._held_bytes += array.nbytes
        while self._held_bytes > self._kept_bytes and len(self._read) > 1:
            self._held_bytes -= self._read.popitem(last=False)[1].nbytes
        return array

    def _places_of(self, file: Path, episode_index: int) -> dict[str, ArrayPlace]:
        key = file, episode_index
        if key not in self._places:
            self._places[key] = locate_arrays(file, episode_index)
        return self._places[key]
