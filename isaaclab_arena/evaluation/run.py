"""One rank's part of a run: start up, run its jobs, and on one rank merge the results."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from isaaclab_arena.config.schema import PolicyServerConfig
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices.determinism import calculate_deterministically
from isaaclab_arena.distributed.launching.launcher_messages import leave_last_words
from isaaclab_arena.distributed.process import die_with_parent, limit_threads
from isaaclab_arena.distributed.process_group import initialise
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ArenaError, DiskUnusableError
from isaaclab_arena.evaluation.finish import Ending, consolidate_what_others_left, merge_and_show, write_live_report
from isaaclab_arena.evaluation.heartbeat.rank_status import RankState, RankStatus
from isaaclab_arena.evaluation.heartbeat.rank_watch import lowest_live_rank, wait_for_ranks
from isaaclab_arena.evaluation.heartbeat.status_publisher import StatusPublisher
from isaaclab_arena.evaluation.job.consolidations import Consolidations
from isaaclab_arena.evaluation.job.job_runner import JobRunner
from isaaclab_arena.evaluation.job.rank_settings import rank_settings
from isaaclab_arena.evaluation.nodes.message_store import MessageStore
from isaaclab_arena.evaluation.nodes.result_sync import ResultSync
from isaaclab_arena.evaluation.plan.condition_sets import check_saved_earlier, save_conditions
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.evaluation.process.interruption import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.progress import ProgressDisplay, ProgressObserver
from isaaclab_arena.evaluation.resume_command import how_to_go_on
from isaaclab_arena.evaluation.scheduling.job_queue import AssignedJob
from isaaclab_arena.evaluation.scheduling.rank_work import work_of_rank
from isaaclab_arena.evaluation.startup.policy_servers import running_policy_servers
from isaaclab_arena.evaluation.startup.settled_backends import with_settled_backends
from isaaclab_arena.evaluation.startup.start_up import StartedRun, start_run
from isaaclab_arena.logs import log_file
from isaaclab_arena.long_work import heard_by
from isaaclab_arena.registry import imported
from isaaclab_arena.report.live import LiveReport
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.job_reports import JobReport, ReportedStatus
from isaaclab_arena.tracking.trackers import check_trackers

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.2
_LIVE_TRACKING = "isaaclab_arena.tracking.live:LiveTracking"
"""As text, because it loads pandas, which takes half a second."""


def execute(request: RunRequest, context: DistributedContext) -> int:
    """Run the jobs that fall to this rank and, on the rank that merges, write and show the results.

    Returns:
        The exit code: 0 if every job of the run completed, 1 if not, 130 or 143 if interrupted. A rank other than the
        one that merges returns 0 though jobs of its failed: torchrun would take anything else for a death, and end
        the ranks that still work.

    Raises:
        ConfigError: If the ranks read different jobs, or the output directory cannot be used.
        DistributedError: If the ranks do not find each other.
        StorageError: If a file of the run cannot be written. A full disk ends the run at once: jobs after it would
            fail too, one by one, and would be called failed.
    """
    if context.launched_by_torchrun:
        die_with_parent()
    check_trackers(request.options.tracking, key="tracking")
    limit_threads(request.options.torch_threads)
    if request.options.deterministic:
        calculate_deterministically()
    with initialise(context, process_group=request.options.process_group) as ranks:
        return execute_among(ranks, request, conduct=RunConduct(is_whole_program=True, writes_report=True)).exit_code


@dataclass(frozen=True, kw_only=True)
class RunConduct:
    """What a run does besides its results, as the whole of a program or as a part of one.

    Attributes:
        is_whole_program: Whether the ranks do nothing else: then the run's last words, which say what to type, are the
            program's.
        shows_progress: Whether progress is shown on stderr.
        shows_results: Whether the table is shown on stdout.
        writes_report: Whether the page of the run is written, where no option says otherwise.
        listen: Listens for signals that ask to stop, from the plan to the tables.
    """

    is_whole_program: bool = False
    shows_progress: bool = True
    shows_results: bool = True
    writes_report: bool = False
    listen: Callable[[], AbstractContextManager[Interruption]] = watch_for_interruption


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended on one rank.

    Attributes:
        exit_code: See `execute`.
        output_directory: Where this rank has written.
        signal_number: The signal that ended it early, None if none did.
    """

    exit_code: int
    output_directory: Path
    signal_number: int | None = None


