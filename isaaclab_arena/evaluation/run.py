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
from isaaclab_arena.distributed.context import (
    DistributedContext,
    command_of_parent,
    die_with_parent,
    is_a_rank,
    limit_threads,
)
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.launch_options import leave_last_words, without_launch_options
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
from isaaclab_arena.evaluation.progress import LiveReport, ProgressDisplay
from isaaclab_arena.evaluation.queues import work_of_rank
from isaaclab_arena.evaluation.settled import running_policy_servers, with_settled_backends, with_settled_latencies
from isaaclab_arena.evaluation.start_up import StartedRun, start_run
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.logs import log_file
from isaaclab_arena.registry import imported
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
    """Return one line for the user: the command that resumes the run, or the option to add to the last command."""
    # Must run before a policy can change the working directory, in which the command was typed.
    directory = _shown(output_directory, Path.cwd())
    if not request.command_line:
        return f"go on with --resume {shlex.quote(directory)}"
    program, *arguments = request.command_line
    parent = command_of_parent() if is_a_rank() else None
    # Prefer the command that the user typed. If it is unknown, try one that needs the directory only.
    typed = typed_command(arguments, own=sys.orig_argv, parent=parent)
    command = (
        command_by_directory(parent or sys.orig_argv, directory)
        if typed is None
        else resuming_command(typed, directory)
    )
    if command is None and is_a_rank():
        return f"go on with the same command and --resume {shlex.quote(directory)}"
    # The typed command is unknown: run the module with the arguments of this process.
    command = command or resuming_command(["python", "-m", program, *arguments], directory)
    several = context.world_size > context.local_world_size
    return f"go on with{', on each machine its own line like' if several else ''}: {shlex.join(command)}"


def typed_command(arguments: Sequence[str], *, own: Sequence[str], parent: Sequence[str] | None) -> list[str] | None:
    """Return the whole command line that the user typed, None if this process cannot know it."""
    # `parent` is the command line of the launcher. `arguments` must end it, or the launcher got other arguments.
    if parent is None:
        found = list(own)
        is_it = found[-len(arguments) :] == list(arguments)
    else:
        found = list(parent)
        # Our launcher does not pass its own options on to the ranks; torchrun's precede the program's name.
        is_it = without_launch_options(found)[-len(arguments) :] == list(arguments)
    return _without_interpreter(found) if is_it else None


def command_by_directory(typed: Sequence[str], directory: str) -> list[str] | None:
    """Return the `isaaclab-arena resume` command of a run, None if another program was typed."""
    # The user never typed the runner's arguments: `isaaclab-arena quickstart` and `resume` build them.
    program, *words = _without_interpreter(list(typed))
    if program != _SCRIPT:
        return None
    options = words[2:] if words[:1] == ["resume"] else []
    return [_SCRIPT, "resume", directory, *options]


def resuming_command(command: Sequence[str], directory: str) -> list[str]:
    """Return the command line with `--resume DIRECTORY` at its end, in place of any `--resume` that it has."""
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
    # Without a slash, `--resume` takes a word for a run only if it finds the plan there.
    return [*kept, "--resume", directory if "/" in directory else f"./{directory}"]


def _without_interpreter(command: list[str]) -> list[str]:
    """Return the command of an installed script as a user types it, without the interpreter's name."""
    is_script = len(command) > 1 and Path(command[1]).name == _SCRIPT
    return [_SCRIPT, *command[2:]] if is_script else command


def _shown(directory: Path, working_directory: Path) -> str:
    return str(directory.relative_to(working_directory) if directory.is_relative_to(working_directory) else directory)


# Finish a run: build its tables from the files on disk, and show them.

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The steps at the end of a run besides writing the tables."""

    # Called once the tables are up to date.
    before_showing: Callable[[], None] = lambda: None
    # Last line below the table of an incomplete run; None if the run is only a part of the program.
    how_to_go_on: str | None = None
    shows: bool = True  # whether the tables are printed
    writes_report: bool = False  # whether the run's page is written, and its path shown last
    # Other ranks that have not ended; the last of them writes and shows what they finish later.
    ranks_at_work: Sequence[int] = ()


def merge_and_show(output_directory: Path, ending: Ending, *, is_finished: bool = False) -> int:
    """Write and show the tables. Return the exit code: 0 if the run is complete, else 1."""
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
    # A run with nothing left to do rewrites only tables that are missing, old or changed.
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
        # Must appear below what a launcher prints about a failed rank, and so below the tables of later ranks.
        leave_last_words(f"{_not_the_last(ending)}\n{last_line}" if ending.ranks_at_work else as_text(show))
    return 0 if merged.complete else 1


def _not_the_last(ending: Ending) -> str:
    ranks = ", ".join(map(str, ending.ranks_at_work))
    return f"still at work when this rank ended: rank {ranks}; what they finished is in the last table above"


def _written_report(output_directory: Path, merged: "MergedResults") -> Path | None:
    """Write the run's page. An error is a warning only: the tables hold the results."""
    writing = _writing()
    try:
        return writing.write_page([writing.ReportedRun(directory=output_directory, merged=merged)])
    except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        _LOG.warning("there is no page of this run: %s", error)
        return None


def write_live_report(output_directory: Path) -> None:
    """Write the page of a run that goes on; it links films, since embedding reads all of them again."""
    _writing().write_report([output_directory], embed_mb=0.0, running=True)


def _writing() -> ModuleType:
    from isaaclab_arena.report import writing  # noqa: PLC0415  pandas, see merge_and_show

    return writing


