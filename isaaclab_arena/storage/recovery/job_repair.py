"""Repair a job's files according to its diagnosis. After an interruption the next recovery finishes the repair."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from isaaclab_arena.config.schema import RESERVED_NAMES
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.storage.atomic import storage_errors, write_bytes
from isaaclab_arena.storage.layout import (
    COMMIT_FILE_PATTERN,
    EPISODES_DIRECTORY,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    SERVED_MODEL_FILE,
    SET_ASIDE_DIRECTORY,
    SETTLED_FILE,
)
from isaaclab_arena.storage.recordings import datasets, episode_files, in_words
from isaaclab_arena.storage.recovery.job_diagnosis import Diagnosis, Discarded
from isaaclab_arena.storage.recovery.leftovers import consolidate_parts, remove_if_empty
from isaaclab_arena.storage.recovery.set_aside import (
    drop_episodes,
    keep_aside,
    keep_episode_aside,
    move_aside,
    set_no_files_aside,
)
from isaaclab_arena.storage.run.commits import CommitLine, CommitWriter, parse_line
from isaaclab_arena.storage.run.run_plan import plan_copy_path

_LINES_PER_JOB = 20
_REPAIRING_RANK = 0


def repair_job(job_directory: Path, job: str, diagnosis: Diagnosis, *, seed: int) -> list[str]:
    """Repair the files of a job; if its diagnosis found nothing, this writes nothing.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        diagnosis: The repairs to make.
        seed: Seed of the job.

    Returns:
        The repairs made, one sentence each.

    Raises:
        StorageError: If a file cannot be read or written.
    """
    aside = job_directory / SET_ASIDE_DIRECTORY
    notes: list[str] = []
    if diagnosis.withdrawn or diagnosis.has_stray_lines:
        withdrawn = diagnosis.withdrawn

        def counts(line: CommitLine) -> bool:
            return line.job_name == job and line.seed == seed and line.episode_index not in withdrawn

        notes += _tidy_lines(job_directory, counts, aside)
    notes += _without_recording(diagnosis)
    for path, reason in diagnosis.unreadable:
        notes.append(f"set aside {path.name}: {reason}")
        move_aside(path, aside)
    notes += _discard(diagnosis.discarded, aside)
    if diagnosis.adopted:
        notes.append(
            f"adopted {in_words(line.episode_index for line in diagnosis.adopted)}: recorded, but not committed"
        )
        _commit(job_directory, diagnosis)
    consolidated = consolidate_parts(job_directory, job, diagnosis.consolidated)
    return [*(f"job '{job}': {note}" for note in notes), *consolidated]


def set_aside_no_files(job_directory: Path, job: str) -> list[str]:
    """Move out of the way what lies in the place of a job's file and is none, so that nothing stumbles over it.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.

    Returns:
        The repairs made, one sentence each.

    Raises:
        StorageError: If something cannot be moved.
    """
    patterns = (COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN, JOB_BEGUN_PATTERN, SETTLED_FILE, SERVED_MODEL_FILE)
    named = [path for pattern in patterns for path in sorted(job_directory.glob(pattern))]
    files = [*named, *datasets(job_directory, job), *(path for path, _ in episode_files(job_directory))]
    return [f"job '{job}': {note}" for note in set_no_files_aside(files, job_directory / SET_ASIDE_DIRECTORY)]


def set_aside_no_files_of_run(output_directory: Path) -> list[str]:
    """Move out of the way what lies in the place of a run's table, page or log and is no file.

    Args:
        output_directory: Directory of the run.

    Returns:
        The repairs made, one sentence each.

    Raises:
        StorageError: If something cannot be moved.
    """
    written = [output_directory / name for name in sorted(RESERVED_NAMES) if "." in name]
    logs = sorted((output_directory / "logs").glob("*"))
    notes = []
    for path in (*written, *logs, plan_copy_path(output_directory)):
        # A link to a file elsewhere is the user's, and is written through or replaced.
        why = not_a_plain_file(path) if os.path.lexists(path) else None
        if why is not None:
            notes.append(f"set aside {path}: {why}")
            move_aside(path, output_directory / SET_ASIDE_DIRECTORY)
    return notes


def set_job_aside(
    job_directory: Path,
    job: str,
    *,
    attempt: int,
    why: str = "it is limited by steps and did not come to its end",
) -> list[str]:
    """Move all files of a job out of the way, so that it can run from its beginning.

    Args:
        job_directory: Directory of the job.
        job: Name of the job.
        attempt: Number of the attempt that wrote it; it names the directory below ``set_aside/``.
        why: Why, for people.

    Returns:
        The repairs made, one sentence each.

    Raises:
        StorageError: If a file cannot be moved.
    """
    parts = [path for path, _ in episode_files(job_directory)]
    patterns = (COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN, JOB_BEGUN_PATTERN)
    lines = [path for pattern in patterns for path in job_directory.glob(pattern)]
    # Commit lines and reports are moved last, because they show that the job has begun.
    served = [path for path in (job_directory / SERVED_MODEL_FILE,) if path.exists()]
    files = [*parts, *datasets(job_directory, job), *sorted(lines), *served]
    if not files:
        return []
    directory = job_directory / SET_ASIDE_DIRECTORY / f"attempt_{attempt}"
    for path in files:
        move_aside(path, directory)
    remove_if_empty(job_directory / EPISODES_DIRECTORY)
    return [f"job '{job}': {why}; it starts anew, see {directory}"]


def _without_recording(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the episodes whose commit line has no matching recording."""
    runs_again = diagnosis.withdrawn - diagnosis.finished
    if runs_again:
        yield f"{in_words(sorted(runs_again))} had a commit line, but has no recording that fits it; not finished"
    if diagnosis.lost:
        yield (
            f"{in_words(diagnosis.lost)} ended in an error, and the recording is lost; the error stands, "
            "--retry_errors runs it again"
        )


