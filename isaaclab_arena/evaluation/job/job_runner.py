"""Runs one job after the other on a rank, and writes a report of each, whatever happens."""

import logging
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import DiskUnusableError
from isaaclab_arena.evaluation.job.consolidations import Consolidations
from isaaclab_arena.evaluation.job.group_building import GroupBuilder
from isaaclab_arena.evaluation.job.job_run import JobFiles, JobRun
from isaaclab_arena.evaluation.job.rank_settings import RankSettings
from isaaclab_arena.evaluation.job.start_up_clock import StartUpClock
from isaaclab_arena.evaluation.plan.episode_supply import EVERYTHING, EpisodeSupply
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.process.left_alone import put_back
from isaaclab_arena.evaluation.process.watchdog import Watchdog
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.layout import job_directory, traceback_file_name
from isaaclab_arena.storage.run.job_reports import JobReport, ReportedStatus, write_job_report

_LOG = logging.getLogger(__name__)


class JobRunner:
    """Runs jobs one after the other on this rank.

    Args:
        settings: What all jobs share.
        stop_requested: Asked before every step; True ends the job under way.
        tell: Is told what a job does before its first control step, in words, and None once that is made.
        consolidations: Puts the episodes of a job of known length into one dataset, and completes its videos, while
            the next job runs; None to do that before `run` returns.
        ended: Is told the report of each job once it is written, also from the thread of ``consolidations``.
    """

    def __init__(
        self,
        settings: RankSettings,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
        tell: Callable[[str | None], None] = lambda _: None,
        consolidations: Consolidations | None = None,
        ended: Callable[[JobReport], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._stop_requested = stop_requested
        self._consolidations = consolidations
        self._ended = ended
        self._builder = GroupBuilder(settings)
        self._open: dict[str, tuple[Job, JobRun]] = {}
        self._import_s = settings.import_s
        self._watchdog = Watchdog(settings.output_directory / "logs" / f"rank{settings.rank}.watchdog.txt")

    def run(self, job: Job, observers: Sequence[Observer] = (), *, supply: EpisodeSupply = EVERYTHING) -> JobReport:
        """Run one job, or this rank's part of it, and write a report; a job that takes turns is run turn by turn.

        The reports of jobs that take turns are written when the next other job begins.

        A job that fails is reported with its traceback; nothing it raises gets out, so the next job can run. With
        ``consolidations`` the report is written later, and may yet say that the dataset could not be made.

        Args:
            job: What to run.
            observers: Watch the job, beside its recorder.
            supply: Which of its episodes to run.

        Raises:
            DiskUnusableError: If the disk is full; the next job would fail as well, so nothing is made of this one.
                With ``consolidations`` also if that was so for the job before.
            ClaimsLostError: The same holds.
            StorageError: If the report cannot be written, or that of the job before.
        """
        if self._consolidations is not None:
            # The same job again, as happens where ranks take work over, writes where its episodes are taken from.
            self._consolidations.wait(job.config.name)
        name = job.config.name
        taking_turns = self._settings.turns.get(name, ())
        self._end_turns(of_all_but=taking_turns)
        directory = self._directory(name)
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)
        _, job_run = self._open.pop(name, (job, None))
        if job_run is None:
            job_run = self._begun(job)
        else:
            self._tell(None)
        failure = self._failure(partial(job_run.run, directory, supply, observers), name)
        if failure is None and taking_turns and not self._stop_requested():
            self._open[name] = (job, job_run)
            job_run.rest()
            return job_run.report()
        return self._end(job, job_run, failure)

    def close(self) -> None:
        """Close the environment and the policy in use, and wait until the last job has its dataset and its report.

        Jobs that take turns have had their last one.

        Raises:
            DiskUnusableError: See `run`.
            StorageError: See `run`.
        """
        try:
            self._end_turns()
            self._builder.clear()
        finally:
            if self._consolidations is not None:
                self._consolidations.close()

    def _directory(self, name: str) -> Path:
        return job_directory(self._settings.output_directory, name)

    def _begun(self, job: Job) -> JobRun:
        start_up = StartUpClock(job.config.name, import_s=self._import_s, tell=self._tell)
        # Jobs after the first find everything imported.
        self._import_s = None if self._import_s is None else 0.0
        return JobRun(job, self._settings, self._builder, self._watchdog, self._stop_requested, start_up)

    def _end_turns(self, of_all_but: Collection[str] = ()) -> None:
        """End the jobs that have had their last turn."""
        for name in [name for name in self._open if name not in of_all_but]:
            self._end(*self._open.pop(name), failure=None)

    def _end(self, job: Job, job_run: JobRun, failure: tuple[str, str] | None) -> JobReport:
        """Finish a job's files and write its report, or begin to."""
        name = job.config.name
        is_cut_short = name in self._settings.turns and self._stop_requested()
        if failure is None:
            failure = self._failure(partial(job_run.end, is_whole=not is_cut_short), name)
        error, traceback_file = failure or (None, None)
        report = job_run.report(error=error, traceback_file=traceback_file)
        if is_cut_short and error is None:
            report = replace(report, status=ReportedStatus.INTERRUPTED)
        # Not with `job_run`, whose environment and policy would stay in memory beside those of the next job.
        return self._finish_or_begin_to(job, self._directory(name), job_run.unfinished, report)

    def _failure(self, act: Callable[[], object], name: str) -> tuple[str, str] | None:
        """Do something for a job; return what went wrong, in one line, and the file with the traceback, or None."""
        try:
            with put_back():
                act()
        except (DiskUnusableError, ClaimsLostError):
            # Neither is the job's fault, and the next job would meet it too.
            raise
        except BaseException as raised:  # noqa: BLE001  a failed job must not take the next one down
            failure = describe(raised), self._write_traceback(name)
            # What took part in a failure may be in any state, and the next job deserves better.
            self._builder.clear()
            return failure
        return None

    def _finish_or_begin_to(self, job: Job, directory: Path, files: JobFiles | None, report: JobReport) -> JobReport:
        finish = partial(self._finish, job, directory, files, report)
        # That a job of unknown length has ended is known from its report alone, before other ranks hear that it has.
        is_known = job.config.num_episodes is not None
        if self._consolidations is None or files is None or not is_known:
            return finish()
        self._consolidations.begin(job.config.name, finish)
        return report

    def _finish(self, job: Job, directory: Path, files: JobFiles | None, report: JobReport) -> JobReport:
        """Finish the files of a job, and write its report."""
        if files is not None:
            begin_s = time.perf_counter()
            try:
                files.finish()
            except DiskUnusableError:
                raise
            except BaseException as raised:  # noqa: BLE001  a failed job must not take the next one down
                traceback_file = self._write_traceback(job.config.name)
                report = replace(
                    report, status=ReportedStatus.FAILED, error=describe(raised), traceback_file=traceback_file
                )
            took_s = time.perf_counter() - begin_s
            report = replace(report, ended_at=now(), wall_s=report.wall_s + took_s, record_s=report.record_s + took_s)
        write_job_report(directory, report)
        self._ended(report)
        return report

    def _write_traceback(self, name: str) -> str:
        path = self._directory(name) / traceback_file_name(self._settings.rank, self._settings.attempt)
        with storage_errors("write", path):
            path.write_text(plain_text(traceback.format_exc(), keep_lines=True), encoding="utf-8")
        _LOG.error("job '%s' failed; its traceback is in %s", name, path)
        _LOG.debug("%s", traceback.format_exc())
        return str(path.relative_to(self._settings.output_directory))


def describe(error: BaseException) -> str:
    """Return an exception in one line that can be written anywhere, whatever it holds."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  an exception of a user's that cannot even say what is wrong
        message = "it cannot say why"
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return (line.splitlines() or [""])[0].encode("utf-8", "backslashreplace").decode("utf-8")
