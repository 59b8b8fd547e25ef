"""Read the recordings of a job, and check each against its checksum and its commit line. This writes nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import read_whole
from isaaclab_arena.storage.hdf5.episode_template import EpisodeTemplate
from isaaclab_arena.storage.hdf5.episodes import list_episodes
from isaaclab_arena.storage.hdf5.opened_file import AlikeEpisodes, OpenRecording, hdf5_errors, mapped, opened
from isaaclab_arena.storage.hdf5.recording_image import block_of
from isaaclab_arena.storage.layout import EPISODES_DIRECTORY
from isaaclab_arena.storage.recorded_episode import AttributeValue, parsed_mapping
from isaaclab_arena.storage.recorded_line import contradiction
from isaaclab_arena.storage.recordings import datasets, episode_files
from isaaclab_arena.storage.run.commits import CommitLine


@dataclass(frozen=True, kw_only=True)
class RecordedCopy:
    """One recording of one episode.

    Attributes:
        episode_index: The episode.
        path: The episode's own file, or a dataset that holds it among others.
        checksum: CRC-32 of its arrays; None if they are damaged.
        damage: What is wrong with it, None if it is intact.
        contradiction: How the commit line of these arrays contradicts it, None if it does not; see `contradiction`.
        attributes: The attributes that it carries; empty if its arrays have a commit line, or if it is damaged.
    """

    episode_index: int
    path: Path
    checksum: int | None
    damage: str | None = None
    contradiction: str | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    @property
    def flaw(self) -> str | None:
        """Why it cannot be used for its episode, None if it can."""
        return self.damage or self.contradiction

    @property
    def is_part(self) -> bool:
        """Whether the episode has a file of its own."""
        return self.path.parent.name == EPISODES_DIRECTORY


@dataclass(frozen=True, kw_only=True)
class JobRecordings:
    """All recordings of a job.

    Attributes:
        by_episode: All recordings of each recorded episode, by its index, datasets first.
        unreadable: Files that should be datasets and are not, with the reason.
    """

    by_episode: Mapping[int, Sequence[RecordedCopy]]
    unreadable: tuple[tuple[Path, str], ...]


class EpisodeExaminer:
    """Checks recorded episodes one after the other; equal structure makes the next one twenty times as fast.

    Args:
        open_recording: Opens a recording with HDF5's library.
    """

    def __init__(self, open_recording: Callable[[Path], AbstractContextManager[OpenRecording]] = opened) -> None:
        self._opened = open_recording
        self._episodes = AlikeEpisodes()

    def examine(self, path: Path, episode_indices: Sequence[int]) -> list[dict[str, AttributeValue] | DamagedFileError]:
        """Read the arrays of episodes, compare them with their checksums, and return their attributes.

        Args:
            path: The recording.
            episode_indices: Indices of the episodes.

        Returns:
            For each episode its attributes, or the damage.

        Raises:
            DamagedFileError: If the file as a whole is no recording.
            StorageError: If the system cannot read it.
        """
        if self._episodes.template is not None and len(episode_indices) == 1:
            attributes = _examine_part(path, episode_indices[0], self._episodes.template)
            if attributes is not None:
                return [attributes]
        with self._opened(path) as recording:
            content = mapped(path)
            indices = told(episode_indices, "checking", path.name)
            return [self._examined(recording, index, content) for index in indices]

    def _examined(
        self, recording: OpenRecording, episode_index: int, content: memoryview
    ) -> dict[str, AttributeValue] | DamagedFileError:
        try:
            with hdf5_errors("read", recording.path):
                whole = self._episodes.read(recording, episode_index, content)
                return recording.verified_attributes(episode_index) if whole is None else whole.attributes
        except DamagedFileError as error:
            return error


def read_recordings(job_directory: Path, job: str, lines: Iterable[CommitLine]) -> JobRecordings:
    """Read every recorded array of a job once, and compare it with its checksum and its commit line.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.
        lines: The commit line of each of its finished episodes.

    Raises:
        StorageError: If the system cannot read a file, so that its content is unknown.
    """
    try:
        return _read_recordings(job_directory, job, lines)
    except StorageError as error:
        raise StorageError(
            f"{error}; if that stays so, move the file away, and the episodes that it holds run again"
        ) from error


def _read_recordings(job_directory: Path, job: str, lines: Iterable[CommitLine]) -> JobRecordings:
    copies: defaultdict[int, list[RecordedCopy]] = defaultdict(list)
    unreadable: list[tuple[Path, str]] = []
    by_index = {line.episode_index: line for line in lines}
    examiner = EpisodeExaminer()
    for path in datasets(job_directory, job):
        try:
            indices = list_episodes(path)
        except DamagedFileError as error:
            unreadable.append((path, str(error)))
        else:
            _add_copies(copies, path, indices, by_index, examiner)
    for path, index in told(list(episode_files(job_directory)), "checking", f"job '{job}'"):
        _add_copies(copies, path, [index], by_index, examiner)
    return JobRecordings(by_episode=dict(copies), unreadable=tuple(unreadable))


def _add_copies(
    copies: Mapping[int, list[RecordedCopy]],
    path: Path,
    indices: list[int],
    lines: Mapping[int, CommitLine],
    examiner: EpisodeExaminer,
) -> None:
    """Add the recordings of a file to those of their episodes."""
    try:
        examined = examiner.examine(path, indices)
    except DamagedFileError as error:
        examined = [error] * len(indices)
    for index, found in zip(indices, examined, strict=True):
        copies[index].append(_copy(path, index, found, lines.get(index)))


def _copy(
    path: Path, index: int, found: Mapping[str, AttributeValue] | DamagedFileError, line: CommitLine | None
) -> RecordedCopy:
    if isinstance(found, DamagedFileError):
        return RecordedCopy(episode_index=index, path=path, checksum=None, damage=str(found))
    checksum = int(found["checksum"])
    if line is None or line.checksum != checksum:
        return RecordedCopy(episode_index=index, path=path, checksum=checksum, attributes=found)
    return RecordedCopy(episode_index=index, path=path, checksum=checksum, contradiction=contradiction(line, found))


def recorded_config_hash(provenance: AttributeValue | None) -> str | None:
    """Return the hash of the run's resolved jobs from a recording's provenance, None if it has none."""
    try:
        said = parsed_mapping(provenance, "the provenance").get("config_hash")
    except DamagedFileError:
        return None
    return said if isinstance(said, str) else None


def _examine_part(path: Path, episode_index: int, template: EpisodeTemplate) -> dict[str, AttributeValue] | None:
    """Return the attributes of an episode that has a file of its own, None if HDF5 has to read it."""
    content = read_whole(path)
    block = block_of(content)
    if block is None or block.episode_index != episode_index:
        return None
    whole = template.read(content, block.origin + block.group_offset)
    return None if whole is None else whole.attributes
