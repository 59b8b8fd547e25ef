"""What a run did: commit lines of episodes, reports of jobs, and the standing of each."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.interfaces.episode import EpisodeEvents, EpisodeRecord, Metric, Outcome
from isaaclab_arena.paths import now
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import append_line, read_whole, storage_error, storage_errors, write_text
from isaaclab_arena.storage.json_values import adapter, json_line, json_text, read_versioned
from isaaclab_arena.storage.run_plan import PlanEntry

# The commit record of a job: one JSON line per finished episode, written after the episode's own file is in place.
#
# A line is the authority on its episode. Each process appends to a file of its own with one unbuffered write per line.
# A kill can tear only the last line of a file, and readers ignore a torn last line.


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    """One finished episode. The fields of the first block carry the names of Isaac Lab Arena."""

    job_name: str
    env_id: int  # env slot of the job that ran the episode
    episode_in_env: int  # episodes that this slot had finished before
    language_instruction: str | None
    seed: int
    success: bool | None  # None if success is not measured or the episode is an error
    episode_length: int  # control steps
    timestamp: str  # end of the episode, ISO 8601 with time zone
    variations: Mapping[str, Any] = field(default_factory=dict)  # initial conditions
    episode_index: int  # position in the job, from 0; unique together with job_name
    outcome: Outcome | None  # None if success is not measured
    termination: str
    episode_return: float | None  # sum of the rewards; None if not a finite number
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    # For tasks of several parts: Arena's ``overall_score`` (0 to 1), ``all_complete``, and ``criteria``, which maps a
    # name to its ``score`` and ``is_complete``. Derived from the metrics ``progress`` and ``progress.<criterion>``.
    progress: Mapping[str, Any] | None = None
    error: str | None = None
    events: EpisodeEvents | None = None  # None if the environment reports none
    # Share of the action entries at or beyond their bounds. None if actions have no bounds, and in lines of earlier
    # versions.
    saturated_action_share: float | None = None
    rank: int
    attempt: int = 1  # start of the program on this run, from 1
    episode_seed: int  # one integer that identifies the conditions
    placement_seed: int | None = None  # seed of the conditions if it differs from `seed`
    dataset_file: str | None = None  # dataset after consolidation, relative to the job's directory
    episode_file: str | None = None  # file before consolidation, relative to the job's directory
    checksum: int | None = None  # CRC-32 of the recorded arrays
    start: int | None = None  # CRC-32 of the first observation, if the conditions are only a seed and it has no images
    wall_s: float | None = None  # start to end [s]; other env slots run in the same time


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """Fields of a commit line that the episode's record lacks; see `CommitLine`."""

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
    progress, scores = None, record.metrics
    if "progress" in scores:
        head = "progress."
        parts = {name.removeprefix(head): score for name, score in scores.items() if name.startswith(head)}
        progress = {
            "overall_score": scores["progress"],
            "all_complete": scores["progress"] >= 1,
            "criteria": {name: {"score": score, "is_complete": score >= 1} for name, score in parts.items()},
        }
    kept = ("env_id", "language_instruction", "success", "outcome", "termination", "episode_return", "metrics", "error")
    return CommitLine(
        job_name=record.episode.job,
        seed=record.episode.seed,
        episode_length=record.length,
        variations=record.conditions,
        episode_index=record.episode.episode_index,
        progress=progress,
        events=record.events,
        saturated_action_share=record.saturated_action_share,
        episode_seed=record.episode.episode_seed,
        placement_seed=record.episode.conditions_seed,
        **{name: getattr(record, name) for name in kept},
        **{**vars(context), "wall_s": round(context.wall_s, 6)},
    )


class CommitWriter:
    """Append commit lines to a new file of this rank. StorageError if the file cannot be created."""

    def __init__(self, job_directory: Path, rank: int) -> None:
        # A commit file is never reopened: each process of a rank takes the next free number.
        for life in range(layout.MAX_LIVES):
            self.path = job_directory / layout.commit_file_name(rank, life)
            try:
                job_directory.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise storage_error("create", self.path, error) from error
            return
        raise StorageError(f"{job_directory} holds {layout.MAX_LIVES} commit files of rank {rank} already")

    def write(self, line: CommitLine) -> None:
        """Append one line. StorageError if it could not be written whole."""
        self.write_line(json_line(line))

    def write_line(self, text: str) -> None:
        """Append one line that `json_line` has formatted; the recording holds the same text."""
        if self._descriptor < 0:
            with storage_errors("open", self.path):
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        append_line(self._descriptor, text, self.path)

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


