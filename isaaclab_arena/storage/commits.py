"""The commit record of a job: one line per finished episode, written after the episode's own file is in place."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.interfaces.episode import EpisodeEvents, EpisodeRecord, Outcome
from isaaclab_arena.storage import atomic, layout
from isaaclab_arena.storage.ledger import MAX_LIVES

_LOG = logging.getLogger(__name__)

# A line is the authority on its episode. Each process appends to a file of its own with one unbuffered write per line.
# A kill can tear only the last line of a file, and readers ignore a torn last line.


_KEYS = {"job": "job_name", "length": "episode_length", "conditions": "variations", "conditions_seed": "placement_seed"}
"""The attributes of a line that have another name in its file: that of Isaac Lab Arena."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    """A finished episode in its file: its `EpisodeRecord`, its place and its time, in the order of the file."""

    __pydantic_config__ = ConfigDict(alias_generator=lambda name: _KEYS.get(name, name))

    job: str
    env_id: int  # env slot of the job that ran the episode
    episode_in_env: int  # episodes that this slot had finished before
    language_instruction: str | None
    seed: int
    success: bool | None
    length: int
    timestamp: str  # end of the episode, ISO 8601 with time zone
    conditions: Mapping[str, Any] = field(default_factory=dict)
    episode_index: int  # unique together with the job
    outcome: Outcome | None
    termination: str
    episode_return: float | None  # None if not a finite number
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    # For tasks of several parts: Arena's ``overall_score`` (0 to 1), ``all_complete``, and ``criteria``, which maps a
    # name to its ``score`` and ``is_complete``. Derived from the metrics ``progress`` and ``progress.<criterion>``.
    progress: Mapping[str, Any] | None = None
    error: str | None = None
    events: EpisodeEvents | None = None
    saturated_action_share: float | None = None  # None in lines of earlier versions too
    rank: int
    attempt: int = 1  # start of the program on this run, from 1
    episode_seed: int
    conditions_seed: int | None = None
    dataset_file: str | None = None  # dataset after consolidation, relative to the job's directory
    episode_file: str | None = None  # file before consolidation, relative to the job's directory
    checksum: int | None = None  # CRC-32 of the recorded arrays
    start: int | None = None  # CRC-32 of the first observation, if the conditions are only a seed and it has no images
    wall_s: float | None = None  # start to end [s]; other env slots run in the same time


_KEY_OF = {each.name: _KEYS.get(each.name, each.name) for each in fields(CommitLine)}
"""Attribute to its name in the file, in the file's order."""


def commit_line(record: EpisodeRecord, *, wall_s: float, **context: Any) -> CommitLine:
    """Return the commit line of a finished episode. `context` has the fields that its record lacks."""
    progress, scores = None, record.metrics
    if "progress" in scores:
        head = "progress."
        parts = {name.removeprefix(head): score for name, score in scores.items() if name.startswith(head)}
        progress = {
            "overall_score": scores["progress"],
            "all_complete": scores["progress"] >= 1,
            "criteria": {name: {"score": score, "is_complete": score >= 1} for name, score in parts.items()},
        }
    of_episode = ("job", "episode_index", "seed", "episode_seed", "conditions_seed")
    own: dict[str, Any] = {name: getattr(record.episode, name) for name in of_episode}
    own |= {each.name: getattr(record, each.name) for each in fields(EpisodeRecord) if each.name != "episode"}
    return CommitLine(**own, progress=progress, wall_s=round(wall_s, 6), **context)


def line_text(line: CommitLine) -> str:
    """Return a line as its file holds it, without the line's end."""
    return atomic.json_line({key: getattr(line, name) for name, key in _KEY_OF.items()})


