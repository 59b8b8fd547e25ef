"""One rank's part of a run: start up, run its jobs, and on one rank merge the results."""

import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from isaaclab_arena.config.schema import PolicyServerConfig
from isaaclab_arena.distributed.context import DistributedContext, is_a_rank
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.launch_options import leave_last_words, without_launch_options
from isaaclab_arena.distributed.process import command_of_parent, die_with_parent, limit_threads
from isaaclab_arena.distributed.ranks import Ranks, initialise
from isaaclab_arena.errors import ArenaError, DiskUnusableError, StorageError
from isaaclab_arena.evaluation.builds import rank_settings
from isaaclab_arena.evaluation.condition_sets import check_saved_earlier, save_conditions
from isaaclab_arena.evaluation.console import as_text, show_results
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankReport,
    RankState,
    RankStatus,
    RankWatch,
    StatusPublisher,
    lowest_live_rank,
    wait_for_ranks,
)
from isaaclab_arena.evaluation.job_run import RankJobs
from isaaclab_arena.evaluation.options import is_run
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.evaluation.process import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.progress import ProgressDisplay
from isaaclab_arena.evaluation.queues import work_of_rank
from isaaclab_arena.evaluation.settled import running_policy_servers, with_settled_backends, with_settled_latencies
from isaaclab_arena.evaluation.start_up import StartedRun, start_run
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.logs import log_file
from isaaclab_arena.registry import imported
from isaaclab_arena.report.live import LiveReport
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.storage.commits import ReportedStatus, failed_report, read_job_reports, write_job_report
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.recovery import Leftovers, consolidate_leftovers
from isaaclab_arena.storage.run_plan import Attempt
from isaaclab_arena.tracking.trackers import check_trackers

if TYPE_CHECKING:
    from isaaclab_arena.results.merge import MergedResults


# Build the command that resumes a run: the original one with its launcher, ``--resume`` and the directory.

_SCRIPT = "isaaclab-arena"


def how_to_go_on(request: RunRequest, context: DistributedContext, output_directory: Path) -> str:
    """Return one line for a person: the exact command that goes on with a run, or which option does.

    Call it before any policy may have changed the working directory, in which the command was typed.

    Args:
        request: What the run was to do.
        context: Who this process is.
        output_directory: The run's directory.
    """
    directory = _shown(output_directory, Path.cwd())
    if not request.command_line:
        return f"go on with --resume {shlex.quote(directory)}"
    program, *arguments = request.command_line
    parent = command_of_parent() if is_a_rank() else None
    typed = typed_command(arguments, own=sys.orig_argv, parent=parent)
    command = (
        command_by_directory(parent or sys.orig_argv, directory)
        if typed is None
        else resuming_command(typed, directory)
    )
    if command is None and is_a_rank():
        return f"go on with the same command and --resume {shlex.quote(directory)}"
    command = command or resuming_command(["python", "-m", program, *arguments], directory)
    several = context.world_size > context.local_world_size
    return f"go on with{', on each machine its own line like' if several else ''}: {shlex.join(command)}"


def typed_command(arguments: Sequence[str], *, own: Sequence[str], parent: Sequence[str] | None) -> list[str] | None:
    """Return the whole command line that somebody has typed, None if nobody knows.

    Args:
        arguments: What this process was given after the program's name.
        own: The command line of this process.
        parent: That of the process that started this one as a rank, None for a process that is none.
    """
    if parent is None:
        found = list(own)
        is_it = found[-len(arguments) :] == list(arguments)
    else:
        found = list(parent)
        # A launcher of ours keeps its own options from the ranks; torchrun's stand before the program's name.
        is_it = without_launch_options(found)[-len(arguments) :] == list(arguments)
    return _without_interpreter(found) if is_it else None


