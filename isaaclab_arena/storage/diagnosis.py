"""The diagnosis of a job: its recordings against their checksums and commit lines. This writes nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from isaaclab_arena.episode_ranges import EpisodeRanges, contain
from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import read_whole
from isaaclab_arena.storage.commits import CommitLine, CommitLog, parse_line
from isaaclab_arena.storage.hdf5 import episodes
from isaaclab_arena.storage.hdf5.episode_file import EpisodeTemplate, block_of
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE, EPISODES_DIRECTORY, dataset_file_name, is_dataset_of
from isaaclab_arena.storage.recorded_episode import AttributeValue, parsed_mapping
from isaaclab_arena.storage.recordings import contradiction, datasets, episode_files


@dataclass(frozen=True, kw_only=True)
class RecordedCopy:
    """One recording of one episode."""

    episode_index: int
    path: Path  # file of the episode, or dataset that contains it
    checksum: int | None  # CRC-32 of its arrays; None if they are damaged
    damage: str | None = None  # None if it is intact
    contradiction: str | None = None  # disagreement with the commit line of these arrays; see `contradiction`
    # Empty if its arrays have a commit line, or if it is damaged.
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    @property
    def flaw(self) -> str | None:
        """The problem of the recording, None if it is usable for its episode."""
        return self.damage or self.contradiction

    @property
    def is_part(self) -> bool:
        """Whether the recording is a file of its own, outside a dataset."""
        return self.path.parent.name == EPISODES_DIRECTORY


class EpisodeExaminer:
    """Check recorded episodes one by one; equal structure makes the next one twenty times as fast."""

    def __init__(
        self, opened: Callable[[Path], AbstractContextManager[episodes.OpenRecording]] = episodes.opened
    ) -> None:
        self._opened = opened
        self._episodes = episodes.AlikeEpisodes()

    def examine(self, path: Path, episode_indices: Sequence[int]) -> list[dict[str, AttributeValue] | DamagedFileError]:
        """Return the attributes of each episode, or its damage if its arrays do not match their checksum."""
        # A damaged file as a whole raises DamagedFileError. A single episode's file of known structure needs no HDF5.
        if self._episodes.template is not None and len(episode_indices) == 1:
            attributes = _examine_part(path, episode_indices[0], self._episodes.template)
            if attributes is not None:
                return [attributes]
        with self._opened(path) as recording:
            content = episodes.mapped(path)
            indices = told(episode_indices, "checking", path.name)
            return [self._examined(recording, index, content) for index in indices]

    def _examined(
        self, recording: episodes.OpenRecording, episode_index: int, content: memoryview
    ) -> dict[str, AttributeValue] | DamagedFileError:
        # The error's traceback holds this frame. If the frame held the list of all errors, too, the mapped file would
        # stay in memory until the next garbage collection.
        try:
            with episodes.hdf5_errors("read", recording.path):
                whole = self._episodes.read(recording, episode_index, content)
                return recording.verified_attributes(episode_index) if whole is None else whole.attributes
        except DamagedFileError as error:
            return error


JobRecordings: TypeAlias = tuple[Mapping[int, Sequence[RecordedCopy]], Sequence[tuple[Path, str]]]
"""The recordings of each episode by index, datasets first; and files that are no datasets by content, with reasons."""


def read_recordings(job_directory: Path, job: str, lines: Iterable[CommitLine]) -> JobRecordings:
    """Compare every recorded array of a job with its checksum and commit line. StorageError if a file is unreadable."""
    copies: defaultdict[int, list[RecordedCopy]] = defaultdict(list)
    unreadable: list[tuple[Path, str]] = []
    by_index = {line.episode_index: line for line in lines}
    examiner = EpisodeExaminer()
    try:
        for path in datasets(job_directory, job):
            try:
                indices = episodes.list_episodes(path)
            except DamagedFileError as error:
                unreadable.append((path, str(error)))
            else:
                _add_copies(copies, path, indices, by_index, examiner)
        for path, index in told(list(episode_files(job_directory)), "checking", f"job '{job}'"):
            _add_copies(copies, path, [index], by_index, examiner)
    except StorageError as error:
        way_out = "if that stays so, move the file away, and the episodes that it holds run again"
        raise StorageError(f"{error}; {way_out}") from error
    return copies, unreadable


def _add_copies(
    copies: Mapping[int, list[RecordedCopy]],
    path: Path,
    indices: list[int],
    lines: Mapping[int, CommitLine],
    examiner: EpisodeExaminer,
) -> None:
    """Add the recordings in a file to those of their episodes."""
    try:
        examined = examiner.examine(path, indices)
    except DamagedFileError as error:
        examined = [error] * len(indices)
    for index, found in zip(indices, examined, strict=True):
        line, copy = lines.get(index), RecordedCopy(episode_index=index, path=path, checksum=None)
        if isinstance(found, DamagedFileError):
            copy = replace(copy, damage=str(found))
        elif line is not None and line.checksum == found["checksum"]:
            copy = replace(copy, checksum=line.checksum, contradiction=contradiction(line, found))
        else:
            copy = replace(copy, checksum=int(found["checksum"]), attributes=found)
        copies[index].append(copy)


def recorded_config_hash(provenance: AttributeValue | None) -> str | None:
    """Return the hash of the run's resolved jobs from a recording's provenance, None if it has none."""
    try:
        said = parsed_mapping(provenance, "the provenance").get("config_hash")
    except DamagedFileError:
        return None
    return said if isinstance(said, str) else None


def _examine_part(path: Path, episode_index: int, template: EpisodeTemplate) -> dict[str, AttributeValue] | None:
    """Return the attributes of an episode in a file of its own, None if only HDF5 can read it."""
    # The bytes of the whole file are released before HDF5 reads it.
    content = read_whole(path)
    block = block_of(content)
    if block is None or block.episode_index != episode_index:
        return None
    whole = template.read(content, block.origin + block.group_offset)
    return None if whole is None else whole.attributes


# Diagnose a job: compare its commit lines with its recordings, and decide the repairs. This writes nothing.
#
# An episode is finished if a line commits it and its recording matches that line, or if recording was off. An episode
# with an error is finished even if its recording is lost, because a second try would favour policies that fail by
# chance. A recording without a line is adopted if it carries the commit line that its writer had prepared.


@dataclass(frozen=True, kw_only=True)
class PlannedEpisodes:
    """The planned episodes of a job, and the rule for reruns."""

    name: str
    seed: int
    num_episodes: int | None  # None if unknown
    config_hash: str  # hash of the run's resolved jobs
    retry_errors: bool = False  # episodes that ended in an error run again
    # Earlier attempts that retried errors: their number, and the episodes that they did not have to run.
    retries_begun: tuple[tuple[int, EpisodeRanges], ...] = ()

    def retries(self, line: CommitLine) -> bool:
        """Whether a finished episode runs again, because this or an unfinished earlier attempt retries errors."""
        if line.outcome is not Outcome.ERROR:
            return False
        return self.retry_errors or any(
            attempt > line.attempt and not contain(finished, line.episode_index)
            for attempt, finished in self.retries_begun
        )


@dataclass(kw_only=True)
class Diagnosis:
    """The repairs that the files of a job need."""

    finished: set[int] = field(default_factory=set)  # episodes that must not run again
    # Episodes whose commit lines are no longer true, or that are not planned.
    withdrawn: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # finished episodes with an error whose recordings are lost
    adopted: list[CommitLine] = field(default_factory=list)  # lines to commit for recordings without one
    # Recordings to remove, with the reason; None for a duplicate, which need not be kept.
    discarded: list[tuple[RecordedCopy, str | None]] = field(default_factory=list)
    # Episode files to copy, by name of the dataset.
    consolidated: defaultdict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    # Files whose content does not match their names, with the reason.
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    has_stray_lines: bool = False  # commit files hold lines that are torn, malformed or of another job


def diagnose(expected: PlannedEpisodes, log: CommitLog, recordings: JobRecordings) -> Diagnosis:
    """Compare the commit lines of a job with its `read_recordings`; see `Diagnosis`."""
    copies, unreadable = recordings
    diagnosis = Diagnosis(unreadable=list(unreadable))
    lines = {line.episode_index: line for line in log.lines}
    for index in sorted(lines.keys() | copies.keys()):
        line, found = lines.get(index), copies.get(index, [])
        if expected.num_episodes is None or index < expected.num_episodes:
            _diagnose(expected, line, found, diagnosis, unequal=index in log.unequal_episodes)
            continue
        diagnosis.withdrawn.update({index} & lines.keys())
        diagnosis.discarded += [(copy, "the plan has no such episode") for copy in found]
    return diagnosis


def dataset_named_by(line: CommitLine) -> str:
    """Return the dataset's file name for a commit line. Lines without a valid one get the default of their rank."""
    name = line.dataset_file or ""
    return name if is_dataset_of(line.job_name, name) else dataset_file_name(line.job_name, line.rank, 1)


