"""A run, from its first step to its tables: one function for every host of ranks."""

import io
import logging
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isaaclab_arena import garbage, logs, registry
from isaaclab_arena.config.loading import limited
from isaaclab_arena.config.schema import JobsFile, JobStatus
from isaaclab_arena.distributed import context as processes
from isaaclab_arena.distributed import launch
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.distributed.ranks import Ranks, initialise
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.errors import ArenaError, DiskUnusableError, StorageError
from isaaclab_arena.evaluation import heartbeat, job_run, planning, process, queues, run_start
from isaaclab_arena.evaluation.job import Job, check_saved_earlier, save_conditions
from isaaclab_arena.evaluation.options import AUTO, ROUND_ROBIN, SPLIT, RunOptions
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment_builder import sampler_in_words
from isaaclab_arena.storage import layout, ledger, recovery
from isaaclab_arena.tracking.trackers import check_trackers

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The end of a run on one rank."""

    # 0 if every job completed, else 1; 130 or 143 if interrupted. A rank that does not merge returns 0 even if its jobs
    # failed: torchrun takes any other code for a death, and ends the ranks that still work.
    exit_code: int
    output_directory: Path  # of this rank's files
    signal_number: int | None = None  # signal that ended the run early


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """A run whose episodes a host is to play."""

    request: planning.RunRequest  # with the settled jobs
    output_directory: Path
    plan: ledger.RunPlan
    attempt: ledger.Attempt
    watch: heartbeat.RankWatch
    interruption: process.Interruption
    progress: AbstractContextManager[None]  # shows it; entered once this rank is ready for its first episode
    until_tables: ExitStack  # closes after the tables are written


@dataclass(frozen=True, kw_only=True)
class Played:
    """The end of the episodes, as one host sees it."""

    merges: bool  # this rank writes the tables
    failed: bool = False  # the run has failed, whatever its tables say
    ranks_at_work: Sequence[int] = ()  # they have not ended; the last of them writes and shows the final tables
    all_ended: bool = False  # no rank writes any more, so its leftover episodes can go into the datasets


@dataclass(kw_only=True)
class RunHost(ABC):
    """Has the episodes of a run played by its ranks, and decides about the output besides the results."""

    ranks: Ranks = field(kw_only=False)  # within a name that no other run of theirs has, see `Ranks.within`
    # Of ranks that come later on other nodes, each with the plan of this process; None if the ranks are here. They
    # never make datasets. One without a status may wait for resources, and is not dead.
    devices_to_come: Sequence[str] | None = None
    # Whether the process does nothing else: then its last words are the run's, with the command to type.
    is_whole_program: bool = False
    shows_progress: bool = True  # on stderr
    shows_results: bool = True  # on stdout
    writes_report: bool = False  # unless an option forbids it
    # Listens for signals that ask to stop, from the plan to the tables.
    listen: Callable[[], AbstractContextManager[process.Interruption]] = process.watch_for_interruption

    @abstractmethod
    def play(self, active: ActiveRun) -> Played:
        """Get ready, play the episodes that are left, and then wait for the other ranks."""


def run(request: planning.RunRequest, host: RunHost) -> RunOutcome:
    """Run jobs: begin or resume the run, have its episodes played, and on one rank write and show the tables."""
    # A full disk raises `StorageError` at once, because later jobs would fail too.
    context, options = host.ranks.context, request.options
    started = run_start.start_run(request, host.ranks, devices_to_come=host.devices_to_come)
    directory, attempt, is_elsewhere = started.output_directory, started.attempt, host.devices_to_come is not None
    # Listen only now: while ranks wait for each other, a signal should end them at once.
    with started.lock, host.listen() as interruption, full_disk_explained(), ExitStack() as stack:
        if attempt is None and not context.is_rank_zero:
            return RunOutcome(exit_code=0, output_directory=directory)
        # A policy may change the working directory before the end. `ConfigError` if the resumed run would overwrite a
        # file of conditions that another run saved.
        saved = None if options.save_conditions is None else Path(options.save_conditions).absolute()
        if saved is not None and options.resume is not None:
            check_saved_earlier(saved, directory)
        if attempt is None:
            video = options.video_options()
            if video.camera or video.viewport:
                _LOG.warning("no episode runs, so none is filmed")
            _LOG.info("%s is complete; there is nothing to do", directory)
            code = merge_and_show(request, host, directory, saved=saved, is_finished=True)
            return RunOutcome(exit_code=code, output_directory=directory)

        jobs = planning.settled_jobs(request.jobs, attempt, options.fixed_policy_batch())
        request = replace(request, jobs=jobs)
        last_line = how_to_go_on(request, directory, context)
        name = "driver" if is_elsewhere else f"rank{context.rank}"
        stack.enter_context(logs.log_file(directory / "logs" / f"{name}.log", context.rank))

        # Rank 0 shows the progress of all ranks, until the last one has ended, and sends their results to the trackers.
        missing_after_s = float("inf") if is_elsewhere else 20.0
        watch = heartbeat.RankWatch(
            directory, world_size=attempt.world_size, run_id=attempt.run_id, missing_after_s=missing_after_s
        )
        if context.is_rank_zero and options.tracking:
            # It loads pandas, which takes half a second.
            live_tracking = registry.imported("isaaclab_arena.tracking.watched_run:live_tracking")
            stack.enter_context(live_tracking(directory, started.plan, options.tracking))
        played = host.play(
            ActiveRun(
                request=request,
                output_directory=directory,
                plan=started.plan,
                attempt=attempt,
                watch=watch,
                interruption=interruption,
                progress=progress_shown(request, host, directory, watch),
                until_tables=stack,
            )
        )

        # Write the tables from the files of all ranks. A rank at work still writes to its files.
        code = int(played.failed)
        if played.merges:
            if played.all_ended:
                consolidate_what_ranks_left(attempt, directory, rank=context.rank, is_all=is_elsewhere)
            at_work = played.ranks_at_work
            merged = merge_and_show(request, host, directory, saved=saved, last_line=last_line, ranks_at_work=at_work)
            code = max(code, merged)
    return RunOutcome(
        exit_code=interruption.exit_code or code, output_directory=directory, signal_number=interruption.signal_number
    )


# Ranks that have found each other: a program under torchrun or the launcher, one process, or a part of a caller's.


class RankHost(RunHost):
    """Runs this rank's jobs in this process, beside the other ranks of a process group, which get the same request."""

    def play(self, active: ActiveRun) -> Played:
        """Start the policy servers, publish this rank's status, run its jobs, and wait for the other ranks."""
        request, attempt, directory = active.request, active.attempt, active.output_directory
        stop_requested = active.interruption.stop_requested
        context, rank = self.ranks.context, self.ranks.context.rank
        answers = planning.answer_watch(
            directory, request.questions, attempt.number, attempt.states, request.options.max_equal_errors
        )
        queue = queues.queue_of_rank(
            request, attempt, answers, output_directory=directory, rank=rank, stop_requested=stop_requested
        )
        servers = active.until_tables.enter_context(
            planning.running_policy_servers(request.jobs, attempt.states, request.options, self.ranks, directory)
        )
        publisher = active.until_tables.enter_context(
            heartbeat.StatusPublisher(directory, queue.first_status(rank, attempt.run_id))
        )
        own: dict[str, Any] = {"config_hash": active.plan.config_hash, "policy_servers": servers}
        with active.progress:
            state = job_run.run_jobs(
                queue, request, attempt, context, publisher, stop_requested, answers=answers, **own
            )
            failed = state is heartbeat.RankState.FAILED
            merges = self._wait_to_merge(active, publisher, failed=failed)
            if failed and self.is_whole_program:
                launch.leave_last_words(f"a job failed on rank {rank}, and --fail_fast ends the run")
            seen = active.watch.look() if merges else ()
            at_work = [each.rank for each in seen if each.rank != rank and each.fate is heartbeat.RankFate.WORKING]
            all_ended = not (at_work or stop_requested())
            return Played(merges=merges, failed=failed, ranks_at_work=at_work, all_ended=all_ended)

    def _wait_to_merge(self, active: ActiveRun, publisher: heartbeat.StatusPublisher, *, failed: bool) -> bool:
        """Wait for the other ranks, and return whether this rank writes the tables."""
        # Rank 0 writes them, once no other rank works. If it goes before its tables are current, the lowest live rank
        # takes its place. The others wait, unless their status cannot be written: then rank 0 waits until they exit.
        # A rank that failed with --fail_fast never waits, as its exit makes the launcher end the others. It merges if
        # it is alone.
        look, rank = active.watch.look, self.ranks.context.rank
        if failed:
            return not any(each.alive for each in look() if each.rank != rank)
        while True:
            reported = look()
            if not reported[0].alive and ledger.tables_are_current(active.output_directory):
                return False
            if not any(each.alive for each in reported[:rank]):
                # With dynamic assignment other ranks have taken over the work of one that is silent for a lease.
                options, stop_requested = active.request.options, active.interruption.stop_requested
                lease_s = options.lease_s if options.mode.claims else None
                heartbeat.wait_for_ranks(look, own_rank=rank, stop_requested=stop_requested, stalled_after_s=lease_s)
                return True
            if not publisher.is_written:
                return False
            time.sleep(0.2)


