"""The reports of ranks, and the conclusions from a run's files: jobs' standings, fresh tables, a verification."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.paths import now
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_text, read_json, read_versioned
from isaaclab_arena.storage.ledger import MAX_LIVES, SCHEMA_VERSION, Attempt, PlanEntry

# ``job_report_rank<r>.json``: the result of a job on a rank, written when the rank leaves the job.
#
# Until then ``job_begun_rank<r>_attempt<n>.json`` states what the rank guarantees, so the rank may die at any moment.

_LOG = logging.getLogger(__name__)
MAX_QUERY_TIMES = 512  # the most query times that a report holds


class ReportedStatus(StrEnum):
    """The end of a job on a rank. ``BEGUN``: the job is built there and has not ended yet."""

    BEGUN = "begun"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Reproducible(StrEnum):
    """The promise of a rerun of the job: the same bits, or the same episodes and conditions."""

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


def write_job_report(job_directory: Path, report: JobReport) -> Path:
    """Write a report atomically beside earlier reports of this rank, and return its path."""
    begun = job_directory / f"job_begun_rank{report.rank}_attempt{report.attempt}.json"
    if report.status is ReportedStatus.BEGUN:
        write_text(begun, json_text(report), overwrite=True)
        return begun
    # The report replaces the begun file only after it is in place: a kill in between leaves both, not neither.
    for life in range(MAX_LIVES):
        path = job_directory / f"job_report_rank{report.rank}{f'_life{life}' if life else ''}.json"
        if not path.exists():
            write_text(path, json_text(report))
            with storage_errors("remove", begun):
                begun.unlink(missing_ok=True)
            return path
    raise StorageError(f"{job_directory} holds {MAX_LIVES} reports of rank {report.rank} already")


def write_failed_report(job_directory: Path, job: str, error: str, attempt: Attempt, rank: int) -> None:
    """Log and report a job that failed outside its episodes; its times are unknown. `error` is one line."""
    _LOG.error("job '%s' has failed: %s", job, error)
    at, device = now(), attempt.devices[rank]
    times: dict[str, Any] = {"started_at": at, "ended_at": at, "wall_s": 0.0}
    where: dict[str, Any] = {"rank": rank, "device": device, "attempt": attempt.number, "run": attempt.run}
    write_job_report(job_directory, JobReport(job=job, status=ReportedStatus.FAILED, error=error, **where, **times))


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


def sizes_of_sources(output_directory: Path) -> dict[str, int]:
    """Return the size of each commit file and report of a run [bytes]."""
    # These files only grow, so equal sizes mean equal files. Modification times are not compared: clocks are set back.
    patterns, sizes = (layout.COMMIT_FILE_PATTERN, layout.JOB_REPORT_PATTERN, layout.JOB_BEGUN_PATTERN), {}
    for directory in _entries(output_directory):
        try:
            is_directory = directory.is_dir()
        except OSError:
            # A link in a loop.
            is_directory = False
        for file in _entries(directory) if is_directory else ():
            if any(fnmatchcase(file.name, pattern) for pattern in patterns):
                sizes[f"{directory.name}/{file.name}"] = file.stat(follow_symlinks=False).st_size
    return dict(sorted(sizes.items()))


def _entries(directory: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    # A run has as many directories as jobs, and waiting ranks scan them: `Path` would be too slow.
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


RESULTS_FILE = "results.json"
"""The table that is written last."""


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since."""
    try:
        document = read_json(output_directory / RESULTS_FILE)
    except StorageError:
        return False
    return isinstance(document, dict) and document.get("sources") == sizes_of_sources(output_directory)


# ``verification.json``: the result of the last ``isaaclab-arena verify`` on a run.


@dataclass(frozen=True, kw_only=True)
class EpisodeVerification:
    """The result of one episode's rerun."""

    job: str
    episode_index: int
    is_same: bool  # no compared value differs
    is_bitwise: bool  # the same, and its recording was compared to the last bit
    verdict: str  # in words, such as ``differs first at control step 17: states/...``


@dataclass(frozen=True, kw_only=True)
class RunVerification:
    """The result of a verification."""

    verified_at: str  # start, ISO 8601 with time zone
    sources: Mapping[str, int]  # commit files and reports at that time, with their sizes [bytes]
    num_episodes: int  # finished episodes whose files were checked
    problems: tuple[str, ...]  # defects of the run's files
    episodes: tuple[EpisodeVerification, ...]  # episodes that ran again
    is_sound: bool  # the files are whole and no episode differs
    schema_version: int = SCHEMA_VERSION

    def in_words(self) -> str:
        """Return the result as one sentence."""
        findings = [f"the files of {self.num_episodes:,} episodes are whole"]
        if self.problems:
            first, *others = self.problems
            findings = [f"wrong with the files: {first}" + (f", and {len(others)} more" if others else "")]
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            findings.append("no episode ran again")
        again, most = f"{len(bitwise)} of {len(self.episodes)} episodes ran again bitwise the same", 12
        for said, episodes in ((again, bitwise), (f"{len(ended)} ended the same", ended)):
            by_job: dict[str, list[str]] = {}
            for each in episodes[:most]:
                by_job.setdefault(each.job, []).append(str(each.episode_index))
            named = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
            if episodes:
                findings.append(f"{said} ({'; '.join([*named, *(['…'] if len(episodes) > most else [])])})")
        findings += [f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same]
        return "; ".join(findings)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json`` atomically, over an earlier one."""
    write_text(output_directory / layout.VERIFICATION_FILE, json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return the last verification, None if the run was never verified. ConfigError if the file is damaged."""
    path = output_directory / layout.VERIFICATION_FILE
    return read_versioned(path, RunVerification, SCHEMA_VERSION) if path.is_file() else None
