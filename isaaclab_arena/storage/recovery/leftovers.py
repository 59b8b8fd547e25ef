"""Clear up what dead processes leave in a run: temporary files, and episode files outside of a dataset."""

import dataclasses
import errno
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import FileThereError, storage_errors
from isaaclab_arena.storage.hdf5.consolidation import consolidate
from isaaclab_arena.storage.hdf5.episodes import list_episodes, read_attributes, read_checksums, verify_episodes
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import (
    ATTEMPTS_DIRECTORY,
    COMMIT_ATTRIBUTE,
    EPISODES_DIRECTORY,
    JOB_BEGUN_PATTERN,
    SET_ASIDE_DIRECTORY,
    VIDEOS_DIRECTORY,
    job_directory,
)
from isaaclab_arena.storage.recordings import datasets, episode_files, in_words
from isaaclab_arena.storage.recovery.job_diagnosis import dataset_named_by
from isaaclab_arena.storage.recovery.set_aside import move_aside
from isaaclab_arena.storage.run.commits import CommitLine, parse_line, read_commits
from isaaclab_arena.storage.run.run_plan import RunPlan

_LOG = logging.getLogger(__name__)
_NOTHING_TO_DO = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""Names that `atomic.temporary_path` and the ranks' status files give: ``.<name>.<host>.<pid>.tmp``, host or not."""

_DIRECTORIES_OF_RUN = ("", "logs", ATTEMPTS_DIRECTORY)
_DIRECTORIES_OF_JOB = ("", EPISODES_DIRECTORY, VIDEOS_DIRECTORY, SET_ASIDE_DIRECTORY)


