"""The claim server of a run on a cluster, beside the run's directory: its orders, its claim table, and deliveries."""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from pydantic import validate_call

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.evaluation.claims import Blamed, Claim, ClaimTable, Death, Measured, Suspects
from isaaclab_arena.evaluation.job import contents_of_jobs, episode_of
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.planning import RunRequest, answer_watch, divided_jobs
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.evaluation.running_episodes import RANKS_LOST
from isaaclab_arena.evaluation.start_up import named_contents
from isaaclab_arena.interfaces.episode import EpisodeRanges, EpisodeRecord, Outcome, as_ranges
from isaaclab_arena.paths import now
from isaaclab_arena.registry import imported
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.contents import Provenance, changes, shown
from isaaclab_arena.storage.disk import RunLock, adapter, json_line, write_at, write_bytes
from isaaclab_arena.storage.ledger import Attempt, commit_line, parse_line
from isaaclab_arena.storage.recovery import EpisodeCommits
from isaaclab_arena.storage.reports import JobReport, failed_report, write_job_report

# The orders that reach the nodes of a run, and the check that each can carry them out.

WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """The requirements of a node that runs ranks."""

    program: str  # module whose ``asked_for`` reads the command line
    arguments: tuple[str, ...]  # command line after the program's name
    # Directory of the command; None if the cluster copies the working directory to each node.
    working_directory: str | None
    jobs_hash: str  # of the resolved jobs
    contents: dict[str, str]  # name -> hash or version of what jobs evaluate
    versions: dict[str, str]  # package -> version
    cpus: float  # cores per rank
    gpus: float  # GPUs per rank, or the fraction of one


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """The orders for every process of a run on a cluster."""

    run: str  # name of the run, for people
    needs: NodeNeeds
    config_hash: str  # of the plan's jobs
    output_directory: str
    attempt: Attempt  # the work left
    num_ranks: int  # at most at once
    node_directory: str | None  # on each node; None: the run's own if visible, else a temporary one


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a rank. A rank that died may start again; messages of its earlier lives are refused."""

    rank: int
    number: int = 0  # lives before this one


@dataclass(frozen=True, kw_only=True)
class LifeEnd:
    """The consequences of a rank's end."""

    pieces: int = 0  # open to other ranks again
    was_fruitful: bool = False  # the rank had finished something in that life
    lives_explained: int = 0  # deaths over an episode that is now an error, or a failed job


class RefusedError(ArenaError):
    """A node cannot take part in the run, so a rank has run nothing there."""

    host, node = "", ""  # name of the node, and its id in the cluster


class RankDiedError(Exception):
    """The process of a rank has died, for a reason in one line."""


def needs_of(request: RunRequest, options: ClusterOptions, *, working_directory: str | None) -> NodeNeeds:
    """Return the requirements of a node that runs ranks, as this node meets them."""
    program, *arguments = request.command_line
    return NodeNeeds(
        program=program,
        arguments=tuple(arguments),
        working_directory=working_directory,
        jobs_hash=request.config_hash,
        contents=named_contents(contents_of_jobs(request.jobs)),
        versions=versions(),
        cpus=options.cpus_per_rank,
        gpus=options.gpus_per_rank,
    )