def command_by_directory(typed: Sequence[str], directory: str) -> list[str] | None:
    """Return the command that needs no more than a run's directory, None if another program was typed.

    ``isaaclab-arena quickstart`` and ``isaaclab-arena resume`` give the runner a command line that nobody has typed.

    Args:
        typed: The command line of the process that began the run.
        directory: The run's directory.
    """
    program, *words = _without_interpreter(list(typed))
    if program != _SCRIPT:
        return None
    options = words[2:] if words[:1] == ["resume"] else []
    return [_SCRIPT, "resume", directory, *options]


def resuming_command(command: Sequence[str], directory: str) -> list[str]:
    """Return a command with ``--resume DIRECTORY`` at its end, in place of any ``--resume`` that it has.

    Args:
        command: A whole command line.
        directory: The run's directory, from where the command is typed.
    """
    kept: list[str] = []
    is_value = False
    for position, word in enumerate(command):
        following = command[position + 1] if position + 1 < len(command) else "-"
        if is_value:
            is_value = False
        elif word == "--resume":
            is_value = is_run(following)
        elif not word.startswith("--resume="):
            kept.append(word)
    # A directory without a slash is taken for a run only while its plan can be seen.
    return [*kept, "--resume", directory if "/" in directory else f"./{directory}"]


def _without_interpreter(command: list[str]) -> list[str]:
    """Return the command of a script that pip has installed as it is typed: without Python's own name."""
    is_script = len(command) > 1 and Path(command[1]).name == _SCRIPT
    return [_SCRIPT, *command[2:]] if is_script else command


def _shown(directory: Path, working_directory: Path) -> str:
    return str(directory.relative_to(working_directory) if directory.is_relative_to(working_directory) else directory)


