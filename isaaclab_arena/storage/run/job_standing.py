"""What the files of a job amount to: the one answer for a resume, for a merge, and for what a merge shows meanwhile."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from isaaclab_arena.storage.run.job_reports import JobReport, ReportedStatus
from isaaclab_arena.storage.run.run_plan import PlanEntry


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
