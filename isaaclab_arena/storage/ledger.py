"""The ledger of a run: its plan, attempts, commits and recordings, as files in its directory."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.interfaces.episode import EpisodeEvents, EpisodeRanges, EpisodeRecord, Outcome
from isaaclab_arena.storage import atomic, json_values, layout
from isaaclab_arena.storage.contents import Contents, Node, Provenance

# The transitions of a run in its directory, in order. A process may die between any two of them: then the next start
# goes on, or a rank that is left. `tests/storage/recovery/test_leftovers.py` cuts a run at each one.


@dataclass(frozen=True)
class Transition:
    """An event of a run, and its traces."""

    event: str
    on_disk: str  # from then on
    repair: str  # after a death before the next event


TRANSITIONS = (
    Transition("the run is planned", "run.json, then attempts/plan.json", "all episodes are left"),
    Transition("an attempt begins", "attempts/attempt_<n>.json", "the next attempt reads the files again"),
    Transition("a piece is claimed", "claims/attempt_<n>/j<job>_p<piece>.g<n>", "another rank takes the piece over"),
    Transition("a job begins", "job_begun_rank<r>_attempt<n>.json", "the job is interrupted"),
    Transition("an episode is recorded", "episodes/e<index>.h5, with its line", "its line is committed: it is adopted"),
    Transition("an episode is committed", "a line of episode_results_rank<r>.jsonl", "the episode is finished"),
    Transition("a piece is played", "claims/attempt_<n>/j<job>_p<piece>.done", "its new owner finds it committed"),
    Transition("a job is consolidated", "dataset_<job>.hdf5, then no episodes/", "its episode files are removed"),
    Transition("a job is reported", "job_report_rank<r>.json, then no begun file", "the later one of the two counts"),
    Transition("the run is merged", "tables, results.json, then report.html", "old tables are written anew"),
)

# ``run.json``: the plan of a run, written before it starts, so that missing results can be named later.

SCHEMA_VERSION = 1  # of each file here
MAX_LIVES = 10_000  # how often a rank may take up the same job


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One job of the plan: its configuration, and the resolved values that cannot be derived from it."""

    config: JobConfig  # with every key, enough to build the job again without its file
    rank: int | None  # None for a job that is skipped or that several ranks may run
    task: str | None = None  # for tables
    embodiment: str | None = None  # None if the environment has no choice
    object: str | None = None  # None if the environment has no choice
    policy_config: Mapping[str, Any] = field(default_factory=dict)  # options of the job and of the command line
    # Active variations: ``cube.mass.sampler_cfg.high`` to its value.
    variations: Mapping[str, Any] = field(default_factory=dict)
    conditions_checksum: int | None = None  # CRC-32 of the saved conditions; None if conditions are drawn
    # Evaluated contents at the start of the run. None for a skipped job, and in plans of earlier versions. A later
    # attempt may change them; see `contents_in_effect`.
    contents: Contents | None = None
    # The simulator of all ranks. None in runs of earlier versions, and if there is no choice.
    backend: str | None = None
    # Delay of the policy's answers [control steps]. None for a job without latency, and if the control step is known
    # only after the environment is built.
    latency: Delays | None = None

    @property
    def name(self) -> str:
        """The name of the job and of its directory."""
        return self.config.name

    @property
    def is_to_run(self) -> bool:
        """Whether the run includes the job; a job file may mark it as done."""
        return self.config.status is JobStatus.PENDING


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run, as stored in ``run.json``."""

    run_id: str
    created_at: str  # ISO 8601 with time zone
    config_hash: str  # hash of the resolved jobs
    source_file: str | None  # job file
    command_line: tuple[str, ...]
    world_size: int  # number of ranks
    versions: Mapping[str, str]  # by package: python, torch, mujoco, numpy, this package
    git_revision: str | None  # of the working directory; None outside a repository
    machine: Node  # host of rank 0
    devices: tuple[str, ...]  # by rank
    jobs: tuple[PlanEntry, ...]  # in order of index
    # Options of the command line that change the recordings or the results.
    settings: Mapping[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()  # the jobs stop as soon as these are answered
    working_directory: str | None = None  # base of the relative paths of policies
    schema_version: int = SCHEMA_VERSION

    @property
    def provenance(self) -> Provenance:
        """Versions and machine that the results depend on, as rank 0 saw them at the start of the run."""
        return Provenance.of(self.versions, self.machine)


def write_run_plan(output_directory: Path, plan: RunPlan, *, revises: bool = False) -> Path:
    """Write ``run.json`` and its copy, and return its path. StorageError if there is one that this does not revise."""
    path, copy = output_directory / layout.RUN_PLAN_FILE, output_directory / layout.PLAN_COPY_FILE
    # The copy of a revised plan comes first: it replaces a lost plan, and must never know of fewer episodes.
    for each in (copy, path) if revises else (path, copy):
        atomic.write_text(each, json_values.json_text(plan), overwrite=revises or each is copy)
    return path


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``. ConfigError if it is missing, damaged, of another version, or holds an invalid job name."""
    path = output_directory / layout.RUN_PLAN_FILE
    if not path.is_file():
        is_lost = (output_directory / layout.PLAN_COPY_FILE).is_file()
        what = "it is lost; isaaclab-arena recover brings it back" if is_lost else "it is not the output of a run"
        raise ConfigError(Problem(f"holds no {layout.RUN_PLAN_FILE}: {what}", file=str(output_directory)))
    try:
        return _read_plan(path)
    except ConfigError as error:
        # The error names the recovery only if the copy is readable.
        try:
            read_plan_copy(output_directory)
        except ConfigError:
            raise error from None
        mend = Problem("isaaclab-arena recover brings it back from its copy", file=str(path))
        raise ConfigError([*error.problems, mend]) from error


