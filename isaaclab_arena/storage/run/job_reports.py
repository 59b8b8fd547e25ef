"""``job_report_rank<r>.json``: how a job went on a rank, written when the rank leaves it.

Until then ``job_begun_rank<r>_attempt<n>.json`` says what the rank promises, so that it may die at any moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import (
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    MAX_LIVES,
    job_begun_file_name,
    job_report_file_name,
)

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