def remove_temporary_files(output_directory: Path, plan: RunPlan) -> list[str]:
    """Remove the temporary files of dead processes; none of the processes may be alive.

    Returns:
        One line for the run's own files and one for each job that had some.

    Raises:
        StorageError: If one cannot be removed.
    """
    owners = {"the run": [output_directory / name for name in _DIRECTORIES_OF_RUN]}
    for job in plan.jobs:
        directory = job_directory(output_directory, job.name)
        owners[f"job '{job.name}'"] = [directory / name for name in _DIRECTORIES_OF_JOB]
    removed: Counter[str] = Counter()
    for owner, directories in owners.items():
        for path in _temporary_files(directories):
            with storage_errors("remove", path):
                path.unlink(missing_ok=True)
            removed[owner] += 1
    return [f"{owner}: removed {number} temporary files of dead processes" for owner, number in removed.items()]


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What became of episodes that ranks have left outside of a dataset.

    Attributes:
        notes: One line for each dataset that gained episodes, and for each file that could not be moved.
        loss: What is lost of finished episodes, and the way out; None where nothing is.
    """

    notes: tuple[str, ...] = ()
    loss: str | None = None


def consolidate_leftovers(job_directory: Path, job: str, *, is_all: bool = False) -> Leftovers:
    """Copy committed episodes that still have files of their own into the datasets that their lines name.

    All ranks of the run must have ended. Such files come from ranks that died while others finished their job.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.
        is_all: Whether no rank has made a dataset, so that each of the job's episodes has to be looked for.

    Raises:
        StorageError: If a dataset cannot be written, or the system cannot read a file; the episodes' files are still
            there.
    """
    files = list(episode_files(job_directory))
    if not (files or is_all or any(job_directory.glob(JOB_BEGUN_PATTERN))):
        return Leftovers()
    lines = {line.episode_index: line for line in read_commits(job_directory, job).lines}
    parts: defaultdict[str, list[Path]] = defaultdict(list)
    notes: list[str] = []
    for path, index in told(files, "checking", f"job '{job}'"):
        line = lines.get(index)
        if line is not None and line.checksum is not None and line.checksum == _checksum(path, index):
            parts[dataset_named_by(line)].append(path)
        else:
            notes.append(f"job '{job}': {path} is not what a commit line says; it stays where it is")
    notes += consolidate_parts(job_directory, job, parts)
    recorded = {index for path in datasets(job_directory, job) for index in list_episodes(path)}
    # An error stands without its recording; see `Diagnosis.lost`.
    counted = {
        index for index, line in lines.items() if line.checksum is not None and line.outcome is not Outcome.ERROR
    }
    lost = sorted(counted - recorded)
    loss = f"the recordings of {in_words(lost)} are damaged or gone since they finished; --resume runs them again"
    return Leftovers(notes=tuple(notes), loss=loss if lost else None)


def consolidate_parts(job_directory: Path, job: str, parts: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    """Copy episodes' own files into datasets and remove them; yield one line for each dataset.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        parts: The files whose episodes belong to each dataset, by its name.

    Raises:
        StorageError: If a dataset cannot be written; the episodes' files are still there.
    """
    for name, paths in parts.items():
        with storage_errors("bring episodes into", job_directory / name):
            done = consolidate(sorted(paths), job_directory / name)
        yield from (f"job '{job}': left out of {name}: {reason}" for _, reason in done.damaged)
        yield f"job '{job}': brought {len(paths) - len(done.damaged)} recorded episodes into {name}"
    remove_if_empty(job_directory / EPISODES_DIRECTORY)


def put_in_place(path: Path, line: CommitLine, text: str, write: Callable[[], object]) -> list[str]:
    """Write an episode's file, and return the lines that are to be committed then.

    A file may be there: from a rank that died before it committed the episode, or that was taken for dead.

    Args:
        path: The file, in the directory of its job's episodes.
        line: The episode's line.
        text: The same as its recording holds it.
        write: Writes the file.

    Raises:
        StorageError: If it cannot be written, or the system cannot read what is there.
    """
    with suppress(FileThereError):
        write()
        return [text]
    try:
        there = _left_behind(path, line)
    except DamagedFileError as error:
        _LOG.warning("%s was there already and is replaced: %s", path, error)
        move_aside(path, path.parents[1] / SET_ASIDE_DIRECTORY)
        write()
        return [text]
    if there.checksum == line.checksum:
        _LOG.info("%s was there already, with the same content: its line is committed", path)
        return [json_line(there)]
    # Which of the two is right cannot be known here. The file that is there may be another's, so it stays, and both
    # results are committed, so that everybody sees that the episode did not come out the same twice.
    _LOG.warning("%s was there already, with other content: both results are committed, its arrays kept", path)
    return [json_line(there), json_line(dataclasses.replace(line, dataset_file=None, episode_file=None))]


def _left_behind(path: Path, expected: CommitLine) -> CommitLine:
    """Return the commit line that a file of the expected episode holds.

    Raises:
        DamagedFileError: If it is damaged, is another episode, or holds no commit line.
    """
    verify_episodes(path, [expected.episode_index])
    attributes = read_attributes(path, expected.episode_index)
    try:
        line = parse_line(str(attributes.get(COMMIT_ATTRIBUTE, "")))
    except ValueError as error:
        raise DamagedFileError(f"{path} does not say how its episode went") from error
    found = (line.job_name, line.episode_index, line.checksum)
    if found != (expected.job_name, expected.episode_index, attributes.get("checksum")):
        raise DamagedFileError(f"{path} is of job '{line.job_name}', episode {line.episode_index}, or of other arrays")
    return line


def remove_if_empty(directory: Path) -> None:
    """Remove a directory if it is empty; a missing one is ignored.

    Raises:
        StorageError: If it cannot be removed.
    """
    with storage_errors("remove", directory):
        try:
            directory.rmdir()
        except OSError as error:
            # Another rank may have removed it, or written into it, in the meantime.
            if error.errno not in _NOTHING_TO_DO:
                raise


def _temporary_files(directories: Sequence[Path]) -> Iterator[Path]:
    for directory in directories:
        if not directory.is_dir():
            continue
        with storage_errors("read", directory), os.scandir(directory) as entries:
            found = sorted(
                entry.name
                for entry in entries
                if _TEMPORARY.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)
            )
        yield from (directory / name for name in found)


def _checksum(path: Path, episode_index: int) -> object:
    try:
        return read_checksums(path, [episode_index])[0]
    except DamagedFileError:
        return None
