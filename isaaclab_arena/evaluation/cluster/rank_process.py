"""One rank of a run on a cluster: its node's check, its claims, and the sender of its results."""

import json
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

import torch

from isaaclab_arena.distributed.context import (
    DistributedContext,
    limit_threads,
    machine_identity,
    process_is_running,
    process_start_ticks,
)
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.episode_ranges import of_ranges
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.builds import rank_settings
from isaaclab_arena.evaluation.claims import Claim, DividedJob, Measured, divided_jobs, is_taken_over
from isaaclab_arena.evaluation.cluster.supervisor import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    Delivery,
    DeliveryAnswer,
    FinishedPiece,
    GivenPiece,
    Life,
    NodeNeeds,
    Pace,
    RankEnd,
    RunOrders,
    SentEpisode,
    SentFile,
)
from isaaclab_arena.evaluation.contents import contents_of_jobs
from isaaclab_arena.evaluation.heartbeat import RankState, RankStatus, StatusPublisher, status_path
from isaaclab_arena.evaluation.job_run import run_jobs
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.evaluation.queues import DynamicQueue, RankWork, claims_directory
from isaaclab_arena.evaluation.settled import settled_jobs
from isaaclab_arena.evaluation.start_up import named_contents
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.logs import log_file, set_up_console_logging
from isaaclab_arena.registry import imported
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.contents import Provenance, changes, shown
from isaaclab_arena.storage.layout import (
    COMMIT_FILE_PATTERN,
    CONTACT_SHEET_FILE,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    SETTLED_FILE,
    VIDEOS_DIRECTORY,
    job_directory,
)
from isaaclab_arena.storage.run_plan import read_attempt

# Check that a node can run ranks of a run: the same packages, jobs file, checkpoints and classes.

WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it. `ConfigError` with all differences to the planning node."""
    # Versions come first, because another version may read the jobs differently.
    here, there = Provenance(facts=needs.versions), Provenance(facts=versions())
    told = [
        f"{each.name} is {each.now or 'absent'} instead of {each.before or 'absent'}"
        for each in here.differences(there)
    ]
    if told:
        raise ConfigError(Problem(f"has other versions: {'; '.join(told)}; {WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {WAY_OUT}"))
    found = named_contents(contents_of_jobs(request.jobs))
    absent = "not there"
    told = [
        f"{name} is {shown(found.get(name, absent))} instead of {shown(needs.contents.get(name, absent))}"
        for name, _ in changes(needs.contents, found)
    ]
    if told:
        raise ConfigError(Problem(f"has other files: {'; '.join(told)}; {WAY_OUT}"))
    return request


def request_of(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it, after a chdir to the directory of the command."""
    if needs.working_directory is not None:
        if not Path(needs.working_directory).is_dir():
            raise ConfigError(Problem(f"has no directory {needs.working_directory}; {WAY_OUT}"))
        os.chdir(needs.working_directory)
    return imported(f"{needs.program}:asked_for")(needs.arguments, may_import=True)


def problem_of_node(needs: NodeNeeds) -> str | None:
    """Return the reason why this node cannot take part, with its name and directory; None if it can."""
    try:
        checked_request(needs)
    except ArenaError as error:
        told = str(error)
        way_out = "" if WAY_OUT in told else f"; {WAY_OUT}"
        return f"node {socket.gethostname()}, in {Path.cwd()}: {told}{way_out}"
    return None


# Deliver the files that a rank writes on its node: finished episodes, then everything else, by a separate thread.

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 16_000_000
_MAX_EPISODES = 2_000
_WHOLE_FILES = (
    SETTLED_FILE,
    JOB_BEGUN_PATTERN,
    f"{VIDEOS_DIRECTORY}/*",
    CONTACT_SHEET_FILE,
    "traceback_*.txt",
    JOB_REPORT_PATTERN,
)
"""A rank's files of a job besides commits. The report comes last, because it promises the rest."""


@dataclass(kw_only=True)
class _Parcel:
    """A delivery under construction."""

    episodes: list[SentEpisode] = field(default_factory=list)
    files: list[SentFile] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)  # bytes of `episodes`, then of `files`
    size: int = 0  # of `contents` [bytes]
    read_to: dict[Path, int] = field(default_factory=dict)  # growing file -> offset up to which it is included [bytes]
    sent: list[Path] = field(default_factory=list)  # files to remove after the delivery
    kept: list[Path] = field(default_factory=list)  # whole files to keep after the delivery

    @property
    def is_full(self) -> bool:
        return self.size >= _MAX_BYTES or len(self.episodes) >= _MAX_EPISODES

    def add(self, content: bytes) -> int:
        self.contents.append(content)
        self.size += len(content)
        return len(content)