def run_command_line(
    options: RunOptions,
    *,
    module: str,  # the program that a launcher starts on each rank
    arguments: Sequence[str],  # its command line
    request_of: Callable[[processes.DistributedContext], planning.RunRequest],
    elsewhere: Callable[[planning.RunRequest], int] | None = None,  # runs the request on ranks elsewhere
) -> int:
    """Run the request of a command line, on this rank or on ranks that it starts, and return the exit code."""
    launched = launch.launch_if_asked(options, module=module, arguments=arguments)
    if launched is not None:
        return launched
    options.check()
    context = processes.DistributedContext.from_environment(device=options.device)
    request = with_assignment(request_of(context), context)
    garbage.collect_from_now_on()
    if options.list_variations:
        if context.is_rank_zero:
            show_variations(request.jobs)
        return 0
    if options.tracking:
        check_trackers(options.tracking, key="tracking")
    if elsewhere is not None:
        return elsewhere(request)
    if context.launched_by_torchrun:
        processes.die_with_parent()
    set_up_torch(options.torch_threads, deterministic=options.deterministic)
    garbage.join_freed_memory_at_once()
    with initialise(context, process_group=options.process_group) as ranks:
        return run(request, RankHost(ranks, is_whole_program=True, writes_report=True)).exit_code


def with_assignment(request: planning.RunRequest, context: processes.DistributedContext) -> planning.RunRequest:
    """Choose the assignment that the command line leaves open, and tell the user if a rank would have no job."""
    options, world_size = request.options, context.world_size
    if options.assignment != AUTO or options.split_jobs or world_size == 1:
        return request
    pending = [job for job in request.jobs if job.config.status is JobStatus.PENDING]
    dealt = planning.first_ranks(ROUND_ROBIN, pending, request.questions, world_size)
    idle = [str(rank) for rank in range(world_size) if rank not in dealt.values()]
    # Under other launchers users rely on Isaac Lab Arena's own rule, job_index % world_size == rank.
    chosen = SPLIT if idle and launch.has_started_this_rank() else ROUND_ROBIN
    reason = f"without a job: rank {', '.join(idle)}" if idle else "every rank has a job"
    if idle and context.is_rank_zero and chosen is SPLIT:
        _LOG.info("all ranks share each job, since whole jobs leave rank %s without one", ", ".join(idle))
    elif idle and context.is_rank_zero:
        _LOG.warning("%s; with --assignment split all ranks share each job", reason)
    return replace(request, options=replace(options, assignment=chosen.name), assignment_reason=reason)