def read_commits(job_directory: Path, job: str, *, seed: int | None = None, skip_unreadable: bool = True) -> CommitLog:
    """Read every commit file of a job. Lines with another `seed` belong to another run; None accepts every seed."""
    by_index: dict[int, CommitLine] = {}
    problems: list[str] = []
    unequal: set[int] = set()
    retried: set[int] = set()
    same_result = ("outcome", "success", "episode_length", "episode_return", "termination", "episode_seed")

    # Of several lines of one episode the earliest attempt counts, but an error gives way to a later attempt.
    for path in sorted(job_directory.glob(layout.COMMIT_FILE_PATTERN)):
        for line in _read_file(path, job, seed, problems, skip_unreadable=skip_unreadable):
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
    return CommitLog(
        lines=tuple(by_index[index] for index in sorted(by_index)),
        problems=tuple(problems),
        unequal_episodes=tuple(sorted(unequal)),
        retried_episodes=tuple(sorted(retried)),
    )


def counts_before(line: CommitLine, known: CommitLine) -> bool:
    """Whether `line` replaces `known`, a line of the same episode that was read before; see `read_commits`."""
    return _gives_way(known, line) or (line.attempt < known.attempt and not _gives_way(line, known))


def _gives_way(line: CommitLine, other: CommitLine) -> bool:
    """Whether `line` is an error and `other` is a later attempt at the same episode."""
    return line.outcome is Outcome.ERROR and other.attempt > line.attempt


def parse_line(text: bytes | str) -> CommitLine:
    """Parse one line of a commit file. ValueError if it is not a commit line."""
    line = adapter(CommitLine).validate_json(text, strict=True)
    if min(line.episode_index, line.episode_length, line.env_id, line.rank, line.attempt) < 0:
        raise ValueError("a count is negative")
    return line


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
    # A last line without its newline was torn by a kill. Its episode is not committed, so the line is dropped silently.
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        if not text.strip():
            continue
        try:
            line = parse_line(text)
        except ValueError as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_input=False, include_context=False)[0]
                reason = ": ".join([*map(str, first["loc"]), first["msg"]])
            problems.append(f"{path}: line {number} is no episode: {reason}")
            continue
        if line.job_name != job:
            problems.append(f"{path}: line {number} belongs to job {line.job_name!r}")
        elif seed not in (None, line.seed):
            others += 1
        else:
            yield line
    if others:
        problems.append(f"{path}: {others} lines are of another run and do not count: their seed is not {seed}")


# ``job_report_rank<r>.json``: the result of a job on a rank, written when the rank leaves the job.
#
# Until then ``job_begun_rank<r>_attempt<n>.json`` states what the rank guarantees, so the rank may die at any moment.

SCHEMA_VERSION = 1

MAX_QUERY_TIMES = 512  # the most query times that a report holds


class ReportedStatus(StrEnum):
    """The end of a job on a rank. ``BEGUN``: the job is built there and has not ended yet."""

    BEGUN = "begun"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Reproducible(StrEnum):
    """What a rerun of the job reproduces: the same bits, or the same episodes and conditions."""

    BITWISE = "bitwise"
    PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Time before a job's first control step, by phase [s]. None for a phase that the job did not reach."""

    # Phases do not overlap. All but `import_s` are part of the job's `wall_s`.
    #
    # From the start of the process to that of the program. 0 for later jobs of a process, None if unknown.
    import_s: float | None = None
    compile_s: float = 0.0  # Warp compiles kernels and loads those
    kernel_wait_s: float = 0.0  # waits while another process of the machine compiles kernels
    kernel_load_s: float = 0.0  # Warp loads kernels that were compiled before
    build_environment_s: float | None = None  # builds or reuses the environment, without kernels
    build_policy_s: float | None = None  # the same for the policy
    first_reset_s: float | None = None  # from there to the start of the first episodes, without kernels
    first_step_s: float | None = None  # from there to the first control step, without kernels


