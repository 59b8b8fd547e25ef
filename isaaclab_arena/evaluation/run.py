"""A run, from its first step to its tables: one function for every host of ranks."""

import logging
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from isaaclab_arena.distributed.context import (
    DistributedContext,
    command_of_parent,
    die_with_parent,
    is_a_rank,
    limit_threads,
)
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.launch import leave_last_words, without_launch_options
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
from isaaclab_arena.evaluation.job_run import run_jobs
from isaaclab_arena.evaluation.options import RunOptions, is_run
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.progress import LiveReport, ProgressDisplay
from isaaclab_arena.evaluation.queues import work_of_rank
from isaaclab_arena.evaluation.settled import running_policy_servers, settled_jobs
from isaaclab_arena.evaluation.start_up import StartedRun, start_run
from isaaclab_arena.garbage import join_freed_memory_at_once, without_collecting
from isaaclab_arena.logs import log_file
from isaaclab_arena.registry import imported
from isaaclab_arena.results.freshness import tables_are_current
from isaaclab_arena.storage.ledger import Attempt
from isaaclab_arena.storage.recovery import consolidate_leftovers
from isaaclab_arena.storage.reports import ReportedStatus, failed_report, read_job_reports, write_job_report
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
class Played:
    """The end of the episodes, as one host sees it."""

    merges: bool  # this rank writes the tables
    failed: bool = False  # the run has failed, whatever its tables say
    ranks_at_work: Sequence[int] = ()  # they have not ended; the last of them writes and shows the final tables
    # Whether all ranks have ended, so that what they left can be moved into the datasets.
    all_ended: bool = False


class Host(ABC):
    """Runs jobs on ranks, and decides about the output of the run besides its results."""

    # Whether the process does nothing else: then its last words are the run's, with the command to type.
    is_whole_program: bool = False
    shows_progress: bool = True  # on stderr
    shows_results: bool = True  # on stdout
    writes_report: bool = False  # unless an option forbids it
    ranks_are_elsewhere: bool = False  # on other nodes, where they never make datasets

    def __init__(self, context: DistributedContext) -> None:
        self.context = context

    @abstractmethod
    def begin(self, request: RunRequest) -> StartedRun:
        """Begin the run, or go on with it."""

    def listen(self) -> AbstractContextManager[Interruption]:
        """Listen for signals that ask to stop, from the plan to the tables."""
        return watch_for_interruption()

    def watch(self, directory: Path, attempt: Attempt) -> RankWatch:
        """Return the watch of all ranks."""
        return RankWatch(directory, world_size=attempt.world_size, run_id=attempt.run_id)

    @abstractmethod
    def ready(
        self, request: RunRequest, started: StartedRun, attempt: Attempt, watch: RankWatch, interruption: Interruption
    ) -> AbstractContextManager[Callable[[], Played]]:
        """Get ready to play the episodes that are left. The context ends after the tables are written."""


def run(request: RunRequest, host: Host) -> RunOutcome:
    """Run jobs: begin or resume the run, have its episodes played, and on one rank write and show the tables."""
    # A full disk raises `StorageError` at once, because later jobs would fail too.
    started = host.begin(request)
    directory, attempt, context = started.output_directory, started.attempt, host.context
    # Listen only now: while ranks wait for each other, a signal should end them at once.
    with started.lock, host.listen() as interruption, full_disk_explained(), ExitStack() as stack:
        if attempt is None and not context.is_rank_zero:
            return RunOutcome(exit_code=0, output_directory=directory)
        save_conditions = saving_conditions(request, directory)
        if attempt is None:
            if request.options.video_options().wanted:
                _LOG.warning("no episode runs, so none is filmed")
            code = merge_and_show(request, host, directory, save_conditions=save_conditions, is_finished=True)
            return RunOutcome(exit_code=code, output_directory=directory)

        request = replace(request, jobs=settled_jobs(request.jobs, attempt))
        last_line = how_to_go_on(request, context, directory)
        name = "driver" if host.ranks_are_elsewhere else f"rank{context.rank}"
        stack.enter_context(log_file(directory / "logs" / f"{name}.log", context.rank))

        # Rank 0 shows the progress of all ranks, until the last one has ended.
        watch = host.watch(directory, attempt)
        if context.is_rank_zero:
            stack.enter_context(live_tracking(request, started))
        play = stack.enter_context(host.ready(request, started, attempt, watch, interruption))
        with shown_while_it_runs(request, directory, host, watch.look) if context.is_rank_zero else nullcontext():
            played = play()

        # Write the tables from the files of all ranks. A rank at work still writes to its files.
        code = int(played.failed)
        if played.merges:
            if played.all_ended:
                consolidate_what_ranks_left(attempt, directory, rank=context.rank, is_all=host.ranks_are_elsewhere)
            merged = merge_and_show(
                request,
                host,
                directory,
                save_conditions=save_conditions,
                last_line=last_line,
                ranks_at_work=played.ranks_at_work,
            )
            code = max(code, merged)
    return RunOutcome(
        exit_code=interruption.exit_code or code,
        output_directory=directory,
        signal_number=interruption.signal_number,
    )