def show_variations(jobs: Sequence[Job]) -> None:
    """Show all variations of each job's environment."""

    def show(screen: Console) -> None:
        for job in jobs:
            offered = offered_variations(job.builder, job.environment_config)
            screen.print(Text(f"job '{job.config.name}', environment '{job.config.environment}':", style="bold"))
            # The variations that the job turns on have the job's range.
            own = {variation.key: variation for variation in job.variations}
            table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
            for heading in ("variation", "on", "range", "unit", "meaning"):
                table.add_column(heading, overflow="fold")
            for variation in [own.get(each.key, each) for each in offered]:
                on = "on" if variation.enabled else "-"
                ranges = sampler_in_words(variation.sampler)
                table.add_row(variation.key, on, ranges, variation.unit or "-", variation.description)
            screen.print(table, soft_wrap=True)

    process.show_results(show)


def request_for(jobs_file: JobsFile, options: RunOptions, **others: Any) -> planning.RunRequest:
    """Return the request for a run of a job file's jobs, see `RunRequest`; `ConfigError` with every problem."""
    # `others`: `policy` of `resolve_jobs`, and fields of `RunRequest`.
    jobs_file = limited(jobs_file, options.limit)
    jobs = resolve_jobs(
        jobs_file.readable_jobs,
        file=jobs_file.path,
        known=jobs_file.problems,
        overrides={"policy_device": options.policy_device, "policy_device_id": options.policy_device_id},
        policy_batch=options.fixed_policy_batch(),
        device=options.device,
        may_import=not options.no_import,
        policy=others.pop("policy", None),
    )
    return planning.RunRequest.of(jobs, jobs_file.config_hash, questions=jobs_file.questions, options=options, **others)