def request_of(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it, after a chdir to the directory of the command."""
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(Problem(f"has no directory {needs.working_directory}; {WAY_OUT}"))
        os.chdir(needs.working_directory)
    return imported(f"{needs.program}:asked_for")(needs.arguments, may_import=True)


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it. `ConfigError` with all differences to the planning node."""
    # Versions come first, because another version may read the jobs differently.
    there, here = Provenance(facts=needs.versions), Provenance(facts=versions())
    told = [
        f"{each.name} is {each.now or 'absent'} instead of {each.before or 'absent'}"
        for each in there.differences(here)
    ]
    if told:
        raise ConfigError(Problem(f"has other versions: {'; '.join(told)}; {WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {WAY_OUT}"))
    found, absent = named_contents(contents_of_jobs(request.jobs)), "not there"
    told = [
        f"{name} is {shown(found.get(name, absent))} instead of {shown(needs.contents.get(name, absent))}"
        for name, _ in changes(needs.contents, found)
    ]
    if told:
        raise ConfigError(Problem(f"has other files: {'; '.join(told)}; {WAY_OUT}"))
    return request


def problem_of_node(needs: str) -> str | None:
    """Return the reason why this node cannot meet the needs (JSON), with its name and directory; None if it can."""
    try:
        checked_request(adapter(NodeNeeds).validate_json(needs))
    except ArenaError as error:
        told = str(error)
        way_out = "" if WAY_OUT in told else f"; {WAY_OUT}"
        return f"node {socket.gethostname()}, in {Path.cwd()}: {told}{way_out}"
    return None


# The claims and commits of all ranks.

_LOG = logging.getLogger(__name__)

EXCHANGES_PER_S = 200.0
"""Deliveries of all ranks together, at most, and as many questions for work. An actor of Ray answers some 1,350 calls a
second."""

_FILMS = f"{layout.VIDEOS_DIRECTORY}/*", layout.CONTACT_SHEET_FILE
FILES_OF_JOB = layout.SETTLED_FILE, layout.JOB_BEGUN_PATTERN, *_FILMS, "traceback_*.txt", layout.JOB_REPORT_PATTERN
"""The files of a job that a rank delivers besides episodes. The report comes last, because it promises the rest."""


Call: TypeAlias = tuple[str, Sequence[Any], bytes | None]
"""A method of `ClaimServer`, its arguments, and its ``content``, if it has any."""


def interval_s(num_ranks: int) -> float:
    """Return the time between two deliveries of each rank, or two questions of one without work [s]."""
    # A rank is taken for dead after 30 s of silence, in which several deliveries may get lost.
    return min(max(0.5, num_ranks / EXCHANGES_PER_S), 8.0)


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """The answer to a rank's question for a piece, or for the state of the claims."""

    claim: Claim | None = None  # None if the rank got no piece
    open_pieces: EpisodeRanges = ()  # of the job in question, claimed by no rank
    num_unfinished_jobs: int = 0  # jobs with pieces that are open or under way
    pieces_of_others: int = 0  # under way on other ranks
    settled: str | None = None  # content of the job's ``settled.json``, None if missing


class ClaimServer:
    """The claims and commits of a run for its ranks, one call at a time. Methods may raise `StorageError`."""

    # One claim table serves all ranks, and writes the same files as ranks that share a directory. A rank that was taken
    # for dead gets `ClaimsLostError`, and nothing of it is kept.
    def __init__(self, request: RunRequest, attempt: Attempt, output_directory: Path) -> None:
        self._attempt = attempt
        self._output_directory = output_directory
        # While this process commits, no other process may continue the run.
        self.lock = RunLock(output_directory).hold(alone=False)
        self._watch = answer_watch(
            output_directory,
            request.questions,
            {work.job: work.finished for work in attempt.jobs},
            attempt=attempt.number,
            max_equal_errors=request.options.max_equal_errors,
        )
        self._table = ClaimTable(
            divided_jobs(request.jobs, attempt, request.questions),
            output_directory,
            attempt,
            None,
            rank=0,
            lease_s=float("inf"),
            is_over=self._watch.is_over,
        )
        self._jobs = {divided.job.config.name: divided.job for divided in self._table.jobs.values()}
        self._suspects = Suspects(self._table.jobs)
        self._lives: dict[int, int] = {}
        self._machines: dict[int, str] = {}
        self._known_machines: set[str] = set()
        self._fruitful: set[int] = set()
        self._commits: dict[tuple[Life, str], EpisodeCommits] = {}
        self._stop_signal: int | None = None

    def claim(
        self,
        life: Life,
        built_environment: str | None = None,  # key of the rank's environment
        job_index: int | None = None,  # None for the next job
        piece: int | None = None,  # None for none of `job_index`
    ) -> ClaimAnswer:
        """Give a rank a piece, and report the state of the claims."""
        self._check(life)
        claim, settled = None, None
        if job_index is None:
            claim = self._table.claim_next(built_environment, rank=life.rank)
        elif piece is not None and piece not in self._suspects.pieces(job_index):
            # A suspect runs alone, not in env slots that become free.
            claim = self._table.claim(job_index, piece, rank=life.rank)
        if claim is not None:
            path = self._output_directory / self._table.jobs[claim.job_index].job.config.name / layout.SETTLED_FILE
            settled = path.read_text(encoding="utf-8") if job_index is None and path.exists() else None
            claim, job_index = self._suspects.give(claim), claim.job_index
        open_pieces = set[int]()
        if job_index is not None:
            open_pieces = self._table.open_pieces(job_index) - self._suspects.pieces(job_index)
        return ClaimAnswer(
            claim=claim,
            open_pieces=as_ranges(open_pieces),
            num_unfinished_jobs=self._table.num_unfinished_jobs(),
            # Only ranks without work use it, and it iterates over every claim.
            pieces_of_others=self._table.pieces_of_others(life.rank) if job_index is None else 0,
            settled=settled,
        )

    def begin(self, life: Life, claim: Claim, first: int, last: int) -> None:
        """Note the episodes of a piece that a rank may be playing from now on."""
        self._check(life)
        self._suspects.begin(life.rank, claim, first, last)

    def commit(self, life: Life, text: str, *, content: bytes | None = None) -> None:
        """Commit an episode as a rank does that shares the run's directory. `content` is its file, if it has one."""
        self._check(life)
        try:
            line = parse_line(text)
        except ValueError as error:
            raise StorageError(f"rank {life.rank} sent a line that is no episode: {error}") from error
        name = line.job_name
        if name not in self._jobs or line.rank != life.rank:
            raise StorageError(f"rank {life.rank} sent a line of job '{name}', rank {line.rank}")
        # A rank's life has a commit file of its own for each job.
        commits = self._commits.get((life, name))
        if commits is None:
            commits = self._commits[life, name] = EpisodeCommits(self._output_directory / name, life.rank)
        commits.commit(line, text, None if content is None else lambda path: write_bytes(path, content))
        # A run may have more ranks and jobs than a process may have open files.
        commits.close()
        self._fruitful.add(life.rank)
        if line.outcome is Outcome.ERROR:
            self._watch.suspect(name)

    def finish(self, life: Life, claim: Claim, measured: Measured) -> None:
        """Note that a rank has played its part of a piece; a piece that is played in part opens again."""
        self._check(life)
        self._fruitful.add(life.rank)
        if self._suspects.finish(life.rank, claim):
            self._table.finish(claim, measured)
        else:
            self._table.release(claim)

    def give_up(self, life: Life, job_index: int) -> None:
        """Note that a job has failed on a rank."""
        self._check(life)
        self._table.give_up(job_index)

    def keep(self, life: Life, name: str, offset: int | None = None, *, content: bytes) -> None:
        """Write another file of a rank; with `offset` [bytes] a part of a growing one."""
        self._check(life)
        # Any process can send names: `StorageError` for a file that ranks do not write.
        path, log = PurePosixPath(name), f"rank{life.rank}.log"
        patterns = [each for each in FILES_OF_JOB if each.count("/") == len(path.parts) - 2 and path.match(each)]
        is_of_job = bool(patterns) and path.parts[0] in self._jobs and ".." not in path.parts
        if not is_of_job and name not in (f"logs/{log}", f"logs/rank{life.rank}.status.json"):
            raise StorageError(f"rank {life.rank} sent '{name}', which is no file that a rank writes")
        target = self._output_directory / path
        if path.name == log and life.number:
            # Each life has its own log.
            target = target.with_stem(f"rank{life.rank}_life{life.number}")
        if offset is not None:
            write_at(target, offset, content)
        elif path.match(layout.JOB_REPORT_PATTERN):
            try:
                report = adapter(JobReport).validate_json(content)
            except ValueError as error:
                raise StorageError(f"rank {life.rank} sent '{name}', which is no report: {error}") from error
            if report.rank != life.rank:
                raise StorageError(f"rank {life.rank} sent '{name}', a report of rank {report.rank}")
            write_job_report(target.parent, report)
        elif path.name != layout.SETTLED_FILE or not target.exists():
            write_bytes(target, content, overwrite=True)

    def beat(self, life: Life, machine: str) -> tuple[int | None, list[str]]:
        """Note that a rank is at work, and where. Return the signal that stops the run, and the jobs that are over."""
        self._check(life)
        self._machines[life.rank] = machine
        self._known_machines.add(machine)
        return self._stop_signal, [name for name in self._jobs if self._watch.is_over(name)]

    def end(self, life: Life, reason: str = "") -> LifeEnd:
        """Note that a rank has ended, and open its unfinished pieces to other ranks."""
        if self._lives.get(life.rank, 0) != life.number:
            return LifeEnd()
        pieces, blamed = self._table.give_back(life.rank), []
        was_fruitful = life.rank in self._fruitful
        # With a `reason` the rank has died, and its running episodes are suspected; it is empty for any other end.
        if reason:
            death = Death(rank=life.rank, reason=reason, machine=self._machines.get(life.rank))
            num_machines = len(self._known_machines)
            blamed = self._suspects.die(death, pieces, self._table.committed, num_machines=num_machines)
        for each in blamed:
            self._blame(life, each)
        self._suspects.leave(life.rank)
        self._lives[life.rank] = life.number + 1
        self._machines.pop(life.rank, None)
        self._fruitful.discard(life.rank)
        explained = sum(len(each.deaths) for each in blamed)
        return LifeEnd(pieces=len(pieces), was_fruitful=was_fruitful, lives_explained=explained)

    def stop(self, signal_number: int) -> None:
        """Request all ranks to stop."""
        self._stop_signal = signal_number

    def num_unfinished_jobs(self) -> int:
        """Return the number of jobs with pieces that are open or under way."""
        self._table.refresh()
        return self._table.num_unfinished_jobs()

    def _check(self, life: Life) -> None:
        if self._lives.get(life.rank, 0) != life.number:
            raise ClaimsLostError(f"rank {life.rank} was taken for dead, and others have its work")

    def _blame(self, life: Life, blamed: Blamed) -> None:
        """Commit an episode over which ranks died as an error, without a recording, or fail the job."""
        job = self._table.jobs[blamed.job_index].job
        deaths = "; ".join(f"rank {each.rank}: {each.reason}" for each in blamed.deaths)
        if blamed.episode_index is None:
            error = f"ranks died over the job as a whole, over no single episode of it: {deaths}"
            _LOG.error("job '%s' has failed: %s", job.config.name, error)
            attempt, device = self._attempt, self._attempt.devices[life.rank]
            report = failed_report(
                job.config.name, error, rank=life.rank, device=device, attempt=attempt.number, run=attempt.run
            )
            self._table.give_up(blamed.job_index)
            write_job_report(self._output_directory / job.config.name, report)
            return
        error = f"every rank that ran this episode died, the last with nothing beside it: {deaths}"
        episode = episode_of(job, blamed.episode_index)
        record = EpisodeRecord(
            episode=episode,
            env_id=0,
            outcome=Outcome.ERROR,
            success=None,
            length=0,
            episode_return=0.0,
            termination=RANKS_LOST,
            conditions=episode.saved_conditions or {},
            language_instruction=job.config.language_instruction or "",
            error=error,
        )
        line = commit_line(
            record,
            rank=life.rank,
            attempt=self._attempt.number,
            episode_in_env=0,
            timestamp=now(local=True),
            wall_s=0.0,
        )
        _LOG.error("episode %d of job '%s' is an error: %s", blamed.episode_index, job.config.name, error)
        self.commit(life, json_line(line))


_CALLS = {name: validate_call(each) for name, each in vars(ClaimServer).items() if not name.startswith("_")}


def answered(claim_server: ClaimServer, calls: Sequence[Call]) -> Any:
    """Make calls of another process in order, with checked arguments, and return the answer to the last one."""
    answer = None
    for method, arguments, content in calls:
        more = {} if content is None else {"content": content}
        answer = _CALLS[method](claim_server, *arguments, **more)
    return answer
