"""Find recordings: the files for a path, and the episodes in them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from isaaclab_arena import episode_ranges
from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.paths import given_path, not_a_plain_file
from isaaclab_arena.storage.hdf5.episodes import list_episodes, read_attributes
from isaaclab_arena.storage.layout import (
    EPISODE_FILE_PATTERN,
    EPISODES_DIRECTORY,
    demo_name,
    episode_file_name,
    episode_index_of_file,
    is_dataset_of,
)
from isaaclab_arena.storage.recorded_episode import RecordedEpisode


def find_recordings(path: str, *, key: str) -> list[Path]:
    """Return the files that a path, a directory or a pattern stands for, sorted.

    Args:
        path: A recording, the directory of a job, or a pattern such as ``out/dataset_lift_rank*.hdf5``.
        key: What the user gave it as, for the message.

    Raises:
        ConfigError: If there is no recording, or what is there is no plain file.
    """
    found = sorted(_recordings_at(path))
    if not found:
        raise ConfigError(Problem(f"no recording at '{path}'", key=key))
    problems = [
        Problem(f"'{file}': {wrong}", key=key) for file in found if (wrong := not_a_plain_file(file)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return found


def _recordings_at(path: str) -> list[Path]:
    try:
        given = given_path(path)
        is_directory, exists = given.is_dir(), given.exists()
    except (OSError, RuntimeError, ValueError):
        # Too long, links in a circle, or nobody's home: there is nothing.
        return []
    if exists and not is_directory:
        return [given]
    if is_directory:
        episodes = given / EPISODES_DIRECTORY
        return [*given.glob("*.hdf5"), *given.glob(EPISODE_FILE_PATTERN), *episodes.glob(EPISODE_FILE_PATTERN)]
    return [file for file in Path(given.anchor or ".").glob(str(given.relative_to(given.anchor))) if not file.is_dir()]


def index_episodes(files: Iterable[Path], *, key: str) -> dict[int, Path]:
    """Return which file holds each recorded episode, by index, ascending.

    Args:
        files: The recordings of one job.
        key: What the user gave them as, for the message.

    Raises:
        ConfigError: If a file cannot be read, two hold the same episode, or there is none.
    """
    found: dict[int, Path] = {}
    for file in files:
        try:
            indices = list_episodes(file)
        except StorageError as error:
            raise ConfigError(Problem(str(error), key=key)) from error
        for index in indices:
            if index in found:
                raise ConfigError(Problem(f"{found[index]} and {file} both hold {demo_name(index)}; name one", key=key))
            found[index] = file
    if not found:
        raise ConfigError(Problem("the recording holds no episodes", key=key))
    return dict(sorted(found.items()))


def in_words(indices: Iterable[int]) -> str:
    """Return indices for people: ``demo_0 to demo_4, demo_7``."""
    return episode_ranges.in_words(indices, demo_name)


def datasets(job_directory: Path, job: str) -> list[Path]:
    """Return the datasets of a job, whichever rank wrote them."""
    return sorted(path for path in job_directory.glob("*") if is_dataset_of(job, path.name))


def episode_files(job_directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the episodes' own files of a job and their indices, in order; files of other names are left alone."""
    for path in sorted((job_directory / EPISODES_DIRECTORY).glob(EPISODE_FILE_PATTERN)):
        index = episode_index_of_file(path.name)
        if index is not None and path.name == episode_file_name(index):
            yield path, index


def recorded_without_arrays(
    job_directory: Path, job: str, checksums: Mapping[int, int | None]
) -> RecordedEpisode | None:
    """Return what the first of some episodes that is recorded says of itself, without its arrays; None where none is.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        checksums: The checksum of each episode that will do, by its index.
    """
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
    """Return which files of a job's directory hold each episode, and one message per file that cannot be read.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.
    """
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