# Show a run while it goes on, and write its tables at the end.


@contextmanager
def progress_shown(
    request: planning.RunRequest, host: RunHost, output_directory: Path, watch: heartbeat.RankWatch
) -> Iterator[None]:
    """Show the progress of all ranks in a `with` block, and keep the report current, on rank 0."""
    with ExitStack() as shown:
        if host.ranks.context.is_rank_zero:
            _LOG.info("writing to %s", output_directory)
            if host.shows_progress:
                # In a thread of its own, so that the rank's loop never waits for a look.
                show = partial(heartbeat.keep_showing, watch.look)
                shown.enter_context(heartbeat.in_a_thread(show, name="progress"))
            if host.writes_report and not request.options.no_report:
                # The page links films, since embedding reads all of them again. It loads pandas, see `merge_and_show`.
                writer, on_page = "isaaclab_arena.report.writing:write_report", {"embed_mb": 0.0, "running": True}
                keep = partial(heartbeat.keep_writing, lambda: registry.imported(writer)([output_directory], **on_page))
                shown.enter_context(heartbeat.in_a_thread(keep, name="report"))
        yield


@contextmanager
def full_disk_explained() -> Iterator[None]:
    """Add the way out to the error of a full disk."""
    try:
        yield
    except DiskUnusableError as error:
        raise DiskUnusableError(f"{error}; the run ends: make room, then run isaaclab-arena resume DIR") from error


