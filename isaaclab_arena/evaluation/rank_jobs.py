"""Runs the jobs that a rank takes from its queue, one after the other, and says how they go."""

import logging
from collections.abc import Callable

from isaaclab_arena.evaluation.heartbeat.rank_status import RankState
from isaaclab_arena.evaluation.heartbeat.status_publisher import StatusPublisher
from isaaclab_arena.evaluation.job.consolidations import Consolidations
from isaaclab_arena.evaluation.job.job_runner import JobRunner
from isaaclab_arena.evaluation.job.rank_settings import RankSettings
from isaaclab_arena.evaluation.progress import ProgressObserver
from isaaclab_arena.evaluation.scheduling.job_queue import AssignedJob
from isaaclab_arena.evaluation.scheduling.rank_work import RankWork
from isaaclab_arena.logs import heard_by
from isaaclab_arena.storage.run.job_reports import JobReport, ReportedStatus

_LOG = logging.getLogger(__name__)


class RankJobs:
    """The jobs of one rank.

    Args:
        work: What the rank has to do.
        settings: What all its jobs share.
        stop_requested: Whether this rank was told to stop.
        fail_fast: Whether the first job that fails is the rank's last.
        asks_questions: Whether answers may end jobs early.
        begins: Is told the name of each job before its first file is written.
    """

    def __init__(
        self,
        work: RankWork,
        settings: RankSettings,
        *,
        stop_requested: Callable[[], bool],
        fail_fast: bool = False,
        asks_questions: bool = False,
        begins: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._work = work
        self._settings = settings
        self._stop_requested = stop_requested
        self._fail_fast = fail_fast
        self._asks_questions = asks_questions
        self._begins = begins

    def run(self, publisher: StatusPublisher) -> RankState:
        """Run the jobs until nothing is left for this rank, say how that ended, and return it.

        Args:
            publisher: Publishes the status of this rank.

        Raises:
            StorageError: If a file of the run cannot be written.
        """
        queue, runner = self._work.queue, self._new_runner(publisher)
        state = RankState.FINISHED
        try:
            while not self._stop_requested() and (assigned := queue.next_job()) is not None:
                failed = self._run_one(assigned, runner, publisher)
                if failed and self._fail_fast:
                    state = RankState.FAILED
                    break
        finally:
            runner.close()
        if self._stop_requested():
            state = RankState.INTERRUPTED
        elif self._asks_questions:
            publisher.leave_the_rest()
        publisher.set_state(state)
        return state

    def _run_one(self, assigned: AssignedJob, runner: JobRunner, publisher: StatusPublisher) -> bool:
        """Run a job, or this rank's part of it, and return whether it failed."""
        job = assigned.job
        self._begins(job.config.name)
        publisher.start_job(job.config.name, num_episodes=self._episodes_of_total(assigned))
        observers = [ProgressObserver(publisher), *assigned.observers, *self._work.observers]
        with heard_by(publisher.hear):
            report = runner.run(job, observers, supply=assigned.supply)
        failed = report.status is ReportedStatus.FAILED or self._work.fails(job)
        if report.status is not ReportedStatus.INTERRUPTED:
            publisher.leave_job()
            self._work.queue.job_ended(job, failed=failed)
        return failed

    def _episodes_of_total(self, assigned: AssignedJob) -> int | None:
        return None if self._work.others_may_finish_jobs else assigned.num_episodes or 0

    def _new_runner(self, publisher: StatusPublisher) -> JobRunner:
        def ended(report: JobReport) -> None:
            if report.status is not ReportedStatus.INTERRUPTED:
                publisher.finish_job(failed=report.status is ReportedStatus.FAILED)
            _LOG.debug("job '%s' %s after %.1f s", report.job, report.status, report.wall_s)

        return JobRunner(
            self._settings,
            stop_requested=self._stop_requested,
            tell=publisher.prepare,
            # A run that is to end at its first failure has to know of it before the next job begins.
            consolidations=None if self._fail_fast else Consolidations(publisher.hear_of),
            ended=ended,
        )