def _tidy_lines(job_directory: Path, counts: Callable[[CommitLine], bool], aside: Path) -> Iterator[str]:
    """Remove invalid lines from the commit files; a file that loses whole lines is kept aside unchanged."""
    for path in sorted(job_directory.glob(COMMIT_FILE_PATTERN)):
        with storage_errors("read", path):
            *lines, torn = path.read_bytes().split(b"\n")
        kept = [line for line in lines if _is_line(line, counts)]
        if len(kept) < len(lines):
            keep_aside(path, aside)
            yield f"took lines out of {path.name}: {len(lines) - len(kept)}; as it was, it is in {aside.name}"
        if torn or len(kept) < len(lines):
            write_bytes(path, b"".join(line + b"\n" for line in kept), overwrite=True)


def _is_line(text: bytes, counts: Callable[[CommitLine], bool]) -> bool:
    try:
        return counts(parse_line(text))
    except ValueError:
        return False


def _discard(discarded: Sequence[Discarded], aside: Path) -> Iterator[str]:
    by_dataset: defaultdict[Path, list[Discarded]] = defaultdict(list)
    for each in discarded:
        if not each.copy.is_part:
            by_dataset[each.copy.path].append(each)
    for path, dropped in by_dataset.items():
        _drop(path, dropped, aside)
    for each in discarded:
        if each.copy.is_part:
            move_aside(each.copy.path, aside)
    for each in discarded[:_LINES_PER_JOB]:
        what = f"episode {each.copy.episode_index} of {each.copy.path.name}"
        yield (
            f"removed {what}: it is recorded elsewhere too"
            if each.reason is None
            else f"set aside {what}: {each.reason}"
        )
    if len(discarded) > _LINES_PER_JOB:
        yield f"set aside {len(discarded) - _LINES_PER_JOB} more recordings of episodes"
    remove_if_empty(aside.parent / EPISODES_DIRECTORY)


def _drop(dataset: Path, dropped: Sequence[Discarded], aside: Path) -> None:
    if any(each.copy.damage is not None for each in dropped):
        # A damaged recording cannot be copied, but a person may still read parts of it.
        keep_aside(dataset, aside)
    else:
        for each in dropped:
            if each.reason is not None:
                keep_episode_aside(dataset, each.copy.episode_index, aside)
    drop_episodes(dataset, {each.copy.episode_index for each in dropped})


def _commit(job_directory: Path, diagnosis: Diagnosis) -> None:
    writer = CommitWriter(job_directory, _REPAIRING_RANK)
    try:
        for line in diagnosis.adopted:
            writer.write(line)
    finally:
        writer.close()
