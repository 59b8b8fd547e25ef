"""The claim server of a run on a cluster, and a rank, which reaches the claims and commits of all ranks through it."""

import logging
import os
import re
import shutil
import socket
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import torch
from pydantic import validate_call

from isaaclab_arena import garbage, logs, paths, registry
from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.distributed import context as processes
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import ArenaError, ConfigError, StorageError
from isaaclab_arena.evaluation import claims, heartbeat, job_run, planning, queues, run_start, running_episodes
from isaaclab_arena.evaluation.job import contents_of_jobs, episode_of
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome, as_ranges, contain, of_ranges
from isaaclab_arena.storage import atomic, contents, layout, ledger
from isaaclab_arena.storage.commits import CommitLine, CommitWriter, commit_line, line_text, parse_line

# The orders that reach the nodes of a run, and the check that each can carry them out.

WAY_OUT = "install and copy the same on every node, or ship it with the job: ray job submit --working-dir"


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """The requirements of a node that runs ranks."""

    command_line: tuple[str, ...]  # the module whose ``asked_for`` reads it, and its arguments
    working_directory: str | None  # of the command; None if the cluster copies it to each node
    jobs_hash: str  # of the resolved jobs
    contents: dict[str, str]  # name -> hash or version of each content that jobs evaluate
    versions: Mapping[str, str]  # package -> version
    cpus: float  # cores per rank
    gpus: float  # GPUs per rank, or the fraction of one


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """The orders for every process of a run on a cluster."""

    run: str  # name of the run, for people
    needs: NodeNeeds
    config_hash: str  # of the plan's jobs
    output_directory: str
    attempt: ledger.Attempt  # the work left
    node_directory: str | None  # on each node; None: the run's own if visible, else a temporary one


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a rank. A rank that died may start again; messages of its earlier lives are refused."""

    rank: int
    number: int = 0  # lives before this one


class RefusedError(ArenaError):
    """A node cannot take part in the run, so a rank has run nothing there."""

    host, node = "unknown", ""  # name of the node, and its id in the cluster


class RankDiedError(Exception):
    """The process of a rank has died, for a reason in one line."""


def needs_of(request: planning.RunRequest, options: ClusterOptions, *, working_directory: str | None) -> NodeNeeds:
    """Return the requirements of a node that runs ranks, as this node meets them."""
    return NodeNeeds(
        command_line=tuple(request.command_line),
        working_directory=working_directory,
        jobs_hash=request.config_hash,
        contents=run_start.named_contents(contents_of_jobs(request.jobs)),
        versions=contents.versions(),
        cpus=options.cpus_per_rank,
        gpus=options.gpus_per_rank,
    )


def request_of(needs: NodeNeeds) -> planning.RunRequest:
    """Return the run's request as this node reads it, after a chdir to the directory of the command."""
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(f"has no directory {needs.working_directory}; {WAY_OUT}")
        os.chdir(needs.working_directory)
    program, *arguments = needs.command_line
    return registry.imported(f"{program}:asked_for")(tuple(arguments))


def checked_request(needs: NodeNeeds) -> planning.RunRequest:
    """Return the run's request as this node reads it. `ConfigError` with all differences to the planning node."""
    # Versions come first, because another version may read the jobs differently.
    _refuse_others("versions", needs.versions, contents.versions(), "absent")
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(f"reads other jobs from {request.source_file}; {WAY_OUT}")
    _refuse_others("files", needs.contents, run_start.named_contents(contents_of_jobs(request.jobs)), "not there")
    return request


def _refuse_others(what: str, there: Mapping[str, str], here: Mapping[str, str], absent: str) -> None:
    told = [
        f"{name} is {contents.shown(here.get(name, absent))} instead of {contents.shown(there.get(name, absent))}"
        for name, _ in contents.changes(there, here)
    ]
    if told:
        raise ConfigError(f"has other {what}: {'; '.join(told)}; {WAY_OUT}")
    if unknown := sorted(name for name, content in [*there.items(), *here.items()] if content == UNKNOWN):
        names = "; ".join(dict.fromkeys(unknown))
        _LOG.warning("node %s may have other %s: unknown, so not compared: %s", socket.gethostname(), what, names)


