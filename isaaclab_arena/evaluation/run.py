"""A whole run as one rank lives it: agree on the plan, run this rank's jobs, and have one rank merge the results."""

import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.assignment import assign_jobs
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.process import die_with_parent, limit_threads
from isaaclab_arena.distributed.process_group import Ranks, initialise
from isaaclab_arena.distributed.rank_status import RankState, RankStatus, StatusPublisher
from isaaclab_arena.distributed.rendezvous import RankWatch, lowest_live_rank, wait_for_ranks
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.condition_sets import save_conditions
from isaaclab_arena.evaluation.console import show_results
from isaaclab_arena.evaluation.interruption import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.job_runner import JobRunner, RankSettings
from isaaclab_arena.evaluation.output_directory import make_output_directory
from isaaclab_arena.evaluation.planning import RunRequest, plan_run
from isaaclab_arena.evaluation.progress import ProgressDisplay, ProgressObserver
from isaaclab_arena.logs import add_log_file
from isaaclab_arena.recording.recorder import RecordedObservations, RecordingOptions
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.job_reports import ReportedStatus
from isaaclab_arena.storage.recorded_episode import Compression
from isaaclab_arena.storage.run_plan import write_run_plan

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.2


def execute(request: RunRequest, context: DistributedContext) -> int:
    """Run the jobs that fall to this rank and, on the rank that merges, write and show the results.

    Returns:
        The exit code: 0 if every job of the run completed, 1 if not, 130 or 143 if interrupted. A rank other than the
        one that merges returns 0 though jobs of its failed: torchrun would take anything else for a death, and end
        the ranks that still work.

    Raises:
        ConfigError: If the ranks read different jobs, or the output folder cannot be used.
        DistributedError: If the ranks do not find each other.
    """
    if context.launched_by_torchrun:
        die_with_parent()
    limit_threads(request.options.torch_threads)
    # Signals are watched for after the ranks have met: before that, one may end the process as it always does.
    with initialise(context) as ranks, watch_for_interruption() as interruption:
        shares = assign_jobs(request.options.assignment, len(request.jobs), context.world_size)
        output_directory, run_id = _set_up(request, context, ranks, shares)
        rank_run = _RankRun(request, context, shares[context.rank], output_directory, run_id, interruption)
        return rank_run.execute()


def _set_up(
    request: RunRequest, context: DistributedContext, ranks: Ranks, shares: Sequence[Sequence[int]]
) -> tuple[Path, str]:
    """Agree on the plan and return the output folder and the identity of the run."""
    ranks.agree("jobs", request.config_hash)
    devices = ranks.gather("device", str(context.device))
    output_directory, run_id = "", ""
    if context.is_rank_zero:
        options = request.options
        path = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
        output_directory, run_id = str(path), uuid.uuid4().hex
        write_run_plan(path, plan_run(request, context, devices, shares, run_id))
    output_directory = ranks.share_from_rank_zero("output_directory", output_directory)
    run_id = ranks.share_from_rank_zero("run_id", run_id)
    path = Path(output_directory)
    ranks.check_shared(path)
    add_log_file(path / "logs" / f"rank{context.rank}.log", context.rank)
    return path, run_id


