"""Puts what ranks of a cluster deliver into the run's directory: an episode's file by rename, then its line."""

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.cluster.messages import Delivery, Life, SentEpisode, SentFile
from isaaclab_arena.evaluation.heartbeat.rank_status import status_path
from isaaclab_arena.storage.atomic import append_line, storage_errors, write_at, write_bytes, write_text
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.layout import (
    CONTACT_SHEET_FILE,
    EPISODES_DIRECTORY,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    SETTLED_FILE,
    VIDEOS_DIRECTORY,
    episode_file_name,
    job_directory,
)
from isaaclab_arena.storage.recovery.leftovers import put_in_place
from isaaclab_arena.storage.run.commits import CommitLine, CommitWriter, parse_line
from isaaclab_arena.storage.run.job_reports import JobReport, write_job_report

_LOGS = "logs"
_FILES_OF_JOB = (SETTLED_FILE, JOB_BEGUN_PATTERN, CONTACT_SHEET_FILE, "traceback_*.txt", JOB_REPORT_PATTERN)


class CommittedFiles:
    """The files of a run that come from other nodes.

    Args:
        output_directory: The run's directory.
        jobs: Names of the jobs that ranks may deliver.

    Attributes:
        num_episodes: How many episodes were committed.
    """

    def __init__(self, output_directory: Path, jobs: Iterable[str]) -> None:
        self.num_episodes = 0
        self._output_directory = output_directory
        self._jobs = frozenset(jobs)
        self._commit_files: dict[tuple[Life, str], Path] = {}

    def keep(self, delivery: Delivery, content: bytes) -> None:
        """Put a delivery in place: its episodes first, then other files.

        Args:
            delivery: What it holds.
            content: The bytes of its files, one after the other.

        Raises:
            StorageError: If a file cannot be written, or the delivery names one that ranks do not write.
        """
        sizes = [each.size for each in (*delivery.episodes, *delivery.files)]
        if sum(sizes) != len(content):
            raise StorageError(f"rank {delivery.life.rank} sent {len(content)} bytes, and says {sum(sizes)}")
        parts = _cut(content, sizes)
        self._commit(delivery.life, delivery.episodes, parts[: len(delivery.episodes)])
        for file, part in zip(delivery.files, parts[len(delivery.episodes) :], strict=True):
            self._keep_file(delivery.life, file, part)
        if delivery.status is not None:
            path = status_path(self._output_directory, delivery.life.rank)
            write_text(path, delivery.status, overwrite=True)

    def commit(self, life: Life, line: CommitLine) -> None:
        """Commit an episode of which there is nothing but a line, in the name of a rank's life.

        Raises:
            StorageError: If that cannot be written.
        """
        self._commit(life, [SentEpisode(job=line.job_name, line=json_line(line))], [memoryview(b"")])

    def _commit(self, life: Life, episodes: Sequence[SentEpisode], parts: Sequence[memoryview]) -> None:
        lines: dict[Path, list[str]] = {}
        for episode, content in zip(episodes, parts, strict=True):
            path = self._commit_file(life, episode.job)
            lines.setdefault(path, []).extend(self._put_in_place(life, episode, content))
        for path, texts in lines.items():
            with storage_errors("open", path):
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                for text in texts:
                    append_line(descriptor, text, path)
            finally:
                os.close(descriptor)
        self.num_episodes += len(episodes)

    def _commit_file(self, life: Life, job: str) -> Path:
        """Return the commit file of a rank's life for a job; it is made at the first call."""
        path = self._commit_files.get((life, job))
        if path is None:
            writer = CommitWriter(self._job_directory(job), life.rank)
            writer.close()
            path = self._commit_files[life, job] = writer.path
        return path

    def _put_in_place(self, life: Life, episode: SentEpisode, content: memoryview) -> list[str]:
        """Write an episode's file, and return the lines that are to be committed then."""
        line = _checked(life, episode)
        if not episode.size:
            return [episode.line]
        path = self._job_directory(episode.job) / EPISODES_DIRECTORY / episode_file_name(line.episode_index)
        return put_in_place(path, line, episode.line, partial(write_bytes, path, bytes(content)))

    def _keep_file(self, life: Life, file: SentFile, content: memoryview) -> None:
        path = self._path_of(life, file)
        if file.offset is not None:
            write_at(path, file.offset, bytes(content))
        elif path.match(JOB_REPORT_PATTERN):
            write_job_report(path.parent, _checked_report(life, file, content))
        elif path.name != SETTLED_FILE or not path.exists():
            write_bytes(path, bytes(content), overwrite=True)

    def _path_of(self, life: Life, file: SentFile) -> Path:
        """Return where a file goes.

        Raises:
            StorageError: If it is none that this rank writes: whoever reaches the keeper can send names.
        """
        parts = PurePosixPath(file.path).parts
        name = PurePosixPath(parts[-1]) if parts else PurePosixPath()
        is_of_job = len(parts) == 2 and parts[0] in self._jobs and any(map(name.match, _FILES_OF_JOB))
        is_video = len(parts) == 3 and parts[0] in self._jobs and parts[1] == VIDEOS_DIRECTORY
        is_log = len(parts) == 2 and parts[0] == _LOGS and name.match(f"rank{life.rank}.log")
        if ".." in parts or not (is_of_job or is_video or is_log):
            raise StorageError(f"rank {life.rank} sent '{file.path}', which is no file that a rank writes")
        if is_log and life.number:
            # Each life begins its log anew.
            return self._output_directory / _LOGS / f"rank{life.rank}_life{life.number}{name.suffix}"
        return self._output_directory / file.path

    def _job_directory(self, job: str) -> Path:
        if job not in self._jobs:
            raise StorageError(f"'{job}' is no job of this attempt")
        return job_directory(self._output_directory, job)


def _checked(life: Life, episode: SentEpisode) -> CommitLine:
    try:
        line = parse_line(episode.line)
    except ValueError as error:
        raise StorageError(f"rank {life.rank} sent a line that is no episode: {error}") from error
    if (line.job_name, line.rank) != (episode.job, life.rank):
        raise StorageError(f"rank {life.rank} sent a line of job '{line.job_name}', rank {line.rank}")
    return line


def _cut(content: bytes, sizes: Sequence[int]) -> list[memoryview]:
    view, parts, begin = memoryview(content), [], 0
    for size in sizes:
        parts.append(view[begin : begin + size])
        begin += size
    return parts


def _checked_report(life: Life, file: SentFile, content: memoryview) -> JobReport:
    try:
        report = adapter(JobReport).validate_json(bytes(content))
    except ValueError as error:
        raise StorageError(f"rank {life.rank} sent '{file.path}', which is no report: {error}") from error
    if report.rank != life.rank:
        raise StorageError(f"rank {life.rank} sent '{file.path}', a report of rank {report.rank}")
    return report
