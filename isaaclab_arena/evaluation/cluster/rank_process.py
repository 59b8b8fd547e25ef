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
from isaaclab_arena.evaluation.builds import RankSettings, rank_settings
from isaaclab_arena.evaluation.claims import Claim, DividedJob, Measured, divided_jobs, is_taken_over
from isaaclab_arena.evaluation.cluster.crew import (
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
from isaaclab_arena.evaluation.settled import with_settled_backends, with_settled_latencies
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
from isaaclab_arena.storage.run_plan import Attempt, read_attempt

# Check that a node can run ranks of a run: the same packages, jobs file, checkpoints and classes.

WAY_OUT = "install and copy the same on every node, or bring it along: ray job submit --working-dir"


def checked_request(needs: NodeNeeds) -> RunRequest:
    """Return the run's request as this node reads it. `ConfigError` with all differences to the planning node."""
    # Versions come first, because another version may read the jobs differently.
    here, there = Provenance(facts=needs.versions), Provenance(facts=versions())
    told = [_instead(each.name, each.now or "absent", each.before or "absent") for each in here.differences(there)]
    if told:
        raise ConfigError(Problem(f"has other versions: {'; '.join(told)}; {WAY_OUT}"))
    request = request_of(needs)
    if request.config_hash != needs.jobs_hash:
        raise ConfigError(Problem(f"reads other jobs from {request.source_file}; {WAY_OUT}"))
    found = named_contents(contents_of_jobs(request.jobs))
    told = [
        _instead(name, *(shown(each.get(name, "not there")) for each in (found, needs.contents)))
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


def _instead(name: str, there: str, here: str) -> str:
    return f"{name} is {there} instead of {here}"


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
"""What a rank writes about a job besides commits; the report comes last, as it says that the rest is there."""


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
    """Delivers a rank's results to the keeper from a thread, and on exit all that is left. A context manager."""

    # The rank writes its usual files and never waits. A delivered file is removed. Each delivery is a heartbeat;
    # without results an empty delivery is sent at an interval that the keeper sets.
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
        self.is_gone = False  # taken for dead by the keeper, so this rank must end
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
        self._finished: list[FinishedPiece] = []
        self._failed: list[int] = []
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

    def finish_piece(self, piece: FinishedPiece) -> None:
        """Report a finished piece, after the episodes that are committed until now."""
        self._finished.append(piece)

    def give_up(self, job_index: int) -> None:
        """Report a failed job."""
        self._failed.append(job_index)

    def leave(self) -> None:
        """Deliver nothing more, because this rank was taken for dead."""
        self.is_gone = True

    def send(self) -> None:
        """Deliver everything written until now."""
        while not self.is_gone and self._send_once():
            pass

    def is_due(self) -> bool:
        """Whether to deliver now: there are results, or the last delivery was `beat_s` ago."""
        if self._sent_at is None:
            return True
        since_s = self._clock() - self._sent_at
        return since_s >= self._pace.beat_s or (since_s >= self._pace.delivery_s and self._has_something())

    def _has_something(self) -> bool:
        if self._finished or self._failed:
            return True
        return self._sends_files and any(
            path.stat().st_size > self._read_to.get(path, 0) for job in tuple(self._jobs) for path in self._commits(job)
        )

    def _commits(self, job: str) -> list[Path]:
        return sorted(job_directory(self._directory, job).glob(COMMIT_FILE_PATTERN))

    def _send_until_closed(self) -> None:
        try:
            while not (self.is_gone or self._closing.wait(self._look_s)):
                if self.is_due():
                    self.send()
        except Exception as error:  # noqa: BLE001  on any error the rank must end and report it
            self.failure = error
            self.leave()

    def _send_once(self) -> bool:
        """Make one delivery. Return True if there is more."""
        # Copied before the files are read: the episodes of a finished piece are on the disk by now.
        finished, failed = tuple(self._finished), tuple(self._failed)
        parcel = _Parcel()
        if self._sends_files:
            self._put_in(parcel)
        # Some episodes do not fit, so their pieces must not be reported as finished yet.
        if parcel.is_full:
            finished = failed = ()
        delivery = Delivery(
            life=self._life,
            machine=self._machine,
            status=self._status() if self._sends_files else None,
            episodes=tuple(parcel.episodes),
            files=tuple(parcel.files),
            finished=finished,
            failed=failed,
        )
        self._sent_at = self._clock()
        answer = self._deliver(delivery, b"".join(parcel.contents))
        if answer.is_gone:
            self.leave()
            return False
        # The keeper has everything by now, so it can be forgotten and removed here.
        del self._finished[: len(finished)], self._failed[: len(failed)]
        self._read_to |= parcel.read_to
        self._kept.update(parcel.kept)
        for path in parcel.sent:
            path.unlink(missing_ok=True)
        self._pace = answer.pace
        self.jobs_over = frozenset(answer.jobs_over)
        if answer.stop_signal is not None:
            self._stop(answer.stop_signal)
        return parcel.is_full

    def _status(self) -> str | None:
        try:
            return status_path(self._directory, self._life.rank).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _put_in(self, parcel: _Parcel) -> None:
        jobs = tuple(self._jobs)
        for job in jobs:
            for path in self._commits(job):
                self._put_in_episodes(parcel, job, path)
        if parcel.is_full:
            return
        for job in jobs:
            self._put_in_whole_files(parcel, job_directory(self._directory, job))
        self._put_in_growth(parcel, self._directory / "logs" / f"rank{self._life.rank}.log")

    def _put_in_episodes(self, parcel: _Parcel, job: str, path: Path) -> None:
        for line, end in _whole_lines(path, self._read_to.get(path, 0)):
            if parcel.is_full:
                return
            name, size = json.loads(line).get("episode_file"), 0
            if name is not None:
                file = path.parent / name
                size = parcel.add(file.read_bytes())
                parcel.sent.append(file)
            parcel.episodes.append(SentEpisode(job=job, line=line, size=size))
            parcel.read_to[path] = end

    def _put_in_whole_files(self, parcel: _Parcel, directory: Path) -> None:
        for pattern in _WHOLE_FILES:
            for path in sorted(directory.glob(pattern)):
                if parcel.is_full:
                    return
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


# The claims of a run on a cluster for one rank: it queries the keeper, and remembers the last answer.

_REFRESH_INTERVAL_S = 1.0
_NAP_S = 0.5


class RemoteClaims:
    """The claims of all ranks, in the keeper; see `Claims`, whose methods these are."""

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
        # If the keeper has just refused a claim, the next `claim_next` need not ask again.
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
        # A rank without access to the claims need not know: the keeper commits nothing of a rank taken for dead.
        return self._claims_directory is None or not is_taken_over(self._claims_directory, claim)

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Report the episodes that may run from now on; they are suspected if this rank dies."""
        begun = BegunEpisodes(life=self._life, job_index=claim.divided.index, piece=claim.piece, first=first, last=last)
        # This call waits for the keeper, because the rank may die of the episodes at once.
        if self._tell_begun(begun):
            self._sender.leave()

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Report a finished piece, after its episodes are committed."""
        self._sender.finish_piece(
            FinishedPiece(
                job_index=claim.divided.index, piece=claim.piece, generation=claim.generation, measured=measured
            )
        )

    def give_up(self, job_index: int) -> None:
        """Report a failed job."""
        self._sender.give_up(job_index)

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
        """Pause as long as the keeper requested, but stop soon after `must_end`. `pause` sleeps for some seconds."""
        left_s = self._said.rest_s
        while left_s > 0 and not must_end():
            pause(min(left_s, _NAP_S))
            left_s -= _NAP_S

    def _hear(self, job_index: int | None, question: ClaimQuestion) -> ClaimAnswer:
        self._said = answer = self._ask(question)
        if answer.is_gone:
            self._sender.leave()
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


# One rank of a run on a cluster: check its node, and run the jobs that it claims from the keeper.

_OWN_DIRECTORY = "isaaclab_arena_rank"
_OWNER = re.compile(rf"{_OWN_DIRECTORY}[0-9]+_([0-9a-f]{{8}})_([0-9]+)_([0-9]+)_.*")


class Keeper(Protocol):
    """The keeper of the run, from a rank's side; see `ClaimKeeper`."""

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Request a piece for this rank."""
        ...

    def begin(self, begun: BegunEpisodes) -> bool:
        """Report the episodes that this rank is about to play. Return True if it was taken for dead."""
        ...

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Deliver this rank's results."""
        ...


def run_rank(orders: RunOrders, life: Life, keeper: Keeper) -> RankEnd:
    """Run the claimed jobs until none is left, and return the end of the rank."""
    set_up_console_logging(life.rank)
    host = socket.gethostname()
    # A node that cannot take part refuses the rank, which may then start on another node.
    try:
        request = checked_request(orders.needs)
        context = _context(orders, life, device=request.options.device)
        jobs = with_settled_backends(request.jobs, orders.attempt)
        request = replace(request, jobs=with_settled_latencies(jobs, orders.attempt))
    except ArenaError as error:
        return RankEnd(refused=str(error), host=host)
    limit_threads(request.options.torch_threads)
    join_freed_memory_at_once()
    if request.options.deterministic:
        calculate_deterministically()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    with _directory(orders, life) as (directory, is_own):
        state = _ClusterRank(orders, life, keeper, directory, is_own=is_own).run(request, context)
    return RankEnd(state=state, host=host)


class _ClusterRank:
    """The work of a rank in a directory, its own or the run's."""

    def __init__(self, orders: RunOrders, life: Life, keeper: Keeper, directory: Path, *, is_own: bool) -> None:
        self._orders = orders
        self._life = life
        self._directory = directory
        self._is_own = is_own
        self._interruption = Interruption()
        self._keeper = keeper
        self._sender = ResultSender(
            life, directory, keeper.deliver, stop=self._interruption.receive, sends_files=is_own
        )

    def run(self, request: RunRequest, context: DistributedContext) -> RankState:
        """Run the claimed jobs, and return the final state."""
        work, rank = self._work(request), self._life.rank
        settings = self._settings(request, context)
        status = RankStatus.of_this_process(
            rank=rank, run_id=self._orders.attempt.run_id, episodes_total=work.num_episodes
        )
        log = log_file(self._directory / "logs" / f"rank{rank}.log", rank)
        with self._sender, log, StatusPublisher(self._directory, status) as publisher:
            return run_jobs(
                work,
                settings,
                publisher,
                stop_requested=self._must_stop,
                fail_fast=request.options.fail_fast,
                asks_questions=bool(request.questions),
                begins=self._sender.follow,
            )

    def _work(self, request: RunRequest) -> RankWork:
        attempt = self._orders.attempt
        jobs = divided_jobs(request.jobs, attempt, request.questions)
        claims = RemoteClaims(
            jobs,
            self._life,
            self._keeper.claim,
            self._keeper.begin,
            self._sender,
            output_directory=self._directory,
            claims_directory=None if self._is_own else claims_directory(self._directory, attempt),
        )
        queue = DynamicQueue(
            claims,
            self._directory,
            attempt,
            stop_requested=self._must_stop,
            is_over=lambda job: job in self._sender.jobs_over,
            begins=claims.begin,
            pause=lambda _: claims.rest(self._must_stop),
        )
        # Each rank shows an equal part of all episodes as its total, because ranks claim them as they go.
        total = sum(sum(divided.num_episodes) for divided in jobs)
        return RankWork(
            queue=queue,
            num_jobs=0,
            num_episodes=len(range(self._life.rank, total, attempt.world_size)),
            others_may_finish_jobs=True,
        )

    def _settings(self, request: RunRequest, context: DistributedContext) -> RankSettings:
        settings = rank_settings(
            request.options,
            context,
            output_directory=self._directory,
            attempt=self._orders.attempt,
            config_hash=self._orders.config_hash,
            questions=request.questions,
        )
        num_threads = request.options.num_threads or max(1, int(self._orders.needs.cpus))
        return replace(settings, num_threads=num_threads, consolidates=not self._is_own)

    def _must_stop(self) -> bool:
        return self._sender.is_gone or self._interruption.stop_requested()


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
    """Yield the directory of this rank's files, and whether it is its own, which is removed at the end."""
    home = Path(orders.output_directory)
    if orders.node_directory is None and _is_seen(home, orders.attempt):
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


def _is_seen(home: Path, attempt: Attempt) -> bool:
    """Whether this node sees the run's directory itself, not another one of that name."""
    try:
        return read_attempt(home, attempt.number).run_id == attempt.run_id
    except (ArenaError, OSError):
        return False