class ResultSender:
    """Delivers a rank's results to the claim server from a thread, and on exit all that is left. A context manager."""

    # The rank writes its usual files and never waits. A delivered file is removed. Each delivery is a heartbeat;
    # without results an empty delivery is sent at an interval that the claim server sets.
    def __init__(
        self,
        life: Life,
        directory: Path,  # of the rank's files
        deliver: Callable[[Delivery, bytes], DeliveryAnswer],
        *,
        stop: Callable[[int], None] = lambda _: None,  # called with the signal that stops the run
        sends_files: bool = True,  # False if the rank writes into the run's directory
        look_s: float = 0.25,  # between two checks for results
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_gone = False  # taken for dead by the claim server, so this rank must end and delivers nothing more
        self.jobs_over: frozenset[str] = frozenset()  # names of jobs that need no further episode
        self.failure: Exception | None = None  # error that ended the thread, None without
        self._life = life
        self._machine = machine_identity()
        self._directory = directory
        self._deliver = deliver
        self._stop = stop
        self._sends_files = sends_files
        self._look_s = look_s
        self._clock = clock
        self._pace = Pace()
        self._sent_at: float | None = None
        self._jobs: list[str] = []
        self.finished: list[FinishedPiece] = []  # pieces to report, after the episodes that are committed until then
        self.failed: list[int] = []  # failed jobs to report, by index
        self._read_to: dict[Path, int] = {}
        self._kept: set[Path] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_until_closed, name="result-sender", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        if self.failure is not None and exception[0] is None:
            raise self.failure
        self.send()

    def follow(self, job: str) -> None:
        """Deliver the files of a job from now on."""
        if job not in self._jobs:
            self._jobs.append(job)

    def send(self) -> None:
        """Deliver everything written until now."""
        while not self.is_gone and self._send_once():
            pass

    def is_due(self) -> bool:
        """Whether to deliver now: there are results, or the last delivery was `beat_s` ago."""
        if self._sent_at is None:
            return True
        since_s = self._clock() - self._sent_at
        if since_s >= self._pace.beat_s:
            return True
        if since_s < self._pace.delivery_s:
            return False
        if self.finished or self.failed:
            return True
        commits = (path for job in tuple(self._jobs) for path in self._commits(job))
        return self._sends_files and any(path.stat().st_size > self._read_to.get(path, 0) for path in commits)

    def _commits(self, job: str) -> list[Path]:
        return sorted(job_directory(self._directory, job).glob(COMMIT_FILE_PATTERN))

    def _send_until_closed(self) -> None:
        try:
            while not (self.is_gone or self._closing.wait(self._look_s)):
                if self.is_due():
                    self.send()
        except Exception as error:  # noqa: BLE001  on any error the rank must end and report it
            self.failure = error
            self.is_gone = True

    def _send_once(self) -> bool:
        """Make one delivery. Return True if there is more."""
        # Copied before the files are read: the episodes of a finished piece are on the disk by now.
        finished, failed = tuple(self.finished), tuple(self.failed)
        parcel, status = _Parcel(), None
        if self._sends_files:
            self._put_in(parcel)
            with suppress(FileNotFoundError):
                status = status_path(self._directory, self._life.rank).read_text(encoding="utf-8")
        # Some episodes do not fit, so their pieces must not be reported as finished yet.
        if parcel.is_full:
            finished = failed = ()
        delivery = Delivery(
            life=self._life,
            machine=self._machine,
            status=status,
            episodes=tuple(parcel.episodes),
            files=tuple(parcel.files),
            finished=finished,
            failed=failed,
        )
        self._sent_at = self._clock()
        answer = self._deliver(delivery, b"".join(parcel.contents))
        if answer.is_gone:
            self.is_gone = True
            return False
        # The claim server has everything by now, so it can be forgotten and removed here.
        del self.finished[: len(finished)], self.failed[: len(failed)]
        self._read_to |= parcel.read_to
        self._kept.update(parcel.kept)
        for path in parcel.sent:
            path.unlink(missing_ok=True)
        self._pace = answer.pace
        self.jobs_over = frozenset(answer.jobs_over)
        if answer.stop_signal is not None:
            self._stop(answer.stop_signal)
        return parcel.is_full

    def _put_in(self, parcel: _Parcel) -> None:
        jobs = tuple(self._jobs)
        for job, commits in ((each, path) for each in jobs for path in self._commits(each)):
            for line, end in _whole_lines(commits, self._read_to.get(commits, 0)):
                if parcel.is_full:
                    break
                name, size = json.loads(line).get("episode_file"), 0
                if name is not None:
                    file = commits.parent / name
                    size = parcel.add(file.read_bytes())
                    parcel.sent.append(file)
                parcel.episodes.append(SentEpisode(job=job, line=line, size=size))
                parcel.read_to[commits] = end
        if parcel.is_full:
            return

        # Whole files of the jobs, then the new part of the log.
        for job in jobs:
            directory = job_directory(self._directory, job)
            for path in (path for pattern in _WHOLE_FILES for path in sorted(directory.glob(pattern))):
                if parcel.is_full:
                    break
                if path in self._kept or path.name.startswith("."):
                    continue
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    # The final report has just replaced the report that the rank wrote when the job began.
                    continue
                size = parcel.add(content)
                parcel.files.append(SentFile(path=str(path.relative_to(self._directory)), size=size))
                (parcel.sent if path.parent.name == VIDEOS_DIRECTORY else parcel.kept).append(path)
        self._put_in_growth(parcel, self._directory / "logs" / f"rank{self._life.rank}.log")

    def _put_in_growth(self, parcel: _Parcel, path: Path) -> None:
        offset = self._read_to.get(path, 0)
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                content = stream.read(_MAX_BYTES)
        except FileNotFoundError:
            return
        if content:
            size = parcel.add(content)
            parcel.files.append(SentFile(path=str(path.relative_to(self._directory)), size=size, offset=offset))
            parcel.read_to[path] = offset + size


def _whole_lines(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """Yield the complete lines of a file after `offset`, without newline, each with the offset of its end."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line[:-1].decode("utf-8"), offset


# The claims of a run on a cluster for one rank: it queries the claim server, and remembers the last answer.

_REFRESH_INTERVAL_S = 1.0
_NAP_S = 0.5


class RemoteClaims:
    """The claims of all ranks, in the claim server; see `Claims`, whose methods these are."""

    def __init__(
        self,
        jobs: Sequence[DividedJob],
        life: Life,
        ask: Callable[[ClaimQuestion], ClaimAnswer],
        tell_begun: Callable[[BegunEpisodes], bool],  # returns True if this rank was taken for dead
        sender: ResultSender,
        *,
        output_directory: Path,  # of this rank's files
        claims_directory: Path | None = None,  # of the attempt, None if this rank does not see it
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs: Mapping[int, DividedJob] = {divided.index: divided for divided in jobs}
        self._life = life
        self._ask = ask
        self._tell_begun = tell_begun
        self._sender = sender
        self._output_directory = output_directory
        self._claims_directory = claims_directory
        self._clock = clock
        self._current: int | None = None
        self._open: set[int] = set()
        self._said = ClaimAnswer()
        self._refreshed_at: float | None = None
        self._was_refused = self._refusal_stands = False

    def refresh(self, *, now: bool = False) -> None:
        """Query the open pieces of the current job, at most once a second unless `now`."""
        # If the claim server has just refused a claim, the next `claim_next` need not ask again.
        self._refusal_stands = now and self._was_refused
        is_fresh = self._refreshed_at is not None and self._clock() - self._refreshed_at < _REFRESH_INTERVAL_S
        if self._current is not None and (now or not is_fresh):
            self._hear(self._current, ClaimQuestion(life=self._life, job_index=self._current))

    def claim_next(self, built_environment: str | None) -> Claim | None:
        """Claim a piece of the next job; None if no piece is free, or this rank must end."""
        if self._refusal_stands:
            self._refusal_stands = self._was_refused = False
            return None
        answer = self._hear(None, ClaimQuestion(life=self._life, built_environment=built_environment))
        self._was_refused = answer.given is None
        if answer.given is None:
            return None
        divided = self._jobs[answer.given.job_index]
        # Without the run's directory the rank needs a copy of the job's settled batch size.
        if answer.settled is not None and self._claims_directory is None:
            path = job_directory(self._output_directory, divided.job.config.name) / SETTLED_FILE
            write_text(path, answer.settled, overwrite=True)
        return self._claim(answer.given)

    def claim(self, job_index: int, piece: int) -> Claim | None:
        """Claim a piece; None if it is not open."""
        if job_index != self._current or piece not in self._open:
            return None
        answer = self._hear(job_index, ClaimQuestion(life=self._life, job_index=job_index, piece=piece))
        self._open.discard(piece)
        return None if answer.given is None else self._claim(answer.given)

    def holds(self, claim: Claim) -> bool:
        """Whether no other rank has taken the piece over."""
        if self._sender.is_gone:
            return False
        # A rank without access to the claims need not know: the claim server commits nothing of a rank taken for dead.
        return self._claims_directory is None or not is_taken_over(self._claims_directory, claim)

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Report the episodes that may run from now on; they are suspected if this rank dies."""
        begun = BegunEpisodes(life=self._life, job_index=claim.divided.index, piece=claim.piece, first=first, last=last)
        # This call waits for the claim server, because the rank may die of the episodes at once.
        if self._tell_begun(begun):
            self._sender.is_gone = True

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Report a finished piece, after its episodes are committed."""
        piece = FinishedPiece(
            job_index=claim.divided.index, piece=claim.piece, generation=claim.generation, measured=measured
        )
        self._sender.finished.append(piece)

    def give_up(self, job_index: int) -> None:
        """Report a failed job."""
        self._sender.failed.append(job_index)

    def open_episodes(self, job_index: int) -> int:
        """Return the number of episodes in open pieces of the current job, 0 for another job."""
        if job_index != self._current:
            return 0
        return sum(self._jobs[job_index].num_episodes[piece] for piece in self._open)

    def num_unfinished_jobs(self) -> int:
        """Return the number of jobs with pieces that are open or under way."""
        return self._said.num_unfinished_jobs

    def pieces_of_others(self) -> int:
        """Return the number of pieces under way on other ranks, 0 if this rank must end."""
        return 0 if self._sender.is_gone else self._said.pieces_of_others

    def rest(self, must_end: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> None:
        """Pause as the claim server requested, but stop soon after `must_end`. `pause` sleeps for some seconds."""
        left_s = self._said.rest_s
        while left_s > 0 and not must_end():
            pause(min(left_s, _NAP_S))
            left_s -= _NAP_S

    def _hear(self, job_index: int | None, question: ClaimQuestion) -> ClaimAnswer:
        self._said = answer = self._ask(question)
        if answer.is_gone:
            self._sender.is_gone = True
        self._current = answer.given.job_index if answer.given is not None else job_index
        self._open = set(of_ranges(answer.open_pieces))
        self._refreshed_at = self._clock()
        return answer

    def _claim(self, given: GivenPiece) -> Claim:
        return Claim(
            divided=self._jobs[given.job_index],
            piece=given.piece,
            generation=given.generation,
            taken_from=given.taken_from,
            committed=of_ranges(given.committed),
            suspects=of_ranges(given.suspects),
        )


# One rank of a run on a cluster: check its node, and run the jobs that it claims from the claim server.

_OWN_DIRECTORY = "isaaclab_arena_rank"
_OWNER = re.compile(rf"{_OWN_DIRECTORY}[0-9]+_([0-9a-f]{{8}})_([0-9]+)_([0-9]+)_.*")


class Claiming(Protocol):
    """The claim server of the run, from a rank's side; see `ClaimServer`."""

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Request a piece for this rank."""
        ...

    def begin(self, begun: BegunEpisodes) -> bool:
        """Report the episodes that this rank is about to play. Return True if it was taken for dead."""
        ...

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Deliver this rank's results."""
        ...


def run_rank(orders: RunOrders, life: Life, claim_server: Claiming) -> RankEnd:
    """Run the claimed jobs until none is left, and return the end of the rank."""
    set_up_console_logging(life.rank)
    host = socket.gethostname()
    # A node that cannot take part refuses the rank, which may then start on another node.
    try:
        request = checked_request(orders.needs)
        context = _context(orders, life, device=request.options.device)
        request = replace(request, jobs=settled_jobs(request.jobs, orders.attempt))
    except ArenaError as error:
        return RankEnd(refused=str(error), host=host)
    limit_threads(request.options.torch_threads)
    join_freed_memory_at_once()
    if request.options.deterministic:
        calculate_deterministically()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    with _directory(orders, life) as (directory, is_own):
        state = _run_jobs(orders, life, claim_server, request, context, directory=directory, is_own=is_own)
    return RankEnd(state=state, host=host)


def _run_jobs(
    orders: RunOrders,
    life: Life,
    claim_server: Claiming,
    request: RunRequest,
    context: DistributedContext,
    *,
    directory: Path,  # of the rank's files
    is_own: bool,  # False: the run's directory
) -> RankState:
    """Run the jobs that a rank claims, and return its final state."""
    attempt = orders.attempt
    interruption = Interruption()
    sender = ResultSender(life, directory, claim_server.deliver, stop=interruption.receive, sends_files=is_own)

    def must_stop() -> bool:
        return sender.is_gone or interruption.stop_requested()

    jobs = divided_jobs(request.jobs, attempt, request.questions)
    claims = RemoteClaims(
        jobs,
        life,
        claim_server.claim,
        claim_server.begin,
        sender,
        output_directory=directory,
        claims_directory=None if is_own else claims_directory(directory, attempt),
    )
    queue = DynamicQueue(
        claims,
        directory,
        attempt,
        stop_requested=must_stop,
        is_over=lambda job: job in sender.jobs_over,
        begins=claims.begin,
        pause=lambda _: claims.rest(must_stop),
    )
    # Each rank shows an equal part of all episodes as its total, because ranks claim them as they go.
    total = sum(sum(divided.num_episodes) for divided in jobs)
    num_episodes = len(range(life.rank, total, attempt.world_size))
    settings = rank_settings(
        request.options,
        context,
        output_directory=directory,
        attempt=attempt,
        config_hash=orders.config_hash,
        questions=request.questions,
    )
    num_threads = request.options.num_threads or max(1, int(orders.needs.cpus))
    status = RankStatus.of_this_process(rank=life.rank, run_id=attempt.run_id, episodes_total=num_episodes)
    log = log_file(directory / "logs" / f"rank{life.rank}.log", life.rank)
    with sender, log, StatusPublisher(directory, status) as publisher:
        return run_jobs(
            RankWork(queue=queue, num_jobs=0, num_episodes=num_episodes, others_may_finish_jobs=True),
            replace(settings, num_threads=num_threads, consolidates=not is_own),
            publisher,
            stop_requested=must_stop,
            fail_fast=request.options.fail_fast,
            asks_questions=bool(request.questions),
            begins=sender.follow,
        )


def _context(orders: RunOrders, life: Life, *, device: str | None) -> DistributedContext:
    """Return the identity and the device of this process: the GPU that the cluster assigned to it, or the CPU."""
    alone = DistributedContext.from_environment({}, device="cpu" if orders.needs.gpus == 0 else device)
    # `ConfigError` if CUDA does not find the assigned GPU.
    if orders.needs.gpus and device is None and alone.device.type != "cuda":
        message = "the cluster has given this rank a GPU, but CUDA finds none; check the driver, or say --device cpu"
        raise ConfigError(Problem(message, key="--gpus_per_rank"))
    return replace(alone, rank=life.rank, world_size=orders.num_ranks, local_world_size=1)


@contextmanager
def _directory(orders: RunOrders, life: Life) -> Iterator[tuple[Path, bool]]:
    """Yield the directory of this rank's files, and True if it is its own, which is removed at the end."""
    home, is_seen = Path(orders.output_directory), False
    if orders.node_directory is None:
        # This node may see another directory of that name.
        with suppress(ArenaError, OSError):
            is_seen = read_attempt(home, orders.attempt.number).run_id == orders.attempt.run_id
    if is_seen:
        yield home, False
        return
    root = Path(orders.node_directory or tempfile.gettempdir())
    with storage_errors("make a directory in", root):
        root.mkdir(parents=True, exist_ok=True)
        remove_directories_of_the_dead(root)
        own = make_own_directory(root, life.rank)
    try:
        yield own, True
    finally:
        shutil.rmtree(own, ignore_errors=True)


def make_own_directory(root: Path, rank: int) -> Path:
    """Make a directory for a rank's files, named after this process."""
    pid = os.getpid()
    name = f"{_OWN_DIRECTORY}{rank}_{_this_machine()}_{pid}_{process_start_ticks(pid) or 0}_"
    return Path(tempfile.mkdtemp(prefix=name, dir=root))


def remove_directories_of_the_dead(root: Path) -> None:
    """Remove directories of `make_own_directory` whose process, of this machine and user, has died."""
    for path in root.glob(f"{_OWN_DIRECTORY}*"):
        owner = _OWNER.fullmatch(path.name)
        if owner is None or owner[1] != _this_machine() or path.is_symlink():
            continue
        with suppress(OSError):
            is_mine = path.stat().st_uid == os.getuid()
            if is_mine and not process_is_running(int(owner[2]), int(owner[3]) or None):
                shutil.rmtree(path, ignore_errors=True)


def _this_machine() -> str:
    return f"{zlib.crc32(machine_identity().encode()):08x}"