# Ranks that have found each other: a program under torchrun or the launcher, one process, or a part of a caller's.


class RankHost(Host):
    """Runs this rank's jobs in this process, beside the other ranks of a process group."""

    # `ranks` must be within a name that no other run of theirs has, see `Ranks.within`. The request is the same on all.
    def __init__(
        self,
        ranks: Ranks,
        *,
        is_whole_program: bool = False,
        shows_progress: bool = True,
        shows_results: bool = True,
        writes_report: bool = False,
        listen: Callable[[], AbstractContextManager[Interruption]] = watch_for_interruption,
    ) -> None:
        super().__init__(ranks.context)
        self._ranks, self._listen = ranks, listen
        self.is_whole_program, self.writes_report = is_whole_program, writes_report
        self.shows_progress, self.shows_results = shows_progress, shows_results

    def begin(self, request: RunRequest) -> StartedRun:
        """Agree with the other ranks on the run and its directory."""
        return start_run(request, self.context, self._ranks)

    def listen(self) -> AbstractContextManager[Interruption]:
        """Listen as the caller wants."""
        return self._listen()

    @contextmanager
    def ready(
        self, request: RunRequest, started: StartedRun, attempt: Attempt, watch: RankWatch, interruption: Interruption
    ) -> Iterator[Callable[[], Played]]:
        """Start the policy servers and publish this rank's status; yield the function that runs its jobs."""
        directory, rank, options = started.output_directory, self.context.rank, request.options
        stop_requested = interruption.stop_requested
        work = work_of_rank(request, attempt, output_directory=directory, rank=rank, stop_requested=stop_requested)
        status = RankStatus.of_this_process(
            rank=rank, run_id=attempt.run_id, jobs_total=work.num_jobs, episodes_total=work.num_episodes
        )
        to_run = {entry.job for entry in attempt.jobs}
        servers = running_policy_servers(request.jobs, to_run, options, self._ranks, directory)
        with servers as policy_servers, StatusPublisher(directory, status) as publisher:
            settings = rank_settings(
                options,
                self.context,
                output_directory=directory,
                attempt=attempt,
                # The plan's hash, not the request's: they may differ in num_envs in a deterministic run.
                config_hash=started.plan.config_hash,
                questions=request.questions,
                import_s=request.import_s,
                policy_servers=policy_servers,
            )

            def play() -> Played:
                state = run_jobs(
                    work,
                    settings,
                    publisher,
                    stop_requested=stop_requested,
                    fail_fast=options.fail_fast,
                    asks_questions=bool(request.questions),
                )
                failed = state is RankState.FAILED
                stalled_after_s = work.stalled_after_s
                wait = partial(
                    wait_for_ranks, watch, own_rank=rank, stop_requested=stop_requested, stalled_after_s=stalled_after_s
                )
                merges = _merges_after_waiting(directory, watch, publisher, wait)
                if failed and self.is_whole_program:
                    leave_last_words(f"a job failed on rank {rank}, and --fail_fast ends the run")
                others = [report for report in watch.look() if report.rank != rank] if merges else []
                at_work = [report.rank for report in others if report.fate is RankFate.WORKING]
                all_ended = not (at_work or stop_requested())
                return Played(merges=merges, failed=failed, ranks_at_work=at_work, all_ended=all_ended)

            yield play


def _merges_after_waiting(
    output_directory: Path, watch: RankWatch, publisher: StatusPublisher, wait: Callable[[], object]
) -> bool:
    """Wait until no other rank works. True if this rank has to merge: rank 0, or its substitute."""
    own = publisher.status
    # A rank that stops at its first failure does not wait: its exit makes the launcher end the others.
    if own.state is RankState.FAILED:
        return not any(report.alive for report in watch.look() if report.rank != own.rank)
    # The others stay until rank 0 has gone. If it left no current tables, the lowest live rank takes its place.
    while True:
        reports = watch.look()
        if not reports[0].alive and tables_are_current(output_directory):
            return False
        lowest = lowest_live_rank(reports)
        if lowest is None or lowest >= own.rank:
            wait()
            return True
        if not publisher.is_heard:
            # The others wait for this rank's status. It cannot publish one, so its exit tells them.
            return False
        time.sleep(0.2)


@contextmanager
def joined(context: DistributedContext, options: RunOptions) -> Iterator[RankHost]:
    """Make this process a rank of a program that does nothing else, for a ``with`` block; yield its host."""
    if context.launched_by_torchrun:
        die_with_parent()
    check_trackers(options.tracking, key="tracking")
    limit_threads(options.torch_threads)
    join_freed_memory_at_once()
    if options.deterministic:
        calculate_deterministically()
    with initialise(context, process_group=options.process_group) as ranks:
        yield RankHost(ranks, is_whole_program=True, writes_report=True)


# Show a run while it goes on, and write its tables at the end.


@contextmanager
def full_disk_explained() -> Iterator[None]:
    """Add the way out to the error of a full disk."""
    try:
        yield
    except DiskUnusableError as error:
        raise DiskUnusableError(f"{error}; the run stops: make room, then go on with --resume") from error