def _read_plan(path: Path) -> RunPlan:
    plan = json_values.read_versioned(path, RunPlan, SCHEMA_VERSION)
    # Job names become paths, and a plan file is untrusted input.
    problems = [
        Problem(problem, file=str(path), key=f"jobs[{position}].config.name")
        for position, job in enumerate(plan.jobs)
        if (problem := name_problem(job.name)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return plan


def read_plan_copy(output_directory: Path) -> RunPlan:
    """Read the copy of ``run.json``. ConfigError if it is missing or cannot be read."""
    path = output_directory / layout.PLAN_COPY_FILE
    if not path.is_file():
        raise ConfigError(Problem("is missing too: only runs of this version and later ones have it", file=str(path)))
    return _read_plan(path)


# ``settled.json``: the policy batch of a job [env slots], settled by the first rank that builds the job.


@dataclass(frozen=True, kw_only=True)
class SettledBatch:
    """The settings that every rank and every later attempt keep, so that a job's bits are the same."""

    policy_batch: int  # env slots in one policy query
    schema_version: int = SCHEMA_VERSION


def read_settled(job_directory: Path) -> SettledBatch | None:
    """Return the settled batch, None if no rank has settled one. ConfigError if the file is damaged."""
    path = job_directory / layout.SETTLED_FILE
    return json_values.read_versioned(path, SettledBatch, SCHEMA_VERSION) if path.exists() else None


def settle(job_directory: Path, settled: SettledBatch) -> SettledBatch:
    """Settle the batch of a job unless another rank has done so, and return the batch in effect."""
    path = job_directory / layout.SETTLED_FILE
    temporary = atomic.temporary_path(path)
    atomic.write_text(temporary, json_values.json_text(settled), overwrite=True)
    try:
        # A link is created atomically, and fails if the file exists: only one rank settles.
        os.link(temporary, path)
    except FileExistsError:
        return read_settled(job_directory) or settled
    except OSError as no_links:
        # This file system has no links. Ranks that race here all write the same content.
        try:
            atomic.write_text(path, json_values.json_text(settled))
        except ArenaError as error:
            if not path.exists():
                raise atomic.storage_error("write", path, no_links) from error
    finally:
        temporary.unlink(missing_ok=True)
    return read_settled(job_directory) or settled


# ``attempts/attempt_<n>.json``: one start of the program on a run, and the episodes finished before it.
#
# The plan in ``run.json`` defines the run; an attempt records its ranks and its time. All ranks of an attempt read the
# finished episodes from this file, so they agree on the rest without communication.

_ATTEMPT_FILE = re.compile(r"attempt_([1-9]\d{0,5})\.json", re.ASCII)

INSTEAD_OF_ATTEMPT = "run.json and the recordings say with which versions it ran"
"""The source of the facts that a damaged attempt's file has lost, for messages."""


@dataclass(frozen=True, kw_only=True)
class AttemptEntry:
    """The rest of one unfinished job, for one attempt."""

    job: str
    finished: EpisodeRanges = ()  # episodes that must not run again
    contents: Contents | None = None  # evaluated contents; None in files of earlier versions
    is_rerun: bool = False  # its earlier episodes were set aside, because they evaluated other contents
    backend: str | None = None  # simulator of every rank; None if there is no choice
    # Env slots in one policy query, as an earlier attempt settled it. None before the job is built, and if the number
    # has no effect.
    policy_batch: int | None = None
    latency: Delays | None = None  # delay of the policy's answers, if measured at the start of the run
    num_episodes: int | None = None  # new number of episodes, if the attempt raises it
    num_envs: int | None = None  # num_envs of the finished episodes, if the job has another number now


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the program on a run."""

    number: int  # from 1
    run_id: str  # id of this start
    started_at: str  # ISO 8601 with time zone
    command_line: tuple[str, ...]
    assignment: str  # assignment of jobs to ranks
    world_size: int  # number of ranks
    devices: tuple[str, ...]  # by rank
    versions: Mapping[str, str]  # by package
    git_revision: str | None  # of the working directory; None outside a repository
    machine: Node  # host of rank 0
    jobs: tuple[AttemptEntry, ...] = field(default_factory=tuple)  # unfinished jobs, in the plan's order
    retry_errors: bool = False  # episodes that ended in an error run again
    # Consecutive episodes with the same error before the job fails. 0 for no limit, and in files of earlier versions.
    max_equal_errors: int = 0
    run: str | None = None  # id of the run; None in files of earlier versions
    schema_version: int = SCHEMA_VERSION


def attempt_path(output_directory: Path, number: int) -> Path:
    """Return the path of an attempt's file."""
    return output_directory / layout.ATTEMPTS_DIRECTORY / f"attempt_{number}.json"


def write_attempt(output_directory: Path, attempt: Attempt) -> Path:
    """Write an attempt's file atomically, and return its path. StorageError if that number exists."""
    path = attempt_path(output_directory, attempt.number)
    atomic.write_text(path, json_values.json_text(attempt))
    return path


def read_attempt(output_directory: Path, number: int) -> Attempt:
    """Read an attempt's file. StorageError if it is missing, ConfigError if it is damaged or of another version."""
    path = attempt_path(output_directory, number)
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; the run's directory was changed by something else")
    return json_values.read_versioned(path, Attempt, SCHEMA_VERSION)


def read_attempts(output_directory: Path, run: str | None = None) -> tuple[list[Attempt], list[str]]:
    """Return the attempts of a run in order, and one message for each damaged or foreign file."""
    attempts, problems = [], []
    # Results are in other files, so a damaged attempt does not stop the caller. `run` None accepts every run.
    for number in attempt_numbers(output_directory):
        try:
            attempt = read_attempt(output_directory, number)
        except ConfigError as error:
            problems.append(f"{error}; {INSTEAD_OF_ATTEMPT}")
            continue
        if None not in (run, attempt.run) and attempt.run != run:
            problems.append(f"{attempt_path(output_directory, number)}: is of another run; {INSTEAD_OF_ATTEMPT}")
        else:
            attempts.append(attempt)
    return attempts, problems


def contents_in_effect(jobs: Sequence[PlanEntry], attempts: Sequence[Attempt]) -> dict[str, Contents | None]:
    """Map each job to the contents that its counted episodes evaluated; None if no file records them."""
    found = {job.name: job.contents for job in jobs}
    # `attempts` are in order. All attempts since a job's last rerun evaluated the same contents, so the last one
    # counts.
    found.update({work.job: work.contents for attempt in attempts for work in attempt.jobs if work.contents})
    return found


def policy_batches_in_effect(
    output_directory: Path, jobs: Sequence[PlanEntry], attempts: Sequence[Attempt]
) -> dict[str, int]:
    """Map each job to its policy batch [env slots]. Unbuilt jobs and damaged files are left out."""
    # An attempt's value holds for the attempts after it. Without one, the job's ``settled.json`` counts.
    found: dict[str, int | None] = {job.name: None for job in jobs}
    for work in (work for attempt in attempts for work in attempt.jobs):
        # Another network may need another batch, and a job without finished episodes is free to change it.
        begins = work.is_rerun or not work.finished
        found[work.job] = work.policy_batch or (None if begins else found.get(work.job))
    batches = {}
    for job, batch in found.items():
        if batch:
            batches[job] = batch
            continue
        # The rank that builds a job reports the damage of its file, and guarantees less.
        with suppress(ConfigError):
            settled = read_settled(output_directory / job)
            if settled is not None:
                batches[job] = settled.policy_batch
    return batches


def attempt_numbers(output_directory: Path) -> list[int]:
    """Return the numbers of the run's attempts, ascending."""
    directory = output_directory / layout.ATTEMPTS_DIRECTORY
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return sorted(int(match[1]) for match in map(_ATTEMPT_FILE.fullmatch, names) if match is not None)


# The commit record of a job: one JSON line per finished episode, written after the episode's own file is in place.
#
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
    saturated_action_share: float | None = None
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
    own |= {each.name: getattr(record, each.name) for each in fields(record) if each.name != "episode"}
    return CommitLine(**own, progress=progress, wall_s=round(wall_s, 6), **context)


def line_text(line: CommitLine) -> str:
    """Return a line as its file holds it, without the line's end."""
    return json_values.json_line({key: getattr(line, name) for name, key in _KEY_OF.items()})


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


@dataclass(frozen=True, kw_only=True)
class CommitLog:
    """The content of the commit files of a job."""

    lines: tuple[CommitLine, ...]  # the line that counts for each episode, by index
    problems: tuple[str, ...]  # malformed lines, unreadable files, and lines of another job or run
    unequal_episodes: tuple[int, ...]  # indices of episodes committed more than once with different results
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
    line = json_values.adapter(CommitLine).validate_json(text, strict=True)
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


def attributes_of(line: CommitLine) -> dict[str, str | int | float | bool]:
    """Return the attributes of an episode's group from its commit line; unknown values are left out."""
    named = ("env_id", "success", "outcome", "termination", "episode_return", "language_instruction")
    values: dict[str, str | int | float | bool | None] = {
        **{name: getattr(line, name) for name in ("job", "episode_index", "seed", "episode_seed")},
        "placement_seed": line.conditions_seed,
        **{name: getattr(line, name) for name in named},
        "conditions": json_values.json_line(line.conditions),
        "metrics": json_values.json_line(line.metrics),
        "error": line.error,
        "rank": line.rank,
    }
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
            return "its recording holds a commit line that is none"
        # The place of a recording may change.
        names = [name for name in _KEY_OF if not name.endswith("_file")]
        compared += [(_KEY_OF[name], getattr(line, name), getattr(carried, name)) for name in names]
    compared += [(name, said, attributes[name]) for name, said in attributes_of(line).items() if name in attributes]
    compared.append(("episode_length", line.length, attributes.get("num_samples", line.length)))
    for name, said, recorded in compared:
        if said != recorded:
            return f"its commit line says {name} {said}, its recording {recorded}"
    return None


def datasets(job_directory: Path, job: str) -> list[Path]:
    """Return the datasets of a job, of all ranks."""
    return sorted(path for path in job_directory.glob("*") if layout.is_dataset_of(job, path.name))


def episode_files(job_directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the episode files of a job with their indices, in order; files with other names are skipped."""
    for path in sorted((job_directory / layout.EPISODES_DIRECTORY).glob(layout.EPISODE_FILE_PATTERN)):
        index = layout.episode_index_of_file(path.name)
        if index is not None and path.name == layout.episode_file_name(index):
            yield path, index


def videos_of_job(output_directory: Path, job: str) -> list[tuple[layout.VideoName, Path]]:
    """Return the videos of a job, sorted by file name."""
    directory = output_directory / job / layout.VIDEOS_DIRECTORY
    # Links are skipped: a run may come from an untrusted source, and a link's target would enter pages and exports.
    try:
        with os.scandir(directory) as entries:
            files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        # Most jobs are not filmed.
        return []
    files = [] if atomic.leads_out_of_its_run(directory) else files
    return [(said, directory / name) for name in files if (said := layout.parse_video_file_name(name)) is not None]
