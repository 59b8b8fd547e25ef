"""The commit record of a job: one JSON line per finished episode, written after the episode's own file is in place.

A line is the truth about its episode. Each process writes a file of its own, one unbuffered write per line, so a kill
can tear at most the last line of a file, and readers ignore a torn last line.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isaaclab_arena.errors import StorageError
from isaaclab_arena.interfaces.episode import EpisodeEvents, EpisodeRecord, Outcome
from isaaclab_arena.storage.atomic import append_line, create_for_appending, read_whole
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, MAX_LIVES, commit_file_name


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    """One finished episode. The first block of fields is Isaac Lab Arena's, with its names.

    Attributes:
        job_name: Name of the job.
        env_id: Env slot of the job in which it ran.
        episode_in_env: How many episodes that slot had finished before.
        language_instruction: What the policy was told.
        seed: Seed of the job.
        success: Whether the task was solved; None where that is not measured or the episode is an error.
        episode_length: Number of control steps.
        timestamp: When it ended, ISO 8601 with time zone.
        variations: The conditions it started from.
        episode_index: Position in the job, from 0; with ``job_name`` it names the episode.
        outcome: How it ended; None where that is not measured.
        termination: Why it ended.
        episode_return: Sum of the rewards; None where that is not a number.
        metrics: Further scalars of the environment; None where one is not a number.
        progress: For tasks of several parts Arena's ``overall_score`` (0 to 1), ``all_complete`` and ``criteria``, by
            name their ``score`` and ``is_complete``; made from the metrics ``progress`` and ``progress.<criterion>``.
        error: What went wrong.
        events: What happened in it, None where the environment does not tell.
        saturated_action_share: Share of the entries of its actions that lay at or beyond their bounds; None where
            actions have no bounds, and in lines of earlier versions.
        rank: The rank that ran it.
        attempt: Which start of the program on this run, from 1.
        episode_seed: One integer that stands for the conditions.
        placement_seed: Seed of the conditions where it differs from ``seed``.
        dataset_file: File of the job's recording after consolidation, in the job's directory.
        episode_file: File of the episode before consolidation, in the job's directory.
        checksum: CRC-32 of the recorded arrays.
        start: CRC-32 of its first observation, where its conditions are but a seed and it shows no pictures.
        wall_s: Seconds from its start to its end, during which other env slots ran too.
    """

    job_name: str
    env_id: int
    episode_in_env: int
    language_instruction: str | None
    seed: int
    success: bool | None
    episode_length: int
    timestamp: str
    variations: Mapping[str, Any] = field(default_factory=dict)
    episode_index: int
    outcome: Outcome | None
    termination: str
    episode_return: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    progress: Mapping[str, Any] | None = None
    error: str | None = None
    events: EpisodeEvents | None = None
    saturated_action_share: float | None = None
    rank: int
    attempt: int = 1
    episode_seed: int
    placement_seed: int | None = None
    dataset_file: str | None = None
    episode_file: str | None = None
    checksum: int | None = None
    start: int | None = None
    wall_s: float | None = None


_PROGRESS = "progress"
_SAME_RESULT = ("outcome", "success", "episode_length", "episode_return", "termination", "episode_seed")


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """What a commit line holds beside the episode's record; see `CommitLine` for the fields."""

    rank: int
    episode_in_env: int
    timestamp: str
    wall_s: float
    attempt: int = 1
    dataset_file: str | None = None
    episode_file: str | None = None
    checksum: int | None = None
    start: int | None = None


def commit_line(record: EpisodeRecord, context: CommitContext) -> CommitLine:
    """Return the commit line of a finished episode."""
    return CommitLine(
        job_name=record.episode.job,
        env_id=record.env_id,
        episode_in_env=context.episode_in_env,
        language_instruction=record.language_instruction,
        seed=record.episode.seed,
        success=record.success,
        episode_length=record.length,
        timestamp=context.timestamp,
        variations=record.conditions,
        episode_index=record.episode.episode_index,
        outcome=record.outcome,
        termination=record.termination,
        episode_return=record.episode_return,
        metrics=record.metrics,
        progress=_progress(record.metrics),
        error=record.error,
        events=record.events,
        saturated_action_share=record.saturated_action_share,
        rank=context.rank,
        attempt=context.attempt,
        episode_seed=record.episode.episode_seed,
        placement_seed=record.episode.conditions_seed,
        dataset_file=context.dataset_file,
        episode_file=context.episode_file,
        checksum=context.checksum,
        start=context.start,
        wall_s=round(context.wall_s, 6),
    )


def _progress(metrics: Mapping[str, float]) -> dict[str, Any] | None:
    if _PROGRESS not in metrics:
        return None
    prefix = f"{_PROGRESS}."
    scores = {name.removeprefix(prefix): score for name, score in metrics.items() if name.startswith(prefix)}
    return {
        "overall_score": metrics[_PROGRESS],
        "all_complete": metrics[_PROGRESS] >= 1,
        "criteria": {name: {"score": score, "is_complete": score >= 1} for name, score in scores.items()},
    }


