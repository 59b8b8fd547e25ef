"""Recover a run's directory after a crash: check every file, repair what is possible, and list what is left to run.

Each job is checked before any of its files is written, so an intact job is not changed. Only what is no file at all is
moved out of the way before. A repair may be interrupted at
any point; the next recovery finishes it and ends in the same state.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.episode_ranges import EpisodeRanges, as_ranges
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.long_work import told
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.json_values import read_versioned
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, JOB_REPORT_PATTERN, job_directory
from isaaclab_arena.storage.recovery.job_diagnosis import Diagnosis, PlannedEpisodes, diagnose
from isaaclab_arena.storage.recovery.job_repair import repair_job, set_aside_no_files, set_job_aside
from isaaclab_arena.storage.recovery.leftovers import remove_temporary_files
from isaaclab_arena.storage.recovery.recorded_copies import read_recordings
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry, read_attempts
from isaaclab_arena.storage.run.commits import CommitLog, read_commits
from isaaclab_arena.storage.run.job_reports import SCHEMA_VERSION, JobReport, ReportedStatus
from isaaclab_arena.storage.run.run_plan import PlanEntry, RunPlan


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The state of a run after its recovery.

    Attributes:
        jobs: Every job of the plan, in order, with the episodes that must not run again.
        complete: Names of the jobs with nothing left to do, not even a report.
        reported: Names of the jobs that owe no report, whether or not episodes of theirs are left.
        notes: What was found and repaired, for the user.
    """

    jobs: tuple[AttemptEntry, ...]
    complete: frozenset[str]
    reported: frozenset[str]
    notes: tuple[str, ...]

    @property
    def left(self) -> tuple[AttemptEntry, ...]:
        """The jobs with something left to do."""
        return tuple(job for job in self.jobs if job.job not in self.complete)


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
    notes = remove_temporary_files(output_directory, plan)
    begun, damaged = read_attempts(output_directory)
    notes += damaged
    jobs, complete, reported = [], set(), set()
    for job in told(plan.jobs, "checking", str(output_directory), unit="jobs"):
        expected = PlannedEpisodes(
            name=job.name,
            seed=job.config.seed,
            num_episodes=job.config.num_episodes,
            config_hash=plan.config_hash,
            retry_errors=retry_errors,
            retries_begun=tuple(_retries_begun(begun, job.name)),
        )
        found = _recover_job(job_directory(output_directory, job.name), job, expected, attempt)
        jobs.append(AttemptEntry(job=job.name, finished=found.finished))
        complete.update({job.name} if found.is_complete else ())
        reported.update({job.name} if found.is_reported else ())
        notes += found.notes
    return Recovery(jobs=tuple(jobs), complete=frozenset(complete), reported=frozenset(reported), notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class _RecoveredJob:
    """The state of a job after its recovery.

    Attributes:
        finished: Episodes that must not run again.
        is_complete: Whether nothing is left to do.
        is_reported: Whether its last attempt says that it ended well.
        notes: What was repaired.
    """

    finished: EpisodeRanges = ()
    is_complete: bool = False
    is_reported: bool = False
    notes: Sequence[str] = ()


def _retries_begun(attempts: Sequence[Attempt], job: str) -> Iterator[tuple[int, EpisodeRanges]]:
    """Yield each attempt that retried a job's errors: its number and the episodes that it did not have to run."""
    for attempt in attempts:
        if attempt.retry_errors:
            yield from ((attempt.number, work.finished) for work in attempt.jobs if work.job == job)


def _recover_job(directory: Path, job: PlanEntry, expected: PlannedEpisodes, attempt: int) -> _RecoveredJob:
    if not job.is_to_run:
        return _RecoveredJob(is_complete=True, is_reported=True)
    set_aside = set_aside_no_files(directory, job.name)
    log, reports = read_commits(directory, job.name, skip_unreadable=False), _read_reports(directory)
    notes = [*log.problems, *_torn_lines(directory)]
    readable = [report for _, report in reports if report is not None]
    damaged_reports = [path for path, report in reports if report is None]
    if expected.num_episodes is None:
        reported = (report.num_episodes for report in readable if report.num_episodes is not None)
        expected = replace(expected, num_episodes=next(reported, None))
    diagnosis = diagnose(expected, log, read_recordings(directory, job.name, log.lines))
    diagnosis.unreadable += [(path, "it is no report") for path in damaged_reports]
    diagnosis.has_stray_lines = bool(notes)
    notes = [*set_aside, *notes]
    ended_well = not damaged_reports and _ended_well(readable, expected.num_episodes)
    is_complete = ended_well and _has_everything(diagnosis, expected, log)
    if _is_limited_by_steps(job, readable) and not is_complete:
        # The episodes of such a job depend on when it ends, so a part of it is useless.
        notes += set_job_aside(directory, job.name, attempt=attempt - 1)
        return _RecoveredJob(notes=notes)
    notes += repair_job(directory, job.name, diagnosis)
    return _RecoveredJob(
        finished=as_ranges(diagnosis.finished), is_complete=is_complete, is_reported=ended_well, notes=notes
    )


def _read_reports(directory: Path) -> list[tuple[Path, JobReport | None]]:
    """Return the reports of a job; None for a file without a report.

    Raises:
        StorageError: If a file cannot be read.
    """
    reports: list[tuple[Path, JobReport | None]] = []
    for path in sorted(directory.glob(JOB_REPORT_PATTERN)):
        try:
            reports.append((path, read_versioned(path, JobReport, SCHEMA_VERSION)))
        except ConfigError:
            reports.append((path, None))
    return reports


def _ended_well(reports: Sequence[JobReport], num_episodes: int | None) -> bool:
    """Whether the last attempt at a job finished, according to its reports."""
    last = max((report.attempt for report in reports), default=0)
    statuses = {report.status for report in reports if report.attempt == last}
    if ReportedStatus.FAILED in statuses or ReportedStatus.COMPLETED not in statuses:
        return False
    # If the episodes are known, one rank may have finished the work of another one that was interrupted.
    return num_episodes is not None or statuses == {ReportedStatus.COMPLETED}


def _has_everything(diagnosis: Diagnosis, expected: PlannedEpisodes, log: CommitLog) -> bool:
    if expected.num_episodes is not None:
        return len(diagnosis.finished) == expected.num_episodes
    return diagnosis.finished >= {line.episode_index for line in log.lines}


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
