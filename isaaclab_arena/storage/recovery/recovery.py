"""Recover a run's directory after a crash: check every file, repair what is possible, and list what is left to run.

Each job is checked before any of its files is written, so an intact job is not changed. Only what is no file at all is
moved out of the way before. A repair may be interrupted at
any point; the next recovery finishes it and ends in the same state.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.episode_ranges import EpisodeRanges, as_ranges, of_ranges
from isaaclab_arena.logs import told
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, job_directory
from isaaclab_arena.storage.recovery.job_diagnosis import PlannedEpisodes, diagnose
from isaaclab_arena.storage.recovery.job_repair import (
    repair_job,
    set_aside_no_files,
    set_aside_no_files_of_run,
    set_job_aside,
)
from isaaclab_arena.storage.recovery.leftovers import remove_temporary_files
from isaaclab_arena.storage.recovery.recorded_copies import read_recordings
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry, read_attempts
from isaaclab_arena.storage.run.commits import read_commits
from isaaclab_arena.storage.run.job_reports import JobReport, read_job_reports
from isaaclab_arena.storage.run.job_standing import JobResultStatus, job_standing
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan


@dataclass(frozen=True, kw_only=True)
class RecoveredJob:
    """The state of a job after its recovery.

    Attributes:
        job: What was planned.
        finished: Episodes that must not run again.
        reports: What ranks have said of it.
        is_whole: Whether no episode is lost that its commit lines name.
        last_attempt: The last start of the program that worked on it, as far as its files say.
    """

    job: PlanEntry
    finished: EpisodeRanges = ()
    reports: Sequence[JobReport] = ()
    is_whole: bool = True
    last_attempt: int = 0

    def left(self, needed: int | None = None) -> AttemptEntry | None:
        """Return what is left to do, None for nothing, not even a report.

        Args:
            needed: How many of its episodes its answers need, None for all. A job that has them owes its report alone.
        """
        standing = job_standing(self.job, of_ranges(self.finished), self.reports, needed=needed)
        is_lacking = standing.planned is None and not self.is_whole
        if standing.status in (JobResultStatus.SKIPPED, JobResultStatus.COMPLETED) and not is_lacking:
            return None
        is_decided = needed is not None and standing.planned is not None and not standing.missing
        finished = as_ranges(range(standing.planned or 0)) if is_decided else self.finished
        return AttemptEntry(job=self.job.name, finished=finished)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The state of a run after its recovery.

    Attributes:
        jobs: Every job of the plan, in order.
        notes: What was found and repaired, for the user.
    """

    jobs: tuple[RecoveredJob, ...]
    notes: tuple[str, ...]

    def left(self, needed: Callable[[str], int | None] = lambda _: None) -> tuple[AttemptEntry, ...]:
        """Return the jobs with something left to do.

        Args:
            needed: How many episodes of a job that lacks something are needed, by its name; None for all.
        """
        left = (job.left(needed(job.job.name)) for job in self.jobs if job.left() is not None)
        return tuple(entry for entry in left if entry is not None)


def recover_run(output_directory: Path, plan: RunPlan, *, retry_errors: bool, attempt: int) -> Recovery:
    """Check every file of a run, repair what is possible, and return what is left to do.

    No other process may work on the run. Files that may hold a user's data are never deleted, but moved into
    ``set_aside/`` of the job's directory.

    Args:
        output_directory: Directory of the run.
        plan: Its plan.
        retry_errors: Whether episodes that ended in an error run again.
        attempt: Number of the attempt that is about to begin.

    Raises:
        StorageError: If a file cannot be read or written, for example for lack of permission or space.
    """
    notes = set_aside_no_files_of_run(output_directory)
    notes += remove_temporary_files(output_directory, plan)
    begun, damaged = read_attempts(output_directory, plan.run_id)
    notes += damaged
    jobs = []
    for job in told(plan.jobs, "checking", str(output_directory), unit="jobs"):
        expected = PlannedEpisodes(
            name=job.name,
            seed=job.config.seed,
            num_episodes=job.config.num_episodes,
            config_hash=plan.config_hash,
            retry_errors=retry_errors,
            retries_begun=tuple(_retries_begun(begun, job.name)),
        )
        directory = job_directory(output_directory, job.name)
        recovered, done = _recover_job(directory, job, expected, attempt=attempt, run=plan.run_id)
        jobs.append(recovered)
        notes += done
    return Recovery(jobs=tuple(jobs), notes=tuple(notes))


def _retries_begun(attempts: Sequence[Attempt], job: str) -> Iterator[tuple[int, EpisodeRanges]]:
    """Yield each attempt that retried a job's errors: its number and the episodes that it did not have to run."""
    for attempt in attempts:
        if attempt.retry_errors:
            yield from ((attempt.number, work.finished) for work in attempt.jobs if work.job == job)


def _recover_job(
    directory: Path, job: PlanEntry, expected: PlannedEpisodes, *, attempt: int, run: str
) -> tuple[RecoveredJob, list[str]]:
    """Repair the files of a job, and return its state and what was done, for people."""
    if not job.is_to_run:
        return RecoveredJob(job=job), []
    set_aside = set_aside_no_files(directory, job.name)
    log = read_commits(directory, job.name, seed=job.config.seed, skip_unreadable=False)
    reports, unread = read_job_reports(directory, job.name, run, skip_unreadable=False)
    notes = [*log.problems, *_torn_lines(directory)]
    if expected.num_episodes is None:
        said = (report.num_episodes for report in reports if report.num_episodes is not None)
        expected = replace(expected, num_episodes=next(said, None))
    diagnosis = diagnose(expected, log, read_recordings(directory, job.name, log.lines))
    diagnosis.unreadable += unread
    diagnosis.has_stray_lines = bool(notes)
    notes = [*set_aside, *notes]
    recovered = RecoveredJob(
        job=job,
        finished=as_ranges(diagnosis.finished),
        reports=reports,
        is_whole=diagnosis.finished >= {line.episode_index for line in log.lines},
        last_attempt=max((each.attempt for each in (*log.lines, *reports)), default=0),
    )
    if _is_limited_by_steps(job, reports) and recovered.left() is not None:
        # The episodes of such a job depend on when it ends, so a part of it is useless.
        return RecoveredJob(job=job), [*notes, *set_job_aside(directory, job.name, attempt=attempt - 1)]
    return recovered, [*notes, *repair_job(directory, job.name, diagnosis, seed=job.config.seed)]


def _is_limited_by_steps(job: PlanEntry, reports: Sequence[JobReport]) -> bool:
    if job.config.num_steps is not None or job.config.num_episodes is not None:
        return job.config.num_episodes is None
    # Its policy decides the number of episodes. After its first step a job reports that number, unless steps limit it.
    return any(report.num_episodes is None and report.env_steps > 0 for report in reports)


def _torn_lines(directory: Path) -> Iterator[str]:
    for path in sorted(directory.glob(COMMIT_FILE_PATTERN)):
        with storage_errors("read", path), path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                continue
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                yield f"{path}: its last line was torn when its process died; that episode was not committed"