@dataclass(frozen=True, kw_only=True)
class ServerUsage:
    """The share of a policy server that a rank's queries took; the sum over all ranks is the server's total."""

    queries: int = 0
    entries: int = 0  # batch entries of the queries
    calls: float = 0.0  # forward passes; a pass for several queries is shared among them
    call_entries: float = 0.0  # batch entries of the passes, padding included, shared in the same way
    queue_s: float = 0.0  # from the arrival of a query to its first pass [s]
    busy_s: float = 0.0  # duration of the passes [s], shared in the same way
    seen_s: float = 0.0  # from the rank's first answer to its last [s]
    seen_busy_s: float = 0.0  # duration of all passes of the server in that time, for any rank [s]
    seen_entries: int = 0  # batch entries that the server answered in that time, for any rank

    def __add__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value - getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class QueryPace:
    """The rate at which a policy is queried for an env slot while the simulation waits for its answers."""

    steps: int  # control steps between two queries
    control_dt: float  # control step [s]

    def queries_per_s(self, lengths: Sequence[int]) -> float | None:
        """Return the queries per second of robot time for episodes of `lengths` control steps. None without steps."""
        if not sum(lengths):
            return None
        return sum(-(-length // self.steps) for length in lengths) / (sum(lengths) * self.control_dt)


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The result of a job on one rank. Optional fields are None in files of earlier versions too."""

    job: str
    rank: int
    device: str
    status: ReportedStatus
    started_at: str
    ended_at: str
    wall_s: float  # start to end [s]; the sum of the following
    build_s: float = 0.0  # build of environment and policy, kernels included
    simulate_s: float = 0.0  # physics
    policy_s: float = 0.0  # policy
    render_s: float = 0.0  # images
    record_s: float = 0.0  # recording
    idle_s: float = 0.0  # the rest
    start_up: StartUp | None = None
    env_steps: int = 0  # control steps, summed over running env slots
    # Images rendered for policies, one for each env slot and each term of ``camera_obs``.
    pictures_drawn: int | None = None
    pictures_looked_at: int | None = None  # images that a policy or an observer declared it would use
    num_episodes: int | None = None  # planned episodes, once known; None for a job limited by steps
    cut_episodes: int = 0  # running episodes that a step limit or an interruption ended
    reproducible: Reproducible | None = None  # None if the job was never built
    plan_because: str | None = None  # the reason for ``plan``, in one line; None for ``bitwise``
    remarks: tuple[str, ...] = ()  # observations of the rank that its numbers do not show, one line each
    policy_batch: int | None = None  # env slots in one policy query; None if the number has no effect
    policy_server: ServerUsage | None = None  # None without a policy server
    # Sample of the query times [s], at most `MAX_QUERY_TIMES`. None for a job without latency.
    query_s: tuple[float, ...] | None = None
    query_pace: QueryPace | None = None  # None for a job without latency, or if the simulation does not wait
    processor: str | None = None  # processor model
    device_kind: str | None = None  # ``cpu``, or ``cuda`` with the GPU's name
    # Simulator as the environment describes it. None if the job was never built.
    simulated_by: Mapping[str, str] | None = None
    metrics: tuple[Metric, ...] = ()  # as environment and policy declare them
    error: str | None = None  # one line
    traceback_file: str | None = None  # relative to the output directory
    attempt: int = 1  # start of the program on this run, from 1
    run: str | None = None  # id of the run
    schema_version: int = SCHEMA_VERSION


def failed_report(job: str, error: str, *, rank: int, device: str, attempt: int, run: str | None) -> JobReport:
    """Return the report of a job that failed outside its episodes; its times are unknown. `error` is one line."""
    at = now()
    times: dict[str, Any] = {"started_at": at, "ended_at": at, "wall_s": 0.0}
    where: dict[str, Any] = {"rank": rank, "device": device, "attempt": attempt, "run": run}
    return JobReport(job=job, status=ReportedStatus.FAILED, error=error, **where, **times)


def write_job_report(job_directory: Path, report: JobReport) -> Path:
    """Write a report atomically beside earlier reports of this rank, and return its path."""
    begun = job_directory / layout.job_begun_file_name(report.rank, report.attempt)
    if report.status is ReportedStatus.BEGUN:
        write_text(begun, json_text(report), overwrite=True)
        return begun
    # The report replaces the begun file only after it is in place: a kill in between leaves both, not neither.
    for life in range(layout.MAX_LIVES):
        path = job_directory / layout.job_report_file_name(report.rank, life)
        if not path.exists():
            write_text(path, json_text(report))
            with storage_errors("remove", begun):
                begun.unlink(missing_ok=True)
            return path
    raise StorageError(f"{job_directory} holds {layout.MAX_LIVES} reports of rank {report.rank} already")


def read_job_reports(
    job_directory: Path, job: str, run: str | None = None, *, skip_unreadable: bool = True
) -> tuple[list[JobReport], list[tuple[Path, str]]]:
    """Return the reports of a job by attempt, rank and time, and each unreadable file with its reason."""
    reports: list[JobReport] = []
    unread: list[tuple[Path, str]] = []
    # `run` None accepts the reports of every run.
    for path in sorted([*job_directory.glob(layout.JOB_REPORT_PATTERN), *job_directory.glob(layout.JOB_BEGUN_PATTERN)]):
        try:
            report = read_versioned(path, JobReport, SCHEMA_VERSION)
        except ConfigError as error:
            unread.append((path, str(error)))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                # The rank ended between the glob and the read; its final report is there.
                continue
            if not skip_unreadable:
                raise
            unread.append((path, str(error)))
        else:
            if report.job != job:
                unread.append((path, f"{path}: is of job '{report.job}'"))
            elif None not in (run, report.run) and report.run != run:
                unread.append((path, f"{path}: is of another run"))
            else:
                reports.append(report)
    # A begun file counts only until the same rank and attempt has reported its end.
    ended = {(each.rank, each.attempt) for each in reports if each.status is not ReportedStatus.BEGUN}
    counted = [
        each
        for each in sorted(reports, key=lambda each: (each.attempt, each.rank, each.started_at))
        if each.status is not ReportedStatus.BEGUN or (each.rank, each.attempt) not in ended
    ]
    return counted, unread


# The standing of a job from its files: the one rule for a resume, for a merge, and for the view of a running job.


class JobResultStatus(StrEnum):
    """The state of a job, according to its files."""

    # INTERRUPTED: stopped, or its rank died after the begin. MISSING: no trace. SKIPPED: excluded by the job file.
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class JobStanding:
    """The state of a job and the episodes that it lacks."""

    status: JobResultStatus
    planned: int | None  # number of episodes; None if steps decide, or no rank has reported it
    missing: tuple[int, ...]  # indices of unfinished planned episodes, without those that `needed` excludes


def job_standing(
    job: PlanEntry,
    finished: Collection[int],
    reports: Sequence[JobReport],
    *,
    needed: int | None = None,
    has_parts: bool = False,
) -> JobStanding:
    """Return the state of a job. `needed` is the number of episodes its questions need, None for all."""
    said = (report.num_episodes for report in reports if report.num_episodes is not None)
    planned = job.config.num_episodes if job.config.num_episodes is not None else next(said, None)
    last = max((report.attempt for report in reports), default=0)
    ended = {report.status for report in reports if report.attempt == last} - {ReportedStatus.BEGUN}
    if planned is None or not job.is_to_run:
        missing, is_complete = (), ended == {ReportedStatus.COMPLETED}
    else:
        owed = planned if needed is None else min(planned, needed)
        # A job of known length is complete with its last episode. Its begin reports already state what its results
        # guarantee, so a rank may die between its last episode and its report. Episode files outside a dataset
        # (`has_parts`) still need consolidation.
        missing = tuple(index for index in range(owed) if index not in finished)
        is_promised = not has_parts and any(report.reproducible is not None for report in reports)
        is_complete = not missing and (ReportedStatus.COMPLETED in ended or is_promised)
    if ReportedStatus.FAILED in ended:
        status = JobResultStatus.FAILED
    elif is_complete:
        status = JobResultStatus.COMPLETED
    elif reports or finished:
        status = JobResultStatus.INTERRUPTED
    else:
        status = JobResultStatus.MISSING if job.is_to_run else JobResultStatus.SKIPPED
    return JobStanding(status=status, planned=planned, missing=missing)