def _diagnose(
    expected: PlannedEpisodes,
    line: CommitLine | None,
    copies: Sequence[RecordedCopy],
    diagnosis: Diagnosis,
    *,
    unequal: bool,
) -> None:
    """Decide about one planned episode."""
    # A line without a checksum was committed with recording off, so there is nothing to compare.
    if line is not None and line.checksum is None:
        if not expected.retries(line):
            diagnosis.finished.add(line.episode_index)
        return
    diagnosis.discarded += [(copy, copy.flaw) for copy in copies if copy.flaw is not None]
    intact = [copy for copy in copies if copy.flaw is None]
    is_recorded = line is not None and any(copy.checksum == line.checksum for copy in intact)
    # A carried line counts before the committed one: it is only adopted if that one is missing, unrecorded or an error.
    adopted, reasons = _adoptable(expected, line, intact, is_recorded=is_recorded)
    counted = adopted or (line if line is not None and is_recorded and not expected.retries(line) else None)
    if adopted is not None:
        diagnosis.adopted.append(adopted)

    # The recording of the line is gone. The line of an error stands without it, until a later line replaces it. Any
    # other line counts until it is removed.
    if line is not None and not is_recorded:
        is_doubtful = any(copy.contradiction is not None for copy in copies)
        if line.outcome is not Outcome.ERROR or (is_doubtful and adopted is None):
            diagnosis.withdrawn.add(line.episode_index)
        elif adopted is None and not expected.retries(line):
            diagnosis.lost.add(line.episode_index)
            diagnosis.finished.add(line.episode_index)

    if counted is not None:
        diagnosis.finished.add(counted.episode_index)
        _keep_one(counted, intact, diagnosis)
    for copy in intact:
        is_kept = counted is not None and copy.checksum == counted.checksum
        # Two ranks committed different results of one episode. Both are kept for the user to inspect.
        is_evidence = unequal and adopted is None and not copy.is_part
        if is_kept or is_evidence:
            continue
        if line is None or copy.checksum != line.checksum:
            reason = "it is not what its commit line says"
        elif adopted is None:
            reason = "it ended in an error and runs again"
        else:
            reason = "a later attempt took the place of its error"
        diagnosis.discarded.append((copy, reasons.get(copy.path) or reason))