def problem_of_node(needs: str) -> str | None:
    """Return the reason why this node cannot meet the needs (JSON), with its name and directory; None if it can."""
    try:
        checked_request(atomic.adapter(NodeNeeds).validate_json(needs))
    except ArenaError as error:
        told = str(error) if WAY_OUT in str(error) else f"{error}; {WAY_OUT}"
        return f"node {socket.gethostname()}, in {Path.cwd()}: {told}"
    return None


# The claims and commits of all ranks.

_LOG = logging.getLogger(__name__)

EXCHANGES_PER_S = 200.0
"""Most deliveries of all ranks together, and most questions for work. An actor of Ray answers 1,350 calls a second."""

_FILMS = f"{layout.VIDEOS_DIRECTORY}/*", layout.CONTACT_SHEET_FILE
FILES_OF_JOB = layout.SETTLED_FILE, layout.JOB_BEGUN_PATTERN, *_FILMS, "traceback_*.txt", layout.JOB_REPORT_PATTERN
"""The files of a job that a rank delivers besides episodes. The report comes last, because it promises the rest."""

Call: TypeAlias = tuple[str, Sequence[Any], bytes | None]
"""A method of `ClaimServer`, its arguments without the life of the asking rank, and its ``content``, if it has any."""


def interval_s(num_ranks: int) -> float:
    """Return the time between two deliveries of each rank, or two questions of one without work [s]."""
    # A rank is taken for dead after 30 s of silence, in which several deliveries may get lost.
    return min(max(0.5, num_ranks / EXCHANGES_PER_S), 8.0)


_ClaimAnswer: TypeAlias = tuple[claims.Claim | None, claims.ClaimState, str | None]
"""A rank's piece, if it got one, the state of the claims, and the content of the job's ``settled.json``, if needed."""


