"""Check the files of a run: every episode once, its arrays as written, the tables up to date."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.merge import MergedResults, MissingEpisodes
from isaaclab_arena.results.result_files import TABLES, stale_tables
from isaaclab_arena.storage.hdf5.episodes import read_totals
from isaaclab_arena.storage.layout import demo_name, job_directory
from isaaclab_arena.storage.recordings import datasets, in_words
from isaaclab_arena.storage.recovery.recorded_copies import RecordedCopy, read_recordings
from isaaclab_arena.storage.run.commits import CommitLine, read_commits


def check_directory(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    """Yield one line for each thing that is wrong with the files of a run; every array is read.

    Args:
        output_directory: The run's directory, in which nothing is written.
        merged: What a merge of it gives.
    """
    yield from merged.problems
    yield from map(_what_is_missing, merged.missing)
    for job in merged.plan.jobs:
        directory = job_directory(output_directory, job.name)
        try:
            wrong = [*_check_recordings(directory, job.name), *_check_totals(directory, job.name)]
        except StorageError as error:
            wrong = [str(error)]
        yield from (f"job '{job.name}': {what}" for what in wrong)
    yield from _check_tables(output_directory, merged)


def _what_is_missing(missing: MissingEpisodes) -> str:
    if not missing.episode_indices:
        return f"job '{missing.job}' is {missing.status}"
    return f"job '{missing.job}' is {missing.status} and lacks {in_words(missing.episode_indices)}"


def _check_recordings(directory: Path, job: str) -> Iterator[str]:
    lines = {line.episode_index: line for line in read_commits(directory, job).lines}
    recordings = read_recordings(directory, job, lines.values())
    yield from (f"{path.name}: {reason}" for path, reason in recordings.unreadable)
    copies = recordings.by_episode
    yield from _check_lines(lines, copies)
    for index, line in lines.items():
        yield from _check_episode(line, copies.get(index, []))


def _check_lines(lines: Mapping[int, CommitLine], copies: Mapping[int, Sequence[RecordedCopy]]) -> Iterator[str]:
    for index, recorded in copies.items():
        if index not in lines:
            yield f"{recorded[0].path} holds {demo_name(index)}, which has no line in the commit record"
        if len(recorded) > 1:
            yield f"{demo_name(index)} is recorded in {' and in '.join(str(copy.path) for copy in recorded)}"


def _check_episode(line: CommitLine, copies: Sequence[RecordedCopy]) -> Iterator[str]:
    """Yield what is wrong with the recordings of a finished episode."""
    name = demo_name(line.episode_index)
    for copy in copies:
        if copy.damage is not None:
            yield copy.damage
        if copy.contradiction is not None:
            yield f"{name} in {copy.path.name}: {copy.contradiction}"
    if line.checksum is None:
        if copies:
            yield f"{name} is recorded in {copies[0].path.name}, though its commit line says that nothing was"
    elif all(copy.damage is None and copy.checksum != line.checksum for copy in copies):
        what = "the recording of an error is lost: " if line.outcome is Outcome.ERROR else ""
        yield f"{what}no file holds {name} with the checksum of its commit line"


def _check_totals(directory: Path, job: str) -> Iterator[str]:
    for path in datasets(directory, job):
        try:
            told, found = read_totals(path)
        except StorageError:
            # It was told as unreadable already.
            continue
        if told != found:
            yield f"{path.name} says that it holds {told} control steps, its episodes have {found}"


def _check_tables(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    stale = stale_tables(output_directory, merged)
    if stale and not any((output_directory / f"{name}.csv").is_file() for name in TABLES):
        yield f"{output_directory} holds no tables; isaaclab-arena merge writes them"
        return
    for path in stale:
        wrong = "is not what a merge of these files gives" if path.is_file() else "is missing"
        yield f"{path} {wrong}; isaaclab-arena merge writes it anew"