class CommitWriter:
    """Append commit lines to a new file of this rank. StorageError if the file cannot be created."""

    def __init__(self, job_directory: Path, rank: int) -> None:
        # A commit file is never reopened: each process of a rank takes the next free number.
        for life in range(MAX_LIVES):
            self.path = job_directory / f"episode_results_rank{rank}{f'_life{life}' if life else ''}.jsonl"
            try:
                job_directory.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise atomic.storage_error("create", self.path, error) from error
            return
        raise StorageError(f"{job_directory} holds {MAX_LIVES} commit files of rank {rank} already")

    def write(self, line: CommitLine | str) -> None:
        """Append one line, or the text of one: its recording holds the same text. StorageError unless written whole."""
        if self._descriptor < 0:
            with atomic.storage_errors("open", self.path):
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        atomic.append_line(self._descriptor, line if isinstance(line, str) else line_text(line), self.path)

    def close(self) -> None:
        """Close the file; the next line opens it again. May be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def commit(self, line: CommitLine, text: str, write: Callable[[Path], object] | None) -> None:
        """Commit an episode. `text` is the formatted `line`; `write` writes the episode's file, None without one."""
        path = self.path.parent / layout.EPISODES_DIRECTORY / layout.episode_file_name(line.episode_index)
        # The file may exist: from a rank that died before the commit, or from a rank that was presumed dead.
        with suppress(atomic.FileThereError):
            if write is not None:
                write(path)
            self.write(text)
            return
        # Readers of commit lines should not wait for HDF5.
        from isaaclab_arena.storage.episodes import read_attributes, verify_episodes  # noqa: PLC0415

        try:
            verify_episodes(path, [line.episode_index])
            attributes = read_attributes(path, line.episode_index)
            try:
                there = parse_line(str(attributes.get(layout.COMMIT_ATTRIBUTE, "")))
            except ValueError as error:
                raise DamagedFileError(f"{path} does not say how its episode went") from error
            found = (there.job, there.episode_index, there.checksum)
            if found != (line.job, line.episode_index, attributes.get("checksum")):
                what = f"of job '{there.job}', episode {there.episode_index}, or of other arrays"
                raise DamagedFileError(f"{path} is {what}")  # noqa: TRY301
        except DamagedFileError as error:
            _LOG.warning("%s was there already and is replaced: %s", path, error)
            atomic.move_aside(path, path.parents[1] / layout.SET_ASIDE_DIRECTORY)
            self.commit(line, text, write)
            return
        self.write(there)
        if there.checksum == line.checksum:
            _LOG.info("%s was there already, with the same content: its line is committed", path)
            return
        # Neither result can be preferred. The existing file may belong to a live rank, so it stays. Both results are
        # committed, so the mismatch of the episode is visible.
        _LOG.warning("%s was there already, with other content: both results are committed, its arrays kept", path)
        self.write(replace(line, dataset_file=None, episode_file=None))


@dataclass(frozen=True, kw_only=True)
class CommitLog:
    """The content of the commit files of a job."""

    lines: tuple[CommitLine, ...]  # the line that counts for each episode, by index
    problems: tuple[str, ...] = ()  # malformed lines, unreadable files, and lines of another job or run
    unequal_episodes: tuple[int, ...] = ()  # indices of episodes committed more than once with different results
    retried_episodes: tuple[int, ...] = ()  # indices of episodes whose line replaced an error of an earlier attempt
    torn: tuple[Path, ...] = ()  # files whose last line has no end, because their process died or is at it


def read_commits(job_directory: Path, job: str, *, seed: int | None = None, skip_unreadable: bool = True) -> CommitLog:
    """Read every commit file of a job. Lines with another `seed` belong to another run; None accepts every seed."""
    by_index: dict[int, CommitLine] = {}
    problems: list[str] = []
    torn: list[Path] = []
    unequal: set[int] = set()
    retried: set[int] = set()
    same_result = ("outcome", "success", "length", "episode_return", "termination", "episode_seed")

    # Of several lines of one episode the earliest attempt counts, but an error gives way to a later attempt.
    for path in sorted(job_directory.glob(layout.COMMIT_FILE_PATTERN)):
        try:
            *texts, last = atomic.read_whole(path).split(b"\n")
        except StorageError as error:
            if not skip_unreadable:
                raise
            problems.append(str(error))
            continue
        # A last line without its newline was torn by a kill: its episode is not committed.
        torn += [path] if last else []
        others = 0
        for number, text in enumerate(texts, start=1):
            line = _parsed(text, job)
            if not isinstance(line, CommitLine):
                problems += [f"{path}: line {number} {line}"] if line else []
                continue
            if seed not in (None, line.seed):
                others += 1
                continue
            index = line.episode_index
            known = by_index.setdefault(index, line)
            if known is line:
                continue
            by_index[index] = line if counts_before(line, known) else known
            other_arrays = None not in (known.checksum, line.checksum) and known.checksum != line.checksum
            if _gives_way(known, line) or _gives_way(line, known):
                retried.add(index)
            elif other_arrays or any(getattr(known, name) != getattr(line, name) for name in same_result):
                unequal.add(index)
        if others:
            problems.append(f"{path}: {others} lines are of another run and do not count: their seed is not {seed}")
    return CommitLog(
        lines=tuple(by_index[index] for index in sorted(by_index)),
        problems=tuple(problems),
        torn=tuple(torn),
        unequal_episodes=tuple(sorted(unequal)),
        retried_episodes=tuple(sorted(retried)),
    )