def execute_among(ranks: Ranks, request: RunRequest, *, conduct: RunConduct | None = None) -> RunOutcome:
    """Run the jobs on ranks that have found each other already, as one of several things that they do together.

    Args:
        ranks: All of them, within a name that no other run of theirs has; see `Ranks.within`.
        request: What is to be done, the same on every rank.
        conduct: What the run does besides.

    Returns:
        How it ended; see `execute` for what is raised.
    """
    context, conduct = ranks.context, conduct or RunConduct()
    started = start_run(request, context, ranks)
    # Not before: while ranks wait for each other, a signal may end them as it always does, and at once.
    with started.lock, conduct.listen() as interruption:
        if started.attempt is None:
            code = _finished_run(request, started.output_directory, conduct) if context.is_rank_zero else 0
            return RunOutcome(exit_code=code, output_directory=started.output_directory)
        request = replace(request, jobs=with_settled_backends(request.jobs, started.attempt))
        try:
            with log_file(started.output_directory / "logs" / f"rank{context.rank}.log", context.rank):
                result_sync = ResultSync(
                    MessageStore(ranks.store("messages")),
                    rank=context.rank,
                    directories=started.directories,
                    output_directory=started.output_directory,
                    run_id=started.attempt.run_id,
                    jobs=[job.name for job in started.plan.jobs],
                )
                run = _RankRun(request, context, started, started.attempt, interruption, result_sync, conduct)
                return RunOutcome(
                    exit_code=run.execute(ranks),
                    output_directory=started.output_directory,
                    signal_number=interruption.signal_number,
                )
        except DiskUnusableError as error:
            raise DiskUnusableError(f"{error}; the run stops: make room, then go on with --resume") from error


class _RankRun:
    """One rank's part of a run."""

    def __init__(
        self,
        request: RunRequest,
        context: DistributedContext,
        started: StartedRun,
        attempt: Attempt,
        interruption: Interruption,
        result_sync: ResultSync,
        conduct: RunConduct,
    ) -> None:
        self._request = request
        self._context = context
        self._started = started
        self._attempt = attempt
        self._conduct = conduct
        self._output_directory = started.output_directory
        self._interruption = interruption
        self._how_to_go_on = how_to_go_on(request, context, started.output_directory)
        self._save_conditions = _saving_conditions(request, started.output_directory)
        self._result_sync = result_sync
        self._watch = result_sync.watch
        self._work = work_of_rank(
            request,
            attempt,
            output_directory=self._output_directory,
            rank=context.rank,
            stop_requested=interruption.stop_requested,
        )

    def execute(self, ranks: Ranks) -> int:
        """Run what this rank has to do, beside the policy servers that are its to run, and return the exit code."""
        to_run = {work.job for work in self._attempt.jobs}
        with running_policy_servers(
            self._request.jobs, to_run, self._request.options, ranks, self._output_directory
        ) as servers:
            return self._execute(servers)

    def _execute(self, policy_servers: Mapping[PolicyServerConfig, ServerAddress]) -> int:
        status = RankStatus.of_this_process(
            rank=self._context.rank,
            run_id=self._attempt.run_id,
            jobs_total=self._work.num_jobs,
            episodes_total=self._work.num_episodes,
        )
        with self._result_sync, self._tracking(), StatusPublisher(self._output_directory, status) as publisher:
            with self._display(), self._live_report():
                state = self._run_jobs(self._new_runner(publisher, policy_servers), publisher)
                merges = self._is_the_one_to_merge(state, heard=publisher.is_heard)
            if self._conduct.is_whole_program and state is RankState.FAILED:
                leave_last_words(f"a job failed on rank {self._context.rank}, and --fail_fast ends the run")
            code = self._merge() if merges else int(state is RankState.FAILED)
        return self._interruption.exit_code or code

    def _display(self) -> AbstractContextManager[object]:
        """Return the display of all ranks, which only rank 0 has."""
        if not self._context.is_rank_zero:
            return nullcontext()
        _LOG.info("writing to %s", self._output_directory)
        if not self._conduct.shows_progress:
            return nullcontext()
        return ProgressDisplay(self._watch.look)

    def _tracking(self) -> AbstractContextManager[object]:
        """Return what logs the results of all ranks elsewhere too, which only rank 0 does."""
        names = self._request.options.tracking
        if not names or not self._context.is_rank_zero:
            return nullcontext()
        return imported(_LIVE_TRACKING)(self._output_directory, self._started.plan, names)

    def _live_report(self) -> AbstractContextManager[object]:
        """Return what writes the page of the run while it goes, which only rank 0 does."""
        if not self._context.is_rank_zero or not _writes_report(self._request, self._conduct):
            return nullcontext()
        return LiveReport(partial(write_live_report, self._output_directory))

    def _run_jobs(self, runner: JobRunner, publisher: StatusPublisher) -> RankState:
        """Run this rank's jobs, say how it ended, and return that."""
        queue = self._work.queue
        state = RankState.FINISHED
        try:
            while not self._interruption.stop_requested() and (assigned := queue.next_job()) is not None:
                job = assigned.job
                self._result_sync.follow(job.config.name)
                publisher.start_job(job.config.name, num_episodes=self._episodes_of_total(assigned))
                observers = [ProgressObserver(publisher), *assigned.observers]
                with heard_by(publisher.hear):
                    report = runner.run(job, observers, supply=assigned.supply)
                failed = report.status is ReportedStatus.FAILED
                if report.status is not ReportedStatus.INTERRUPTED:
                    publisher.leave_job()
                    queue.job_ended(job, failed=failed)
                if failed and self._request.options.fail_fast:
                    state = RankState.FAILED
                    break
        finally:
            runner.close()
        if self._interruption.stop_requested():
            state = RankState.INTERRUPTED
        elif self._request.questions:
            publisher.leave_the_rest()
        publisher.set_state(state)
        return state

    def _episodes_of_total(self, assigned: AssignedJob) -> int | None:
        return None if self._work.others_may_finish_jobs else assigned.num_episodes or 0

    def _new_runner(
        self, publisher: StatusPublisher, policy_servers: Mapping[PolicyServerConfig, ServerAddress]
    ) -> JobRunner:
        settings = rank_settings(
            self._request.options,
            self._context,
            output_directory=self._output_directory,
            attempt=self._attempt,
            # The plan's hash, not the request's: in a deterministic run they may differ in num_envs.
            config_hash=self._started.plan.config_hash,
            questions=self._request.questions,
            import_s=self._request.import_s,
        )
        settings = replace(settings, policy_servers=policy_servers)

        def ended(report: JobReport) -> None:
            if report.status is not ReportedStatus.INTERRUPTED:
                publisher.finish_job(failed=report.status is ReportedStatus.FAILED)
            _LOG.debug("job '%s' %s after %.1f s", report.job, report.status, report.wall_s)

        return JobRunner(
            settings,
            stop_requested=self._interruption.stop_requested,
            tell=publisher.prepare,
            # A run that is to end at its first failure has to know of it before the next job begins.
            consolidations=None if self._request.options.fail_fast else Consolidations(publisher.hear_of),
            ended=ended,
        )

    def _is_the_one_to_merge(self, state: RankState, *, heard: bool) -> bool:
        """Wait until no rank works any more; return whether this rank has to merge.

        That is rank 0. The others stay until it has gone; if it left no table, or one that lacks what was written
        since, the lowest of those that write in the same directory takes its place. A rank that stops at its first
        failure does not wait: its exit is what makes the launcher end the others.
        """
        rank = self._context.rank
        if state is RankState.FAILED:
            alone = not any(report.alive for report in self._result_sync.neighbours() if report.rank != rank)
            return alone and not self._result_sync.is_away
        while self._result_sync.is_away:
            if self._interruption.stop_requested() or not self._result_sync.rank_zero_is_there():
                return False
            time.sleep(_POLL_INTERVAL_S)
        while True:
            reports = self._result_sync.neighbours()
            if not reports[0].alive and tables_are_current(self._output_directory):
                return False
            lowest = lowest_live_rank(reports)
            if lowest is None or lowest >= rank:
                wait_for_ranks(
                    self._watch,
                    own_rank=rank,
                    stop_requested=self._interruption.stop_requested,
                    stalled_after_s=self._work.stalled_after_s,
                )
                return True
            if not heard:
                # The others wait for this rank to say that it has finished. It cannot, so it says so by leaving.
                return False
            time.sleep(_POLL_INTERVAL_S)

    def _merge(self) -> int:
        """Write the tables from what is on disk, show them if that is wanted, and return the exit code."""
        self._result_sync.receive()
        if self._work.others_may_finish_jobs:
            consolidate_what_others_left(self._started.plan, self._output_directory)
        ending = Ending(
            before_showing=self._save_conditions,
            how_to_go_on=self._how_to_go_on if self._conduct.is_whole_program else None,
            shows=self._conduct.shows_results,
            writes_report=_writes_report(self._request, self._conduct),
        )
        return merge_and_show(self._output_directory, ending)