class ClaimServer:
    """The claims and commits of a run for its ranks, one call at a time. Methods may raise `StorageError`."""

    # One claim table serves all ranks, and writes the same files as ranks that share a directory.
    def __init__(self, request: planning.RunRequest, attempt: ledger.Attempt, output_directory: Path) -> None:
        self._output_directory = output_directory
        # While this process commits, no other process may continue the run.
        self.lock = ledger.RunLock(output_directory).hold(alone=False)
        questions, most = request.questions, request.options.max_equal_errors
        self._watch = planning.answer_watch(output_directory, questions, attempt.number, attempt.states, most)
        jobs, is_over = planning.divided_jobs(request.jobs, attempt, questions), self._watch.is_over
        self._table = claims.ClaimTable(jobs, output_directory, attempt, None, rank=0, is_over=is_over)
        self._names = [divided.job.config.name for divided in jobs.values()]
        self._suspects = claims.Suspects(jobs)
        self._lives: dict[int, int] = {}
        self._machines: dict[Life, str] = {}
        self._fruitful: set[Life] = set()
        self._commits: dict[tuple[Life, str], CommitWriter] = {}
        self._stop_signal: int | None = None

    def ask(self, calls: Sequence[Call], life: Life | None = None) -> Any:
        """Make calls of a rank (None: of the driver) in order, with checked arguments, and return the last answer."""
        # Nothing is kept of a rank that was taken for dead.
        if life is not None and self._lives.get(life.rank, 0) != life.number:
            raise ClaimsLostError(f"rank {life.rank} was presumed dead, and others have its work")
        answer, asking = None, [] if life is None else [life]
        for method, arguments, content in calls:
            answer = _CALLS[method](self, *asking, *arguments, *([] if content is None else [content]))
        return answer

    def claim(self, life: Life, built: str | None = None, job_index: int | None = None, piece: int = 0) -> _ClaimAnswer:
        """Give a rank a piece, and report the state of the claims on its job, else on the job in question."""
        # `built`: key of the rank's environment. `job_index` None: the next job.
        claim, settled = None, None
        if job_index is None:
            claim = self._table.claim_next(built, rank=life.rank)
        elif piece not in self._suspects.pieces(job_index):
            # A suspect runs alone, not in env slots that become free.
            claim = self._table.claim(job_index, piece, rank=life.rank)
        if claim is not None:
            path = self._output_directory / self._table.jobs[claim.job_index].job.config.name / layout.SETTLED_FILE
            settled = path.read_text(encoding="utf-8") if job_index is None and path.exists() else None
            claim, job_index = self._suspects.give(claim), claim.job_index
        state = self._table.state(job_index, rank=life.rank)
        if job_index is not None and (suspected := self._suspects.pieces(job_index)):
            state = replace(state, open_pieces=as_ranges(of_ranges(state.open_pieces) - suspected))
        return claim, state, settled

    def begin(self, life: Life, claim: claims.Claim, first: int, last: int) -> None:
        """Note the episodes of a piece that a rank may be playing from now on."""
        self._suspects.begin(life.rank, claim, first, last)

    def commit(self, life: Life, text: str, content: bytes | None = None) -> None:
        """Commit an episode as a rank does that shares the run's directory. `content` is its file, if it has one."""
        try:
            line = parse_line(text)
        except ValueError as error:
            raise StorageError(f"rank {life.rank} sent a line that is no episode: {error}") from error
        name = line.job
        if name not in self._names or line.rank != life.rank:
            raise StorageError(f"rank {life.rank} sent a line of job '{name}', rank {line.rank}")
        # A rank's life has a commit file of its own for each job.
        commits = self._commits.get((life, name)) or CommitWriter(self._output_directory / name, life.rank)
        self._commits[life, name] = commits
        commits.commit(line, text, None if content is None else lambda path: atomic.write_bytes(path, content))
        # A run may have more ranks and jobs than a process may have open files.
        commits.close()
        self._fruitful.add(life)
        if line.outcome is Outcome.ERROR:
            self._watch.suspects[name] += 1

    def finish(self, life: Life, claim: claims.Claim, measured: claims.Measured) -> None:
        """Note that a rank has played its part of a piece; a piece that is played in part opens again."""
        self._fruitful.add(life)
        if self._suspects.finish(life.rank, claim):
            self._table.finish(claim, measured)
        else:
            self._table.give_back(life.rank, claim)

    def give_up(self, life: Life, job_index: int) -> None:
        """Note that a job has failed on a rank."""
        del life
        self._table.give_up(job_index)

    def keep(self, life: Life, name: str, offset: int | None, content: bytes) -> None:
        """Write another file of a rank; with `offset` [bytes] a part of a growing one."""
        # Any process can send names: `StorageError` for a file that ranks do not write.
        path, log = PurePosixPath(name), f"rank{life.rank}.log"
        patterns = [each for each in FILES_OF_JOB if each.count("/") == len(path.parts) - 2 and path.match(each)]
        is_of_job = bool(patterns) and path.parts[0] in self._names and ".." not in path.parts
        if not is_of_job and name not in (f"logs/{log}", f"logs/rank{life.rank}.status.json"):
            raise StorageError(f"rank {life.rank} sent '{name}', which is no file that a rank writes")
        target = self._output_directory / path
        if path.name == log and life.number:
            # Each life has its own log.
            target = target.with_stem(f"rank{life.rank}_life{life.number}")
        if offset is not None:
            atomic.write_at(target, offset, content)
        elif path.match(layout.JOB_REPORT_PATTERN):
            try:
                report = atomic.adapter(ledger.JobReport).validate_json(content)
            except ValueError as error:
                raise StorageError(f"rank {life.rank} sent '{name}', which is no report: {error}") from error
            if report.rank != life.rank:
                raise StorageError(f"rank {life.rank} sent '{name}', a report of rank {report.rank}")
            ledger.write_job_report(target.parent, report)
        elif path.name != layout.SETTLED_FILE or not target.exists():
            atomic.write_bytes(target, content, overwrite=True)

    def beat(self, life: Life, machine: str) -> tuple[int | None, list[str]]:
        """Note that a rank is at work, and where. Return the signal that stops the run, and the jobs that are over."""
        self._machines[life] = machine
        return self._stop_signal, [name for name in self._names if self._watch.is_over(name)]

    def end(self, life: Life, reason: str = "") -> tuple[int, bool, int]:
        """Open the pieces of a rank that has ended; return their number, its success, and the deaths explained."""
        # A rank has success if it finished something in that life. Deaths are explained by an episode that is now an
        # error, or by a job that has failed. With a `reason` the rank has died, and its running episodes are suspected.
        rank, blamed, was_fruitful = life.rank, [], life in self._fruitful
        pieces = self._table.give_back(rank)
        if reason:
            death = claims.Death(rank=rank, reason=reason, machine=self._machines.get(life))
            machines = {*self._machines.values()}
            blamed = self._suspects.die(death, pieces, self._table.committed, num_machines=len(machines))
        # Commit an episode over which ranks died as an error, without a recording, or fail the job.
        for each in blamed:
            job, index = self._table.jobs[each.job_index].job, each.episode_index
            name, deaths = job.config.name, "; ".join(f"rank {death.rank}: {death.reason}" for death in each.deaths)
            if index is None:
                error = f"ranks died before the job ran an episode: {deaths}"
                self._table.give_up(each.job_index)
                ledger.write_failed_report(self._output_directory / name, name, error, self._table.attempt, rank)
                continue
            error = f"every rank that ran this episode died, the last one while it ran nothing else: {deaths}"
            _LOG.error("episode %d of job '%s' is an error: %s", index, name, error)
            episode = episode_of(job, index)
            record = EpisodeRecord(
                **vars(running_episodes.failed(running_episodes.RANKS_LOST, error)),
                episode=episode,
                env_id=0,
                length=0,
                episode_return=0.0,
                conditions=episode.saved_conditions or {},
                language_instruction=job.config.language_instruction or "",
            )
            here = {"rank": rank, "attempt": self._table.attempt.number}
            line = commit_line(record, episode_in_env=0, timestamp=paths.now(local=True), wall_s=0.0, **here)
            self.commit(life, line_text(line))
        self._suspects.playing.pop(rank, None)
        self._lives[rank] = life.number + 1
        return len(pieces), was_fruitful, sum(len(each.deaths) for each in blamed)

    def stop(self, signal_number: int) -> None:
        """Request all ranks to stop."""
        self._stop_signal = signal_number

    def num_unfinished_jobs(self) -> int:
        """Return the number of jobs with pieces that are open or under way."""
        return self._table.state().num_unfinished_jobs