def _parsed(text: bytes, job: str) -> CommitLine | str:
    """Return a line of a job's commit file, or the reason against it; an empty reason for an empty line."""
    try:
        line = parse_line(text) if text.strip() else None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return "is no episode: " + ": ".join([*map(str, first["loc"]), first["msg"]])
    except ValueError as error:
        return f"is no episode: {error}"
    return "" if line is None else line if line.job == job else f"belongs to job {line.job!r}"


def counts_before(line: CommitLine, known: CommitLine) -> bool:
    """Whether `line` replaces `known`, a line of the same episode that was read before; see `read_commits`."""
    return _gives_way(known, line) or (line.attempt < known.attempt and not _gives_way(line, known))


def _gives_way(line: CommitLine, other: CommitLine) -> bool:
    """Whether `line` is an error and `other` is a later attempt at the same episode."""
    return line.outcome is Outcome.ERROR and other.attempt > line.attempt


def parse_line(text: bytes | str) -> CommitLine:
    """Parse one line of a commit file. ValueError if it is not a commit line."""
    line = atomic.adapter(CommitLine).validate_json(text, strict=True)
    if min(line.episode_index, line.length, line.env_id, line.rank, line.attempt) < 0:
        raise ValueError("a count is negative")
    return line


def fresh_lines(job_directory: Path, job: str, read_bytes: dict[Path, int]) -> Iterator[CommitLine]:
    """Yield the lines of a job that its ranks have appended since `read_bytes`, the part of each file that was read."""
    for path in sorted(job_directory.glob(layout.COMMIT_FILE_PATTERN)):
        atomic.check_plain(path)
        with atomic.storage_errors("read", path), path.open("rb") as file:
            file.seek(read_bytes.get(path, 0))
            content = file.read()
        # The part after the last newline is still being written.
        whole = content[: content.rfind(b"\n") + 1]
        read_bytes[path] = read_bytes.get(path, 0) + len(whole)
        for text in whole.splitlines():
            # The merge reports any other line.
            if isinstance(line := _parsed(text, job), CommitLine):
                yield line


# Compare a commit line with the attributes of its recording.

_ATTRIBUTES = (
    *("job", "episode_index", "seed", "episode_seed", "placement_seed", "env_id", "success", "outcome", "termination"),
    *("episode_return", "language_instruction", "conditions", "metrics", "error", "rank"),
)
"""The attributes of an episode's group that a line has too, in the order of the file."""


def attributes_of(line: CommitLine) -> dict[str, str | int | float | bool]:
    """Return the attributes of an episode's group from its commit line; unknown values are left out."""
    values = {name: getattr(line, "conditions_seed" if name == "placement_seed" else name) for name in _ATTRIBUTES}
    values |= {name: atomic.json_line(values[name]) for name in ("conditions", "metrics")}
    return {name: value for name, value in values.items() if value is not None}


def contradiction(line: CommitLine, attributes: Mapping[str, object]) -> str | None:
    """Return the first disagreement of a commit line and its recording, None if they agree."""
    # A disagreement means that one of the two was changed later, and it is unknown which. Recordings of
    # `EpisodeRecorder` carry the whole line.
    compared: list[tuple[str, object, object]] = []
    text = attributes.get(layout.COMMIT_ATTRIBUTE)
    if text is not None:
        try:
            carried = parse_line(str(text))
        except ValueError:
            return "its recording holds an invalid commit line"
        # The place of a recording may change.
        names = {name: key for name, key in _KEY_OF.items() if name not in ("dataset_file", "episode_file")}
        compared += [(key, getattr(line, name), getattr(carried, name)) for name, key in names.items()]
    compared += [(name, said, attributes[name]) for name, said in attributes_of(line).items() if name in attributes]
    compared.append(("episode_length", line.length, attributes.get("num_samples", line.length)))
    for name, said, recorded in compared:
        if said != recorded:
            return f"its commit line says {name} {said}, its recording {recorded}"
    return None