def _adoptable(
    expected: PlannedEpisodes, line: CommitLine | None, intact: Sequence[RecordedCopy], *, is_recorded: bool
) -> tuple[CommitLine | None, Mapping[Path, str]]:
    """Return the earliest adoptable line of an episode's recordings, and the reasons against the others by file."""
    reasons: dict[Path, str] = {}
    candidates: list[CommitLine] = []
    if line is not None and line.outcome is not Outcome.ERROR and is_recorded:
        return None, reasons
    for copy in intact:
        if line is not None and copy.checksum == line.checksum:
            continue
        try:
            carried = _carried_line(expected, copy)
        except ValueError as error:
            reasons[copy.path] = str(error)
            continue
        if line is not None and line.outcome is Outcome.ERROR and carried.attempt <= line.attempt:
            continue
        if expected.retries(carried):
            reasons[copy.path] = "it ended in an error and runs again"
            continue
        candidates.append(carried)
    # The content decides, not the file name.
    return min(candidates, key=lambda each: (each.attempt, each.timestamp, each.checksum or 0), default=None), reasons


def _carried_line(expected: PlannedEpisodes, copy: RecordedCopy) -> CommitLine:
    """Return the commit line that an uncommitted recording carries. ValueError if it has none of this plan."""
    said = copy.attributes
    found = (said.get("job"), said.get("seed"), said.get("episode_index"))
    wanted = (expected.name, expected.seed, copy.episode_index)
    if found != wanted:
        raise ValueError(f"it is of another plan: its job, seed and index are {found}, not {wanted}")
    if recorded_config_hash(said.get("provenance")) != expected.config_hash:
        raise ValueError("it is of another plan: its configuration has another hash")
    try:
        line = parse_line(str(said.get(COMMIT_ATTRIBUTE, "")))
    except ValueError as error:
        raise ValueError("no line commits it, and it carries none") from error
    if (line.job_name, line.seed, line.episode_index, line.checksum) != (*wanted, copy.checksum):
        raise ValueError("no line commits it, and the one that it carries is of another episode")
    return line


def _keep_one(line: CommitLine, intact: Sequence[RecordedCopy], diagnosis: Diagnosis) -> None:
    """Keep one recording of an episode in the dataset that its line names, or have its file copied there."""
    same = [copy for copy in intact if copy.checksum == line.checksum]
    parts = [copy.path for copy in same if copy.is_part]
    in_datasets = [copy for copy in same if not copy.is_part]
    name = dataset_named_by(line)
    if parts:
        diagnosis.consolidated[name] += parts
    has_home = bool(parts) or any(copy.path.name == name for copy in in_datasets)
    surplus = [copy for copy in in_datasets if copy.path.name != name] if has_home else in_datasets[1:]
    diagnosis.discarded += [(copy, None) for copy in surplus]