def consolidate_what_ranks_left(
    attempt: Attempt, output_directory: Path, *, rank: int = 0, is_all: bool = False
) -> None:
    """Move episodes that ranks left into their datasets; all ranks must have ended."""
    # `is_all`: the ranks are on other nodes and never make datasets. A full disk raises `DiskUnusableError`.
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
        # A job with lost recordings, or without a dataset, has failed, whatever its ranks reported.
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
    """Run this rank's jobs; the merging rank writes and shows the results. Return the exit code."""
    if context.launched_by_torchrun:
        die_with_parent()
    check_trackers(request.options.tracking, key="tracking")
    limit_threads(request.options.torch_threads)
    join_freed_memory_at_once()
    if request.options.deterministic:
        calculate_deterministically()
    # Exit code: 0 if every job completed, else 1; 130 or 143 if interrupted. A rank that does not merge returns 0 even
    # if its jobs failed: torchrun takes any other code for a death and ends the ranks that still work. A full disk
    # raises `StorageError` at once, because later jobs would fail too.
    with initialise(context, process_group=request.options.process_group) as ranks:
        return execute_among(ranks, request, conduct=RunConduct(is_whole_program=True, writes_report=True)).exit_code


@dataclass(frozen=True, kw_only=True)
class RunConduct:
    """The output of a run besides its results, as a whole program or as a part of one."""

    # Whether the ranks do nothing else: then the program's last words are the run's, with the command to type.
    is_whole_program: bool = False
    shows_progress: bool = True  # on stderr
    shows_results: bool = True  # on stdout
    writes_report: bool = False  # unless an option forbids it
    # Listens for signals that ask to stop, from the plan to the tables.
    listen: Callable[[], AbstractContextManager[Interruption]] = watch_for_interruption


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The end of a run on one rank."""

    exit_code: int  # see `execute`
    output_directory: Path  # of this rank's files
    signal_number: int | None = None  # signal that ended the run early


def execute_among(ranks: Ranks, request: RunRequest, *, conduct: RunConduct | None = None) -> RunOutcome:
    """Run jobs on ranks that have found each other, as one of several runs; see `execute` for errors."""
    # `ranks` must be within a name that no other run of theirs has, see `Ranks.within`. The request is the same on all.
    context, conduct = ranks.context, conduct or RunConduct()
    started = start_run(request, context, ranks)
    # Listen only now: while ranks wait for each other, a signal should end them at once.
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
        """Run this rank's jobs beside its policy servers, and return the exit code."""
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
            # The plan's hash, not the request's: they may differ in num_envs in a deterministic run.
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
        """Show the display of all ranks and update the run's page, on rank 0 only."""
        if not self._context.is_rank_zero:
            return nullcontext()
        return shown_while_it_runs(self._request, self._output_directory, self._conduct, self._watch.look)

    def _is_the_one_to_merge(self, state: RankState, *, heard: bool) -> bool:
        """Wait until no other rank works. True if this rank has to merge: rank 0, or its substitute."""
        rank = self._context.rank
        # A rank that stops at its first failure does not wait: its exit makes the launcher end the others.
        if state is RankState.FAILED:
            return not any(report.alive for report in self._watch.look() if report.rank != rank)
        # The others stay until rank 0 has gone. If it left no current tables, the lowest live rank takes its place.
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
                # The others wait for this rank's status. It cannot publish one, so its exit tells them.
                return False
            time.sleep(_POLL_INTERVAL_S)

    def _merge(self) -> int:
        """Write the tables from the files on disk, show them if wanted, and return the exit code."""
        others = [report for report in self._watch.look() if report.rank != self._context.rank]
        at_work = [report.rank for report in others if report.fate is RankFate.WORKING]
        # A rank at work still writes to its files.
        if not (at_work or self._interruption.stop_requested()):
            consolidate_what_ranks_left(self._attempt, self._output_directory, rank=self._context.rank)
        ending = ending_of(self._request, self._conduct, self._save_conditions, self._how_to_go_on)
        return merge_and_show(self._output_directory, replace(ending, ranks_at_work=at_work))


def live_tracking(request: RunRequest, started: StartedRun) -> AbstractContextManager[object]:
    """Return the context that sends the results of all ranks to the trackers, a null context without any."""
    names = request.options.tracking
    if not names:
        return nullcontext()
    return imported(_LIVE_TRACKING)(started.output_directory, started.plan, names)


@contextmanager
def shown_while_it_runs(
    request: RunRequest, output_directory: Path, conduct: RunConduct, look: Callable[[], Sequence[RankReport]]
) -> Iterator[None]:
    """Show the progress of all ranks, and update the run's page, within a `with` block."""
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
    """Build the `Ending` of a run on this rank."""
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
    """Return the function that saves the conditions at the end; it does nothing without the option."""
    options = request.options
    if options.save_conditions is None:
        return lambda: None
    # A policy may change the working directory before the end.
    path = Path(options.save_conditions).absolute()
    goes_on = options.resume is not None
    # `ConfigError` if the resumed run would overwrite a file that another run saved.
    if goes_on:
        check_saved_earlier(path, output_directory)
    return partial(_save_conditions, path, output_directory, goes_on=goes_on)


def _save_conditions(path: Path, output_directory: Path, *, goes_on: bool) -> None:
    try:
        for line in save_conditions(path, output_directory, goes_on=goes_on):
            _LOG.warning("%s", line)
    except ArenaError as error:
        # The results are the purpose of the run: they are shown even if this file cannot be written.
        _LOG.error("--save_conditions: %s", error)