class _RankRun:
    """One rank's part of a run."""

    def __init__(
        self,
        request: RunRequest,
        context: DistributedContext,
        share: Sequence[int],
        output_directory: Path,
        run_id: str,
        interruption: Interruption,
    ) -> None:
        self._request = request
        self._context = context
        self._jobs = [request.jobs[index] for index in share if request.jobs[index].config.status is JobStatus.PENDING]
        self._output_directory = output_directory
        self._run_id = run_id
        self._interruption = interruption
        self._watch = RankWatch(output_directory, world_size=context.world_size, run_id=run_id)

    def execute(self) -> int:
        status = RankStatus.of_this_process(
            rank=self._context.rank,
            run_id=self._run_id,
            jobs_total=len(self._jobs),
            episodes_total=sum(job.config.num_episodes or 0 for job in self._jobs),
        )
        with StatusPublisher(self._output_directory, status) as publisher:
            with self._display():
                state = self._run_jobs(publisher)
                merges = self._is_the_one_to_merge(state)
            code = self._merge() if merges else int(state is RankState.FAILED)
        return self._interruption.exit_code or code

    def _display(self) -> AbstractContextManager[object]:
        """Return the display of all ranks, which only rank 0 has."""
        if not self._context.is_rank_zero:
            return nullcontext()
        _LOG.info("writing to %s", self._output_directory)
        return ProgressDisplay(self._watch.look)

    def _run_jobs(self, publisher: StatusPublisher) -> RankState:
        """Run this rank's jobs, say how it ended, and return that."""
        runner = self._new_runner()
        state = RankState.FINISHED
        try:
            for job in self._jobs:
                if self._interruption.stop_requested():
                    break
                publisher.start_job(job.config.name, num_episodes=job.config.num_episodes or 0)
                report = runner.run(job, [ProgressObserver(publisher)])
                failed = report.status is ReportedStatus.FAILED
                if report.status is not ReportedStatus.INTERRUPTED:
                    publisher.finish_job(failed=failed)
                _LOG.debug("job '%s' %s after %.1f s", job.config.name, report.status, report.wall_s)
                if failed and self._request.options.fail_fast:
                    state = RankState.FAILED
                    break
        finally:
            runner.close()
        if self._interruption.stop_requested():
            state = RankState.INTERRUPTED
        publisher.set_state(state)
        return state

    def _new_runner(self) -> JobRunner:
        context, options = self._context, self._request.options
        settings = RankSettings(
            rank=context.rank,
            world_size=context.world_size,
            device=context.device,
            num_threads=options.num_threads or default_num_threads(context.local_world_size),
            output_directory=self._output_directory,
            recording=RecordingOptions(
                write_dataset=not options.no_dataset,
                observations=RecordedObservations(options.record_observations),
                compression=Compression(options.compression),
            ),
            video=options.video_options(),
            provenance={**provenance.versions(), "config_hash": self._request.config_hash},
        )
        return JobRunner(settings, stop_requested=self._interruption.stop_requested)

    def _is_the_one_to_merge(self, state: RankState) -> bool:
        """Wait until no rank works any more; return whether this rank has to merge.

        That is rank 0. The others stay until it has gone; if it left no table, or one that lacks what was written
        since, the lowest of them takes its place. A rank that stops at its first failure does not wait: its exit is
        what makes the launcher end the others.
        """
        rank = self._context.rank
        if state is RankState.FAILED:
            return not any(report.alive for report in self._watch.look() if report.rank != rank)
        while True:
            reports = self._watch.look()
            if not reports[0].alive and tables_are_current(self._output_directory):
                return False
            if lowest_live_rank(reports) == rank:
                wait_for_ranks(self._watch, stop_requested=self._interruption.stop_requested)
                return True
            time.sleep(_POLL_INTERVAL_S)

    def _merge(self) -> int:
        """Write the tables from what is on disk and show them; return the exit code."""
        # pandas takes half a second to load, and the first step of a run should not wait for it.
        from isaaclab_arena.results.merge import merge_results  # noqa: PLC0415
        from isaaclab_arena.results.result_files import write_tables  # noqa: PLC0415
        from isaaclab_arena.results.summary import print_summary  # noqa: PLC0415

        merged = merge_results(self._output_directory)
        write_tables(self._output_directory, merged)
        self._save_conditions()
        show_results(lambda console: print_summary(merged, self._output_directory, console))
        return 0 if merged.complete else 1

    def _save_conditions(self) -> None:
        path = self._request.options.save_conditions
        if path is None:
            return
        try:
            for line in save_conditions(Path(path), self._output_directory):
                _LOG.warning("%s", line)
        except ArenaError as error:
            # The results are what the run was for; they are shown whatever becomes of this file.
            _LOG.error("--save_conditions: %s", error)
