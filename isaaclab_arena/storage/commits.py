"""What a run did: commit lines of episodes, reports of jobs, and the standing of each."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.interfaces.episode import EpisodeEvents, EpisodeRecord, Outcome
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import append_line, create_for_appending, read_whole, storage_errors, write_text
from isaaclab_arena.storage.json_values import adapter, json_line, json_text, read_versioned
from isaaclab_arena.storage.layout import (
    COMMIT_FILE_PATTERN,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    MAX_LIVES,
    commit_file_name,
    job_begun_file_name,
    job_report_file_name,
)
from isaaclab_arena.storage.run_plan import PlanEntry

# The commit record of a job: one JSON line per finished episode, written after the episode's own file is in place.
#
# A line is the truth about its episode. Each process writes a file of its own, one unbuffered write per line, so a
# kill can tear at most the last line of a file, and readers ignore a torn last line.


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


# ``job_report_rank<r>.json``: how a job went on a rank, written when the rank leaves it.
#
# Until then ``job_begun_rank<r>_attempt<n>.json`` says what the rank promises, so that it may die at any moment.

SCHEMA_VERSION = 1

MAX_QUERY_TIMES = 512
"""The most query times that a report holds."""


class ReportedStatus(StrEnum):
    """How a job ended on a rank. ``BEGUN``: it has been built there, and its end is not known yet."""

    BEGUN = "begun"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Reproducible(StrEnum):
    """What running the same job again gives: the same bits, or the same episodes and conditions."""

    BITWISE = "bitwise"
    PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Where the time went until a job's first control step was made; None for what it did not come to.

    All but the first are parts of the job's ``wall_s``, and none is part of another.

    Attributes:
        import_s: Seconds from the start of the process to that of the program: Python and what it imports. 0 for jobs
            after the first of a process, None where nobody knows.
        compile_s: Seconds in which Warp compiled kernels, and loaded those.
        kernel_wait_s: Seconds of waiting while another process of the machine compiled kernels.
        kernel_load_s: Seconds in which Warp loaded kernels that were compiled already.
        build_environment_s: Seconds spent on building the environment, or on finding that it is there, without kernels.
        build_policy_s: The same for the policy.
        first_reset_s: Seconds from there until the first episodes had begun, without kernels.
        first_step_s: Seconds from there until the first control step was made, without kernels.
    """

    import_s: float | None = None
    compile_s: float = 0.0
    kernel_wait_s: float = 0.0
    kernel_load_s: float = 0.0
    build_environment_s: float | None = None
    build_policy_s: float | None = None
    first_reset_s: float | None = None
    first_step_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ServerUsage:
    """What queries took of a policy server; the sum over all queries is what the server did.

    Attributes:
        queries: Queries.
        entries: Batch entries in them.
        calls: Calls of the network; of a call for several queries, each has its share.
        call_entries: Batch entries in those calls, with copies that fill them up; shared out in the same way.
        queue_s: Time from the arrival of a query to the first call for it [s].
        busy_s: Time of the calls [s], shared out in the same way.
        seen_s: Time between the rank's first answer and its last [s].
        seen_busy_s: Time of all calls of the server in that time [s], whoever asked.
        seen_entries: Batch entries that the server answered in that time, whoever asked.
    """

    queries: int = 0
    entries: int = 0
    calls: float = 0.0
    call_entries: float = 0.0
    queue_s: float = 0.0
    busy_s: float = 0.0
    seen_s: float = 0.0
    seen_busy_s: float = 0.0
    seen_entries: int = 0

    def __add__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value - getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class QueryPace:
    """How often a policy is asked about an env slot while the world waits for its answers.

    Attributes:
        steps: Control steps from one query to the next.
        control_dt: Time between two control steps [s].
    """

    steps: int
    control_dt: float

    def queries_per_s(self, lengths: Sequence[int]) -> float | None:
        """Return the queries in a second of robot time, None where there was none.

        Args:
            lengths: Control steps of each episode.
        """
        if not sum(lengths):
            return None
        return sum(-(-length // self.steps) for length in lengths) / (sum(lengths) * self.control_dt)


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """How a job went on one rank.

    Attributes:
        job: Name of the job.
        rank: The rank that ran it.
        attempt: Which start of the program on this run, from 1.
        run: Names the run; None in files of programs that did not say.
        device: Where it simulated.
        status: How it ended.
        started_at: ISO 8601 with time zone.
        ended_at: ISO 8601 with time zone.
        wall_s: Seconds from start to end, the sum of the following.
        build_s: Seconds spent on building environment and policy, kernels included.
        simulate_s: Seconds spent on physics.
        policy_s: Seconds spent in the policy.
        render_s: Seconds spent on images.
        record_s: Seconds spent on recording.
        idle_s: The rest.
        start_up: How the job began; None in files of programs that did not say.
        env_steps: Control steps summed over running env slots.
        pictures_drawn: Pictures drawn for policies, one for each env slot and each term of ``camera_obs``;
            None in files of programs that did not say.
        pictures_looked_at: Pictures at which a policy or an observer said that it would look; None in such files too.
        num_episodes: Episodes planned, once known; None for a job limited by steps.
        cut_episodes: Episodes under way that a step limit or an interruption ended.
        reproducible: What running it again gives, None where the job was never built.
        plan_because: Why that is ``plan`` and not ``bitwise``, in one line; None where it is not.
        remarks: What else the rank has noticed that its numbers do not show, in a line each.
        policy_batch: Env slots that the policy was asked on together, None where that makes no difference.
        policy_server: What the job's queries took of the run's policy server; None without one.
        query_s: How long queries of the policy took, a sample of at most `MAX_QUERY_TIMES` [s]; None for a job without
            latency.
        query_pace: How often its policy is asked; None for a job without latency, and where the world does not wait.
        processor: Model of the processor that it ran on; None in files of programs that did not say.
        device_kind: ``cpu``, or ``cuda`` with the GPU's name; None in files of programs that did not say.
        simulated_by: What the environment says of what simulates it; None where the job was never built, and in files
            of programs that did not say.
        error: What went wrong, in one line.
        traceback_file: File with the whole traceback, relative to the output directory.
        schema_version: Version of this layout.
    """

    job: str
    rank: int
    device: str
    status: ReportedStatus
    started_at: str
    ended_at: str
    wall_s: float
    build_s: float = 0.0
    simulate_s: float = 0.0
    policy_s: float = 0.0
    render_s: float = 0.0
    record_s: float = 0.0
    idle_s: float = 0.0
    start_up: StartUp | None = None
    env_steps: int = 0
    pictures_drawn: int | None = None
    pictures_looked_at: int | None = None
    num_episodes: int | None = None
    cut_episodes: int = 0
    reproducible: Reproducible | None = None
    plan_because: str | None = None
    remarks: tuple[str, ...] = ()
    policy_batch: int | None = None
    policy_server: ServerUsage | None = None
    query_s: tuple[float, ...] | None = None
    query_pace: QueryPace | None = None
    processor: str | None = None
    device_kind: str | None = None
    simulated_by: Mapping[str, str] | None = None
    error: str | None = None
    traceback_file: str | None = None
    attempt: int = 1
    run: str | None = None
    schema_version: int = SCHEMA_VERSION


def failed_report(job: str, error: str, *, rank: int, device: str, attempt: int, run: str | None) -> JobReport:
    """Return the report on a job that has failed after its episodes, or before them: none of its time is known.

    Args:
        job: Name of the job.
        error: What went wrong, in one line, with the way out.
        rank: In whose name it is reported.
        device: That of the rank.
        attempt: Which start of the program it is.
        run: Names the run.
    """
    at = now()
    return JobReport(
        job=job,
        rank=rank,
        device=device,
        status=ReportedStatus.FAILED,
        started_at=at,
        ended_at=at,
        wall_s=0.0,
        error=error,
        attempt=attempt,
        run=run,
    )


def write_job_report(job_directory: Path, report: JobReport) -> Path:
    """Write a report, complete or not at all, beside those that this rank left before; return its path.

    Raises:
        StorageError: If it cannot be written.
    """
    begun = job_directory / job_begun_file_name(report.rank, report.attempt)
    if report.status is ReportedStatus.BEGUN:
        write_text(begun, json_text(report), overwrite=True)
        return begun
    for life in range(MAX_LIVES):
        path = job_directory / job_report_file_name(report.rank, life)
        if not path.exists():
            write_text(path, json_text(report))
            with storage_errors("remove", begun):
                begun.unlink(missing_ok=True)
            return path
    raise StorageError(f"{job_directory} holds {MAX_LIVES} reports of rank {report.rank} already")


def read_job_reports(
    job_directory: Path, job: str, run: str | None = None, *, skip_unreadable: bool = True
) -> tuple[list[JobReport], list[tuple[Path, str]]]:
    """Read what every rank that worked on a job has said of it.

    That a rank has begun counts as long as it has not said how it ended.

    Args:
        job_directory: Directory of the job; it need not exist.
        job: Name of the job.
        run: Names the run, to find files of another one; None to take them all.
        skip_unreadable: Whether a file that the system cannot read is one of those that cannot be read.

    Returns:
        The reports by attempt, rank and time, and each file that cannot be read, with the reason.

    Raises:
        StorageError: If a file cannot be read and is not to be left out.
    """
    reports: list[JobReport] = []
    unread: list[tuple[Path, str]] = []
    for path in sorted([*job_directory.glob(JOB_REPORT_PATTERN), *job_directory.glob(JOB_BEGUN_PATTERN)]):
        try:
            report = read_versioned(path, JobReport, SCHEMA_VERSION)
        except ConfigError as error:
            unread.append((path, str(error)))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                # The rank has ended this moment, and its report is there.
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
    ended = {(each.rank, each.attempt) for each in reports if each.status is not ReportedStatus.BEGUN}
    counted = [
        each
        for each in sorted(reports, key=lambda each: (each.attempt, each.rank, each.started_at))
        if each.status is not ReportedStatus.BEGUN or (each.rank, each.attempt) not in ended
    ]
    return counted, unread


# What the files of a job amount to: the one answer for a resume, for a merge, and for what a merge shows meanwhile.


class JobResultStatus(StrEnum):
    """Where a job stands, by its files.

    ``INTERRUPTED``: it was stopped, or its rank died after it had begun. ``MISSING``: no trace of it. ``SKIPPED``: the
    job file said not to run it.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class JobStanding:
    """Where a job stands.

    Attributes:
        status: In a word.
        planned: How many episodes it should have; None where steps decide, or no rank has said it.
        missing: Indices of its planned episodes that did not finish, without those that its answers do not need.
    """

    status: JobResultStatus
    planned: int | None
    missing: tuple[int, ...]


def job_standing(
    job: PlanEntry,
    finished: Collection[int],
    reports: Sequence[JobReport],
    *,
    needed: int | None = None,
    has_parts: bool = False,
) -> JobStanding:
    """Return where a job stands.

    A job of known length is complete with its last episode. What remains to be said then is what its results promise,
    and each rank has said that when it began. So a rank may die at any moment between its last episode and its report.

    Args:
        job: What was planned.
        finished: Indices of its finished episodes.
        reports: What ranks have said of it.
        needed: How many of its episodes its answers need, None for all.
        has_parts: Whether episodes still have files of their own, which are to go into a dataset.
    """
    said = (report.num_episodes for report in reports if report.num_episodes is not None)
    planned = job.config.num_episodes if job.config.num_episodes is not None else next(said, None)
    last = max((report.attempt for report in reports), default=0)
    ended = {report.status for report in reports if report.attempt == last} - {ReportedStatus.BEGUN}
    if planned is None or not job.is_to_run:
        missing, is_complete = (), ended == {ReportedStatus.COMPLETED}
    else:
        owed = planned if needed is None else min(planned, needed)
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