class CommitWriter:
    """Appends commit lines to a file of its own, which is created when it is made.

    Args:
        job_directory: Directory of the job.
        rank: The rank that writes.

    Raises:
        StorageError: If the file cannot be created.
    """

    def __init__(self, job_directory: Path, rank: int) -> None:
        self.path, self._descriptor = _create_own_file(job_directory, rank)

    def write(self, line: CommitLine) -> None:
        """Append one line.

        Raises:
            StorageError: If it could not be written whole.
        """
        self.write_line(json_line(line))

    def write_line(self, text: str) -> None:
        """Append one line as the text that `json_line` makes of it, which its recording holds too.

        Raises:
            StorageError: If it could not be written whole.
        """
        append_line(self._descriptor, text, self.path)

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, kw_only=True)
class CommitLog:
    """What the commit files of a job say.

    Attributes:
        lines: One line per episode, by index: the one that counts.
        problems: Lines that are no episodes, files that cannot be read, lines of another job or run.
        unequal_episodes: Indices of episodes that were committed more than once with different results.
        retried_episodes: Indices of episodes whose line took the place of an error of an earlier attempt.
    """

    lines: tuple[CommitLine, ...]
    problems: tuple[str, ...]
    unequal_episodes: tuple[int, ...]
    retried_episodes: tuple[int, ...] = ()


def read_commits(job_directory: Path, job: str, *, seed: int | None = None, skip_unreadable: bool = True) -> CommitLog:
    """Read every commit file of a job.

    A last line without its newline was torn by a kill: its episode has not been committed, and nothing is said. Of
    several lines of one episode the one of the earliest attempt counts, but an error gives way to a later attempt.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.
        seed: Seed of the job; lines of another one are of another run. None where that makes no difference.
        skip_unreadable: Whether a file that the system cannot read is told as a problem and left out.

    Raises:
        StorageError: If a file cannot be read and is not to be left out.
    """
    by_index: dict[int, CommitLine] = {}
    problems: list[str] = []
    unequal: set[int] = set()
    retried: set[int] = set()
    for path in sorted(job_directory.glob(COMMIT_FILE_PATTERN)):
        for line in _read_file(path, job, seed, problems, skip_unreadable=skip_unreadable):
            index = line.episode_index
            known = by_index.setdefault(index, line)
            if known is line:
                continue
            by_index[index] = line if counts_before(line, known) else known
            if _gives_way(known, line) or _gives_way(line, known):
                retried.add(index)
            elif not _equal_results(known, line):
                unequal.add(index)
    return CommitLog(
        lines=tuple(by_index[index] for index in sorted(by_index)),
        problems=tuple(problems),
        unequal_episodes=tuple(sorted(unequal)),
        retried_episodes=tuple(sorted(retried)),
    )


def counts_before(line: CommitLine, known: CommitLine) -> bool:
    """Whether a line counts instead of another one of the same episode that was read before it; see `read_commits`."""
    return _gives_way(known, line) or (line.attempt < known.attempt and not _gives_way(line, known))


def _gives_way(line: CommitLine, other: CommitLine) -> bool:
    """Whether a line is an error, and the other one a later attempt at its episode."""
    return line.outcome is Outcome.ERROR and other.attempt > line.attempt


def parse_line(text: bytes | str) -> CommitLine:
    """Return what a line of a commit file says.

    Raises:
        ValueError: If it is no commit line.
    """
    line = adapter(CommitLine).validate_json(text, strict=True)
    if min(line.episode_index, line.episode_length, line.env_id, line.rank, line.attempt) < 0:
        raise ValueError("a count is negative")
    return line


def _create_own_file(job_directory: Path, rank: int) -> tuple[Path, int]:
    for life in range(MAX_LIVES):
        path = job_directory / commit_file_name(rank, life)
        try:
            return path, create_for_appending(path)
        except FileExistsError:
            continue
    raise StorageError(f"{job_directory} holds {MAX_LIVES} commit files of rank {rank} already")


def _read_file(
    path: Path, job: str, seed: int | None, problems: list[str], *, skip_unreadable: bool
) -> Iterable[CommitLine]:
    others = 0
    try:
        content = read_whole(path)
    except StorageError as error:
        if not skip_unreadable:
            raise
        problems.append(str(error))
        return
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        if not text.strip():
            continue
        try:
            line = parse_line(text)
        except ValueError as error:
            problems.append(f"{path}: line {number} is no episode: {_reason(error)}")
            continue
        if line.job_name != job:
            problems.append(f"{path}: line {number} belongs to job {line.job_name!r}")
        elif seed not in (None, line.seed):
            others += 1
        else:
            yield line
    if others:
        problems.append(f"{path}: {others} lines are of another run and do not count: their seed is not {seed}")


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join([*map(str, first["loc"]), first["msg"]])


def _equal_results(first: CommitLine, second: CommitLine) -> bool:
    if None not in (first.checksum, second.checksum) and first.checksum != second.checksum:
        return False
    return all(getattr(first, name) == getattr(second, name) for name in _SAME_RESULT)