_CALLS = {name: validate_call(each) for name, each in vars(ClaimServer).items() if name[0] != "_" and name != "ask"}


# A rank: its claims and commits, which it reaches through the claim server, and its jobs.

Ask: TypeAlias = Callable[[Sequence[Call]], Any]
"""Makes calls of the claim server in order, and returns the last answer as plain JSON; see `ClaimServer.ask`."""

_MAX_BYTES = 16_000_000
_MAX_CALLS = 2_000


@dataclass(eq=False)
class RemoteLedger:
    """The claims and commits of all ranks, as a rank reaches them through the claim server; see `delivering`."""

    # The rank only waits for the claim server's answer if it claims a piece, or begins an episode. All else goes in a
    # thread, in the order in which it came about; each delivery is a heartbeat.
    orders: RunOrders
    life: Life
    jobs: Mapping[int, planning.DividedJob]  # by index
    ask: Ask
    directory: Path  # of this rank's files
    _: KW_ONLY
    is_own: bool  # False: the run's directory, so neither episodes nor files are delivered
    clock: Callable[[], float] = time.monotonic
    failure: Exception | None = field(default=None, init=False)  # ended the deliveries, so this rank must end
    stop_signal: int | None = field(default=None, init=False)  # that stops the run
    jobs_over: frozenset[str] = field(default=frozenset(), init=False)  # names of jobs that need no further episode
    _said: claims.ClaimState = field(default_factory=claims.ClaimState, init=False)
    _said_at: float = field(default=0.0, init=False)
    # Results: calls that are to be made, each with the file of its content.
    _outbox: deque[tuple[str, Sequence[Any], Path | None]] = field(default_factory=deque, init=False)
    _log_sent: int = field(default=0, init=False)  # [bytes]
    _kept: set[Path] = field(default_factory=set, init=False)  # delivered files that the rank still needs

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Deliver all that is written within a `with` block, the rest at its end."""

        def deliver_until_end(pause: Callable[[float], bool]) -> None:
            try:
                self.deliver()
                while not pause(interval_s(self.orders.attempt.world_size)):
                    self.deliver()
                self.deliver()
            except Exception as error:  # noqa: BLE001  on any error the rank must end and report it
                self.failure = error

        with heartbeat.in_a_thread(deliver_until_end, name="deliveries"):
            yield
        if self.failure is not None:
            raise self.failure

    def stop_requested(self) -> bool:
        """Whether this rank is to end: the run stops, or the claim server cannot be reached."""
        return self.failure is not None or self.stop_signal is not None

    def claim_next(self, built_environment: str | None) -> claims.Claim | None:
        """Claim a piece of the next job; None if no piece is free."""
        return self._hear(built_environment)

    def claim(self, job_index: int, piece: int) -> claims.Claim | None:
        """Claim a piece; None if it is not open."""
        # The state may be a second old, because a rank looks for each of its episodes.
        is_fresh = self._said.job_index == job_index and self.clock() - self._said_at < 1.0
        if is_fresh and not contain(self._said.open_pieces, piece):
            return None
        return self._hear(None, job_index, piece)

    def begin(self, claim: claims.Claim, first: int, last: int) -> None:
        """Report the episodes that may run from now on; they are suspected if this rank dies."""
        # This call waits for the claim server, because the rank may die of the episodes at once.
        self.ask([("begin", (claim, first, last), None)])

    def holds(self, claim: claims.Claim) -> bool:
        """Whether no other rank has taken the piece over."""
        # A rank without access to the claims need not know: nothing is committed of a rank that was taken for dead.
        is_taken = not self.is_own and claims.is_taken_over(self.directory, self.orders.attempt, claim)
        return self.failure is None and not is_taken

    def finish(self, claim: claims.Claim, measured: claims.Measured) -> None:
        """Report a finished piece, after its episodes."""
        self._outbox.append(("finish", (claim, measured), None))

    def give_up(self, job_index: int) -> None:
        """Report a failed job."""
        self._outbox.append(("give_up", (job_index,), None))

    def state(self, job_index: int | None = None) -> claims.ClaimState:
        """Return the latest state from the claim server, without open pieces unless it is about this job."""
        return self._said if job_index in (None, self._said.job_index) else replace(self._said, open_pieces=())

    def commit(self, directory: Path, line: CommitLine, text: str, write: Callable[[Path], object] | None) -> None:
        """Hand a finished episode of a job over, with its file on this node; see `CommitWriter.commit`."""
        path = None
        if write is not None:
            path = directory / layout.EPISODES_DIRECTORY / layout.episode_file_name(line.episode_index)
            # The rank may have played the episode before, in a piece that it lost.
            path.unlink(missing_ok=True)
            write(path)
        self._outbox.append(("commit", (text,), path))

    def deliver(self) -> None:
        """Deliver everything written until now, in as many deliveries as it takes."""
        written, is_done = self._written(), False
        while not is_done:
            calls, sent, size = list[Call](), list[Path](), 0
            for call, path in written:
                calls.append(call)
                sent += [] if path is None else [path]
                size += len(call[2] or b"")
                if size >= _MAX_BYTES or len(calls) >= _MAX_CALLS:
                    break
            is_done = size < _MAX_BYTES and len(calls) < _MAX_CALLS
            # Each delivery is a heartbeat.
            if self.is_own:
                calls += self._keep(heartbeat.status_path(self.directory, self.life.rank))
            self.stop_signal, over = self.ask([*calls, ("beat", (processes.machine_identity(),), None)])
            self.jobs_over = frozenset(over)

            # The claim server has everything by now, so it can be removed here.
            for path in sent:
                path.unlink(missing_ok=True)

    def _written(self) -> Iterator[tuple[Call, Path | None]]:
        """Yield everything written until now as calls, each with the file that this rank needs no more after it."""
        # Files are listed before results, so that the report of a job does not come before its last episode.
        of_jobs = (path for pattern in FILES_OF_JOB for path in sorted(self.directory.glob(f"*/{pattern}")))
        files = [path for path in of_jobs if not path.name.startswith(".")] if self.is_own else []
        for _ in range(len(self._outbox)):
            method, arguments, path = self._outbox.popleft()
            yield (method, arguments, None if path is None else path.read_bytes()), path
        for path in (path for path in files if path not in self._kept):
            is_kept = path.name == layout.SETTLED_FILE
            self._kept |= {path} if is_kept else set()
            yield from ((call, None if is_kept else path) for call in self._keep(path))
        log = self.directory / "logs" / f"rank{self.life.rank}.log"
        while self.is_own and (part := self._keep(log, self._log_sent)) and (content := part[0][2]):
            self._log_sent += len(content)
            yield part[0], None

    def _keep(self, path: Path, offset: int | None = None) -> list[Call]:
        """Return the call that delivers a file, or a part of it from `offset` [bytes] on; none if it is missing."""
        # The final report may just have replaced the report that the rank wrote when the job began.
        with suppress(FileNotFoundError), path.open("rb") as stream:
            stream.seek(offset or 0)
            content = stream.read(-1 if offset is None else _MAX_BYTES)
            return [("keep", (str(path.relative_to(self.directory)), offset), content)]
        return []

    def _hear(self, built: str | None, job_index: int | None = None, piece: int = 0) -> claims.Claim | None:
        told = self.ask([("claim", (built, job_index, piece), None)])
        claim, self._said, settled = atomic.adapter(_ClaimAnswer).validate_python(told)
        self._said_at = self.clock()
        # Without the run's directory the rank needs a copy of the job's settled batch size.
        if claim is not None and settled is not None and self.is_own:
            name = self.jobs[claim.job_index].job.config.name
            atomic.write_text(self.directory / name / layout.SETTLED_FILE, settled, overwrite=True)
        return claim


@contextmanager
def directory_of_process(root: Path, rank: int) -> Iterator[Path]:
    """Yield a new directory below `root` for a ``with`` block. Remove those that dead processes have left there."""
    # Directories of other machines stay.
    begin, pid, machine = "isaaclab_arena_rank", os.getpid(), f"{zlib.crc32(processes.machine_identity().encode()):08x}"
    with atomic.storage_errors("make a directory in", root):
        root.mkdir(parents=True, exist_ok=True)
        for path in root.glob(f"{begin}*_{machine}_*"):
            owner = re.fullmatch(rf"{begin}[0-9]+_{machine}_([0-9]+)_([0-9]+)_.*", path.name)
            is_mine = owner is not None and path.lstat().st_uid == os.getuid()
            if owner and is_mine and not processes.process_is_running(int(owner[1]), int(owner[2]) or None):
                shutil.rmtree(path, ignore_errors=True)  # it follows no link
        prefix = f"{begin}{rank}_{machine}_{pid}_{processes.process_start_ticks(pid) or 0}_"
        own = tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True)
    with own as name:
        yield Path(name)


def run_rank(orders: RunOrders, life: Life, ask: Ask) -> str:
    """Run the claimed jobs until none is left, and return the rank's final state. `RefusedError`: not on this node."""
    logs.set_up_console_logging(life.rank)
    needs, attempt = orders.needs, orders.attempt
    # A node that cannot take part refuses the rank, which may then start on another node.
    try:
        request = checked_request(needs)
        options = request.options
        # The device is the GPU that the cluster assigned to this process, or the CPU.
        alone = processes.DistributedContext.from_environment({}, device="cpu" if needs.gpus == 0 else options.device)
        if needs.gpus and options.device is None and alone.device.type != "cuda":
            none = "the cluster has given this rank a GPU, but CUDA finds none"
            raise ConfigError(f"{none}; check the driver, or use --device cpu", key="--gpus_per_rank")
        context = replace(alone, rank=life.rank, world_size=attempt.world_size, local_world_size=1)
        jobs = planning.settled_jobs(request.jobs, attempt, options.fixed_policy_batch())
        request = replace(request, jobs=jobs)
    except ArenaError as error:
        raise RefusedError(str(error)) from error
    set_up_torch(options.torch_threads, deterministic=options.deterministic)
    garbage.join_freed_memory_at_once()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)

    # The rank writes into the directory of the run if this node sees it; it may see another one of that name.
    home, is_seen = Path(orders.output_directory), False
    if orders.node_directory is None:
        with suppress(ArenaError, OSError):
            is_seen = ledger.read_attempt(home, attempt.number).run_id == attempt.run_id
    own = directory_of_process(Path(orders.node_directory or tempfile.gettempdir()), life.rank)
    with nullcontext(home) if is_seen else own as directory:
        jobs = planning.divided_jobs(request.jobs, attempt, request.questions)
        remote = RemoteLedger(orders, life, jobs, ask, directory, is_own=not is_seen)
        size, stop, rest_s = attempt.world_size, remote.stop_requested, interval_s(attempt.world_size)
        queue = queues.DynamicQueue(
            remote, world_size=size, stop_requested=stop, is_over=lambda job: job in remote.jobs_over, rest_s=rest_s
        )
        publisher = heartbeat.StatusPublisher(directory, queue.first_status(life.rank, attempt.run_id))
        # The status beats until all is delivered: a rank without a beat for too long is taken for dead.
        with publisher, remote.delivering(), logs.log_file(directory / "logs" / f"rank{life.rank}.log", life.rank):
            return job_run.run_jobs(
                queue,
                request,
                attempt,
                context,
                publisher,
                stop,
                config_hash=orders.config_hash,
                remote_commit=None if is_seen else remote.commit,
                num_threads=options.num_threads or max(1, int(needs.cpus)),
            )