def _finished_run(request: RunRequest, output_directory: Path, conduct: RunConduct) -> int:
    if request.options.video_options().wanted:
        _LOG.warning("no episode runs, so none is filmed")
    ending = Ending(
        before_showing=_saving_conditions(request, output_directory),
        shows=conduct.shows_results,
        writes_report=_writes_report(request, conduct),
    )
    return merge_and_show(output_directory, ending, is_finished=True)


def _writes_report(request: RunRequest, conduct: RunConduct) -> bool:
    return conduct.writes_report and not request.options.no_report


def _saving_conditions(request: RunRequest, output_directory: Path) -> Callable[[], None]:
    """Return what saves the conditions at the end, where that is wanted.

    Raises:
        ConfigError: If a run that goes on would write over what is not its own.
    """
    options = request.options
    if options.save_conditions is None:
        return lambda: None
    # A policy may change the working directory meanwhile.
    path = Path(options.save_conditions).absolute()
    goes_on = options.resume is not None
    if goes_on:
        check_saved_earlier(path, output_directory)
    return partial(_save_conditions, path, output_directory, goes_on=goes_on)


def _save_conditions(path: Path, output_directory: Path, *, goes_on: bool) -> None:
    try:
        for line in save_conditions(path, output_directory, goes_on=goes_on):
            _LOG.warning("%s", line)
    except ArenaError as error:
        # The results are what the run was for; they are shown whatever becomes of this file.
        _LOG.error("--save_conditions: %s", error)