# Finish a run: build its tables from the files on disk, and show them.

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the end of a run does besides writing the tables.

    Attributes:
        before_showing: Called once the tables are what they should be.
        how_to_go_on: Shown below the table of a run that is not complete, as this program's last words; None where
            the run is only a part of what the program does.
        shows: Whether the tables are shown at all.
        writes_report: Whether the page of the run is written too, and its path shown last.
        ranks_at_work: Other ranks that have not ended; the last of them writes and shows what they have finished since.
    """

    before_showing: Callable[[], None] = lambda: None
    how_to_go_on: str | None = None
    shows: bool = True
    writes_report: bool = False
    ranks_at_work: Sequence[int] = ()


def merge_and_show(output_directory: Path, ending: Ending, *, is_finished: bool = False) -> int:
    """Write the tables and show them.

    Args:
        output_directory: The run's directory.
        ending: What is done besides.
        is_finished: Whether the run had nothing left to do: then tables are written anew only where they are missing,
            old or changed.

    Returns:
        The exit code: 0 if the run is complete, otherwise 1.
    """
    # The first step of a run should not wait for pandas.
    from isaaclab_arena.results.console import print_summary  # noqa: PLC0415  pandas
    from isaaclab_arena.results.merge import (  # noqa: PLC0415  pandas
        merge_results,
        stale_tables,
        write_tables,
    )

    if is_finished:
        _LOG.info("%s is complete; there is nothing to do", output_directory)
    merged = merge_results(output_directory)
    stale = stale_tables(output_directory, merged) if is_finished else ()
    if stale:
        names = ", ".join(path.name for path in stale)
        _LOG.warning("%s did not hold what the commit record says, and is written anew", names)
    if stale or not is_finished:
        write_tables(output_directory, merged)
    ending.before_showing()
    page = _written_report(output_directory, merged) if ending.writes_report else None
    last_line = "" if merged.complete else ending.how_to_go_on or ""

    def show(console: Console) -> None:
        print_summary(merged, output_directory, console, report=page, last_line=last_line)

    if ending.shows:
        show_results(show)
    if last_line:
        # Below whatever a launcher prints of a rank that ends with a failure, and so below the tables of later ranks.
        leave_last_words(f"{_not_the_last(ending)}\n{last_line}" if ending.ranks_at_work else as_text(show))
    return 0 if merged.complete else 1


def _not_the_last(ending: Ending) -> str:
    ranks = ", ".join(map(str, ending.ranks_at_work))
    return f"still at work when this rank ended: rank {ranks}; what they finished is in the last table above"


def _written_report(output_directory: Path, merged: "MergedResults") -> Path | None:
    """Write the page of a run. That it cannot be written is no failure of the run: the tables hold the results."""
    writing = _writing()
    try:
        return writing.write_page([writing.ReportedRun(directory=output_directory, merged=merged)])
    except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        _LOG.warning("there is no page of this run: %s", error)
        return None


def write_live_report(output_directory: Path) -> None:
    """Write the page of a run that goes on, with paths of its films: they would have to be read anew every time.

    Raises:
        ArenaError: If a file of the run cannot be read, or the page cannot be written.
    """
    _writing().write_report([output_directory], embed_mb=0.0, running=True)


def _writing() -> ModuleType:
    from isaaclab_arena.report import writing  # noqa: PLC0415  pandas, see merge_and_show

    return writing


def consolidate_what_ranks_left(
    attempt: Attempt, output_directory: Path, *, rank: int = 0, is_all: bool = False
) -> None:
    """Put episodes that ranks have left into the datasets that they belong to; all ranks have ended.

    A job of which recordings are lost, or whose dataset cannot be made, has failed, whatever its ranks have said.

    Args:
        attempt: What there was to do.
        output_directory: The run's directory.
        rank: The rank that does it.
        is_all: Whether ranks never make datasets, because they are on other nodes.

    Raises:
        DiskUnusableError: If the disk is full.
    """
    for job in (work.job for work in attempt.jobs):
        directory = job_directory(output_directory, job)
        try:
            done = consolidate_leftovers(directory, job, is_all=is_all)
        except DiskUnusableError:
            raise
        except StorageError as error:
            done = Leftovers(loss=str(error))
        for note in done.notes:
            _LOG.log(logging.DEBUG if is_all else logging.WARNING, "%s", note)
        if done.loss is None or _has_failed(directory, job, attempt):
            continue
        _LOG.error("job '%s' has failed: %s", job, done.loss)
        device = attempt.devices[rank]
        report = failed_report(job, done.loss, rank=rank, device=device, attempt=attempt.number, run=attempt.run)
        write_job_report(directory, report)


def _has_failed(directory: Path, job: str, attempt: Attempt) -> bool:
    reports, _ = read_job_reports(directory, job, attempt.run)
    return any(each.attempt == attempt.number and each.status is ReportedStatus.FAILED for each in reports)


# One rank's part of a run: start up, run its jobs, and on one rank merge the results.

_POLL_INTERVAL_S = 0.2
_LIVE_TRACKING = "isaaclab_arena.tracking.watched_run:LiveTracking"
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
    join_freed_memory_at_once()
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
            code = finished_run(request, started.output_directory, conduct) if context.is_rank_zero else 0
            return RunOutcome(exit_code=code, output_directory=started.output_directory)
        jobs = with_settled_backends(request.jobs, started.attempt)
        request = replace(request, jobs=with_settled_latencies(jobs, started.attempt))
        try:
            with log_file(started.output_directory / "logs" / f"rank{context.rank}.log", context.rank):
                run = _RankRun(request, context, started, started.attempt, interruption, conduct)
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
        self._save_conditions = saving_conditions(request, started.output_directory)
        self._watch = RankWatch(self._output_directory, world_size=attempt.world_size, run_id=attempt.run_id)
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
        tracking = nullcontext() if self._context.rank else live_tracking(self._request, self._started)
        with tracking, StatusPublisher(self._output_directory, status) as publisher:
            with self._shown():
                state = self._rank_jobs(policy_servers).run(publisher)
                merges = self._is_the_one_to_merge(state, heard=publisher.is_heard)
            if self._conduct.is_whole_program and state is RankState.FAILED:
                leave_last_words(f"a job failed on rank {self._context.rank}, and --fail_fast ends the run")
            code = self._merge() if merges else int(state is RankState.FAILED)
        return self._interruption.exit_code or code

    def _rank_jobs(self, policy_servers: Mapping[PolicyServerConfig, ServerAddress]) -> RankJobs:
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
        return RankJobs(
            self._work,
            replace(settings, policy_servers=policy_servers),
            stop_requested=self._interruption.stop_requested,
            fail_fast=self._request.options.fail_fast,
            asks_questions=bool(self._request.questions),
        )

    def _shown(self) -> AbstractContextManager[object]:
        """Return the display of all ranks and the page of the run, which only rank 0 has."""
        if not self._context.is_rank_zero:
            return nullcontext()
        return shown_while_it_runs(self._request, self._output_directory, self._conduct, self._watch.look)

    def _is_the_one_to_merge(self, state: RankState, *, heard: bool) -> bool:
        """Wait until no rank works any more; return whether this rank has to merge.

        That is rank 0. The others stay until it has gone; if it left no table, or one that lacks what was written
        since, the lowest of them takes its place. A rank that stops at its first
        failure does not wait: its exit is what makes the launcher end the others.
        """
        rank = self._context.rank
        if state is RankState.FAILED:
            return not any(report.alive for report in self._watch.look() if report.rank != rank)
        while True:
            reports = self._watch.look()
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
        others = [report for report in self._watch.look() if report.rank != self._context.rank]
        at_work = [report.rank for report in others if report.fate is RankFate.WORKING]
        if not (at_work or self._interruption.stop_requested()):
            consolidate_what_ranks_left(self._attempt, self._output_directory, rank=self._context.rank)
        ending = ending_of(self._request, self._conduct, self._save_conditions, self._how_to_go_on)
        return merge_and_show(self._output_directory, replace(ending, ranks_at_work=at_work))


def live_tracking(request: RunRequest, started: StartedRun) -> AbstractContextManager[object]:
    """Return what logs the results of all ranks elsewhere too."""
    names = request.options.tracking
    if not names:
        return nullcontext()
    return imported(_LIVE_TRACKING)(started.output_directory, started.plan, names)


@contextmanager
def shown_while_it_runs(
    request: RunRequest, output_directory: Path, conduct: RunConduct, look: Callable[[], Sequence[RankReport]]
) -> Iterator[None]:
    """Show how all ranks get on, and keep the page of the run up to date, within a ``with`` block.

    Args:
        request: What the run is to do.
        output_directory: The run's directory.
        conduct: What of this is wanted.
        look: Returns one report per rank.
    """
    _LOG.info("writing to %s", output_directory)
    with ExitStack() as stack:
        if conduct.shows_progress:
            stack.enter_context(ProgressDisplay(look))
        if _writes_report(request, conduct):
            stack.enter_context(LiveReport(partial(write_live_report, output_directory)))
        yield


def ending_of(
    request: RunRequest, conduct: RunConduct, save_conditions: Callable[[], None], how_to_go_on: str
) -> Ending:
    """Return what the end of a run does besides writing the tables."""
    return Ending(
        before_showing=save_conditions,
        how_to_go_on=how_to_go_on if conduct.is_whole_program else None,
        shows=conduct.shows_results,
        writes_report=_writes_report(request, conduct),
    )


def finished_run(request: RunRequest, output_directory: Path, conduct: RunConduct) -> int:
    """Show the results of a run in which nothing is left to do, and return the exit code."""
    if request.options.video_options().wanted:
        _LOG.warning("no episode runs, so none is filmed")
    ending = Ending(
        before_showing=saving_conditions(request, output_directory),
        shows=conduct.shows_results,
        writes_report=_writes_report(request, conduct),
    )
    return merge_and_show(output_directory, ending, is_finished=True)


def _writes_report(request: RunRequest, conduct: RunConduct) -> bool:
    return conduct.writes_report and not request.options.no_report


def saving_conditions(request: RunRequest, output_directory: Path) -> Callable[[], None]:
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