def live_tracking(request: RunRequest, started: StartedRun) -> AbstractContextManager[object]:
    """Return the context that sends the results of all ranks to the trackers, a null context without any."""
    names = request.options.tracking
    if not names:
        return nullcontext()
    # It loads pandas, which takes half a second.
    live = imported("isaaclab_arena.tracking.watched_run:LiveTracking")
    return live(started.output_directory, started.plan, names)


@contextmanager
def shown_while_it_runs(
    request: RunRequest, output_directory: Path, host: Host, look: Callable[[], Sequence[RankReport]]
) -> Iterator[None]:
    """Show the progress of all ranks, and update the run's page, within a `with` block."""

    def write_page() -> None:
        from isaaclab_arena.report import writing  # noqa: PLC0415  pandas, see merge_and_show

        # The page links films, since embedding reads all of them again.
        writing.write_report([output_directory], embed_mb=0.0, running=True)

    _LOG.info("writing to %s", output_directory)
    with ExitStack() as stack:
        if host.shows_progress:
            stack.enter_context(ProgressDisplay(look))
        if host.writes_report and not request.options.no_report:
            stack.enter_context(LiveReport(write_page))
        yield


def merge_and_show(
    request: RunRequest,
    host: Host,
    output_directory: Path,
    *,
    save_conditions: Callable[[], None],  # of `saving_conditions`, called once the tables are up to date
    last_line: str = "",  # of `how_to_go_on`, shown below the table of an incomplete run
    ranks_at_work: Sequence[int] = (),  # they have not ended; the last of them writes and shows the final tables
    is_finished: bool = False,  # no episode was left to run
) -> int:
    """Write and show the tables. Return the exit code: 0 if the run is complete, else 1."""
    # The first step of a run should not wait for pandas. Its import makes many objects, which all stay.
    with without_collecting():
        from isaaclab_arena.results.console import print_summary  # noqa: PLC0415  pandas
        from isaaclab_arena.results.merge import merge_results, stale_tables, write_tables  # noqa: PLC0415  pandas

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
    save_conditions()

    page = None
    if host.writes_report and not request.options.no_report:
        from isaaclab_arena.report import writing  # noqa: PLC0415  pandas

        try:
            page = writing.write_page([writing.ReportedRun(directory=output_directory, merged=merged)])
        except (ArenaError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            # The tables hold the results, so the run does not fail.
            _LOG.warning("there is no page of this run: %s", error)
    if merged.complete or not host.is_whole_program:
        last_line = ""

    def show(console: Console) -> None:
        print_summary(merged, output_directory, console, report=page, last_line=last_line)

    if host.shows_results:
        show_results(show)
    if last_line:
        # Must appear below what a launcher prints about a failed rank, and so below the tables of later ranks.
        ranks = ", ".join(map(str, ranks_at_work))
        not_last = f"still at work when this rank ended: rank {ranks}; what they finished is in the last table above"
        leave_last_words(f"{not_last}\n{last_line}" if ranks_at_work else as_text(show))
    return 0 if merged.complete else 1


def consolidate_what_ranks_left(
    attempt: Attempt, output_directory: Path, *, rank: int = 0, is_all: bool = False
) -> None:
    """Move episodes that ranks left into their datasets; all ranks must have ended."""
    # `is_all`: the ranks are on other nodes and never make datasets. A full disk raises `DiskUnusableError`.
    for job in (work.job for work in attempt.jobs):
        directory = output_directory / job
        try:
            notes, loss = consolidate_leftovers(directory, job, is_all=is_all)
        except DiskUnusableError:
            raise
        except StorageError as error:
            notes, loss = [], str(error)
        for note in notes:
            _LOG.log(logging.DEBUG if is_all else logging.WARNING, "%s", note)
        # A job with lost recordings, or without a dataset, has failed, whatever its ranks reported.
        if loss is None:
            continue
        reports, _ = read_job_reports(directory, job, attempt.run)
        if any(each.attempt == attempt.number and each.status is ReportedStatus.FAILED for each in reports):
            continue
        _LOG.error("job '%s' has failed: %s", job, loss)
        device = attempt.devices[rank]
        report = failed_report(job, loss, rank=rank, device=device, attempt=attempt.number, run=attempt.run)
        write_job_report(directory, report)


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

    def save() -> None:
        try:
            for line in save_conditions(path, output_directory, goes_on=goes_on):
                _LOG.warning("%s", line)
        except ArenaError as error:
            # The results are the purpose of the run: they are shown even if this file cannot be written.
            _LOG.error("--save_conditions: %s", error)

    return save


# Build the command that resumes a run: the original one with its launcher, ``--resume`` and the directory.

_SCRIPT = "isaaclab-arena"


def how_to_go_on(request: RunRequest, context: DistributedContext, output_directory: Path) -> str:
    """Return one line for the user: the command that resumes the run, or the option to add to the last command."""
    # Must run before a policy can change the working directory, in which the command was typed.
    is_below = output_directory.is_relative_to(Path.cwd())
    directory = str(output_directory.relative_to(Path.cwd()) if is_below else output_directory)
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