def merge_and_show(
    request: planning.RunRequest,
    host: RunHost,
    output_directory: Path,
    *,
    saved: Path | None,  # file for the conditions of the episodes
    last_line: str = "",  # of `how_to_go_on`, shown below the table of an incomplete run
    ranks_at_work: Sequence[int] = (),  # they have not ended; the last of them writes and shows the final tables
    is_finished: bool = False,  # no episode was left to run
) -> int:
    """Write and show the tables. Return the exit code: 0 if the run is complete, else 1."""
    # The first step of a run should not wait for pandas. Its import makes many objects, which all stay.
    with garbage.without_collecting():
        from isaaclab_arena.results.console import print_summary  # noqa: PLC0415  pandas
        from isaaclab_arena.results.merge import merge_results, stale_tables, write_tables  # noqa: PLC0415  pandas

    merged = merge_results(output_directory)
    # A run with nothing left to do rewrites only tables that are missing, old or changed.
    stale = stale_tables(output_directory, merged) if is_finished else ()
    if stale:
        names = ", ".join(path.name for path in stale)
        _LOG.warning("%s did not match the commit record, and is written again", names)
    if stale or not is_finished:
        write_tables(output_directory, merged)
    if saved is not None:
        try:
            goes_on = request.options.resume is not None
            for line in save_conditions(saved, output_directory, goes_on=goes_on):
                _LOG.warning("%s", line)
        except ArenaError as error:
            # The results are the purpose of the run: they are shown even if this file cannot be written.
            _LOG.error("--save_conditions: %s", error)

    page = None
    if host.writes_report and not request.options.no_report:
        from isaaclab_arena.report import writing  # noqa: PLC0415  pandas

        try:
            page = writing.write_report({output_directory: merged})
        except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            # The tables hold the results, so the run does not fail.
            _LOG.warning("the report could not be written: %s", error)
    if merged.complete or not host.is_whole_program:
        last_line = ""
    show = partial(print_summary, merged, output_directory, report=page, last_line=last_line)
    if host.shows_results:
        process.show_results(show)
    if last_line:
        # Must appear below a launcher's lines about a failed rank, and so below the tables of later ranks.
        ranks = ", ".join(map(str, ranks_at_work))
        words = f"still running when this rank ended: rank {ranks}; their finished episodes are in the last table above"
        words += f"\n{last_line}"
        if not ranks_at_work:
            # The table as plain text, two columns narrower for the launcher's indentation.
            has_stdout, text = isinstance(sys.stdout, io.TextIOBase), io.StringIO()
            shown = process.results_console() if has_stdout else Console(width=process.FILE_COLUMNS)
            show(Console(file=text, highlight=False, width=max(shown.width - 2, 20), color_system=None))
            words = text.getvalue().rstrip()
        launch.leave_last_words(words)
    return 0 if merged.complete else 1


def consolidate_what_ranks_left(
    attempt: ledger.Attempt, output_directory: Path, *, rank: int = 0, is_all: bool = False
) -> None:
    """Move episodes that ranks left into their datasets; all ranks must have ended."""
    # `is_all`: the ranks are on other nodes and never make datasets. A full disk raises `DiskUnusableError`.
    for name in attempt.states:
        directory = output_directory / name
        if not (is_all or any(ledger.episode_files(directory)) or any(directory.glob(layout.JOB_BEGUN_PATTERN))):
            continue
        try:
            notes, loss = recovery.consolidate_leftovers(directory, name)
        except DiskUnusableError:
            raise
        except StorageError as error:
            notes, loss = [], str(error)
        for note in notes:
            _LOG.log(logging.DEBUG if is_all else logging.WARNING, "%s", note)
        # A job with lost recordings, or without a dataset, has failed, whatever its ranks reported.
        if loss is None:
            continue
        written, _ = ledger.read_job_reports(directory, name, attempt.run)
        if any(each.attempt == attempt.number and each.status is ledger.ReportedStatus.FAILED for each in written):
            continue
        ledger.write_failed_report(directory, name, loss, attempt, rank)


def how_to_go_on(request: planning.RunRequest, output_directory: Path, context: processes.DistributedContext) -> str:
    """Return one line for the user: the command that resumes the run, or the option to add to the last command."""
    # Must run before a policy can change the working directory, in which the command was typed.
    is_below = output_directory.is_relative_to(Path.cwd())
    directory = str(output_directory.relative_to(Path.cwd()) if is_below else output_directory)
    # A name that begins with a dash would be read as an option.
    directory = shlex.quote(f"./{directory}" if directory.startswith("-") else directory)
    if not request.command_line:
        return f"continue with --resume {directory}"
    # Only a scheduler, or torchrun on several nodes, knows how it started the ranks.
    is_here = context.launched_by_torchrun and context.local_world_size == context.world_size
    if processes.is_a_rank() and not launch.has_started_this_rank() and not is_here:
        return f"continue with the same command and --resume {directory}"
    # The plan holds the run's options, but not those of one resume.
    more = " --retry_errors" if request.options.retry_errors else ""
    return f"continue with: isaaclab-arena resume {directory}{more}"
