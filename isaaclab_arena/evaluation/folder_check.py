"""Whether the files of a run are whole: every episode once, its arrays as they were written, the tables up to date."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from isaaclab_arena.errors import StorageError
from isaaclab_arena.results.merge import MergedResults, MissingJob
from isaaclab_arena.results.result_files import write_tables
from isaaclab_arena.storage.commits import CommitRow, read_commits
from isaaclab_arena.storage.hdf5 import read_attributes, verify_episodes
from isaaclab_arena.storage.layout import demo_name, job_directory
from isaaclab_arena.storage.recordings import in_words, locate_episodes


def check_folder(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    """Yield one line for each thing that is wrong with the files of a run; every array is read.

    Args:
        output_directory: The run's folder, in which nothing is written.
        merged: What a merge of it gives.
    """
    yield from merged.problems
    yield from map(_what_is_missing, merged.missing)
    for job in merged.plan.jobs:
        yield from _check_recordings(job_directory(output_directory, job.name), job.name)
    yield from _check_tables(output_directory, merged)


def recording_of(row: CommitRow, files: list[Path]) -> Path | None:
    """Return the file that holds an episode as its commit line says it was written; None if none does.

    Args:
        row: The episode's commit line.
        files: The files that hold an episode of that index.
    """
    for file in files:
        if read_attributes(file, row.episode_index).get("checksum") == row.checksum:
            return file
    return None


def _what_is_missing(missing: MissingJob) -> str:
    if not missing.episode_indices:
        return f"job '{missing.job}' is {missing.status}"
    return f"job '{missing.job}' is {missing.status} and lacks {in_words(missing.episode_indices)}"


def _check_recordings(directory: Path, job: str) -> Iterator[str]:
    rows = {row.episode_index: row for row in read_commits(directory, job).rows}
    recorded, unreadable = locate_episodes(directory, job)
    yield from unreadable
    for index, files in recorded.items():
        if index not in rows:
            yield f"job '{job}': {files[0]} holds {demo_name(index)}, which has no line in the commit record"
        if len(files) > 1:
            yield f"job '{job}': {demo_name(index)} is recorded in {' and in '.join(map(str, files))}"
    for index, row in rows.items():
        if row.checksum is None:
            continue
        try:
            file = recording_of(row, recorded.get(index, []))
            if file is None:
                yield f"job '{job}': no file holds {demo_name(index)} with the checksum of its commit line"
            else:
                verify_episodes(file, [index])
        except StorageError as error:
            yield f"job '{job}': {error}"


def _check_tables(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        tables = write_tables(Path(folder), merged)
        if not any((output_directory / expected.name).is_file() for expected in tables):
            yield f"{output_directory} holds no tables; isaaclab-arena merge writes them"
            return
        for expected in tables:
            found = output_directory / expected.name
            if not found.is_file():
                yield f"{found} is missing; isaaclab-arena merge writes it"
            elif found.read_bytes() != expected.read_bytes():
                yield f"{found} is not what a merge of these files gives; isaaclab-arena merge writes it anew"
